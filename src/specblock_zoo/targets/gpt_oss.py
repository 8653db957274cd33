"""The GPT-OSS family: experts, every other layer through a window, and attention sinks, which need eager attention."""

from transformers import GptOssConfig, GptOssForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

GPT_OSS = TargetFamily(
    name="gpt_oss",
    model_types=("gpt_oss",),
    config_class=GptOssConfig,
    model_class=GptOssForCausalLM,
    tiny_facts=(
        *TINY_SHAPE,
        ("head_dim", 8),
        ("tie_word_embeddings", False),
        ("max_position_embeddings", 131_072),  # what its YaRN factors stand for
        ("num_local_experts", 4),
        ("num_experts_per_tok", 2),
        ("sliding_window", 8),
        ("attn_implementation", "eager"),
    ),
    layers_start_drafters=False,
    mask_by_layer_type=True,
)
