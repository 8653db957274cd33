"""The text models of the Gemma 3 family: most layers through a window, with rotary frequencies of their own."""

from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

GEMMA3 = TargetFamily(
    name="gemma3",
    model_types=("gemma3_text",),
    config_class=Gemma3TextConfig,
    model_class=Gemma3ForCausalLM,
    tiny_facts=(
        *TINY_SHAPE,
        ("head_dim", 8),
        ("query_pre_attn_scalar", 8),
        ("tie_word_embeddings", True),
        ("sliding_window", 8),
        ("sliding_window_pattern", 3),
    ),
    layers_start_drafters=False,
    mask_by_layer_type=True,
)
