"""The Qwen3 family with experts. A drafter reads the same residual stream as in the dense one."""

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

QWEN3_MOE = TargetFamily(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    config_class=Qwen3MoeConfig,
    model_class=Qwen3MoeForCausalLM,
    tiny_facts=(
        *TINY_SHAPE,
        ("head_dim", 16),
        ("tie_word_embeddings", False),
        ("num_experts", 4),
        ("num_experts_per_tok", 2),
        ("moe_intermediate_size", 24),
    ),
    layers_start_drafters=False,
)
