"""The Qwen2 family (Qwen2, Qwen2.5). Upper layers may look through a sliding window, as those of the tiny one do."""

from transformers import Qwen2Config, Qwen2ForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

QWEN2 = TargetFamily(
    name="qwen2",
    model_types=("qwen2",),
    config_class=Qwen2Config,
    model_class=Qwen2ForCausalLM,
    tiny_facts=(
        *TINY_SHAPE,
        ("tie_word_embeddings", True),
        ("use_sliding_window", True),
        ("sliding_window", 8),
        ("max_window_layers", 2),
    ),
    mask_by_layer_type=True,
)
