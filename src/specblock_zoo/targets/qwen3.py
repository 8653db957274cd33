"""The dense Qwen3 family. Its head size is not hidden / heads, so the tiny config keeps them apart too."""

from transformers import Qwen3Config, Qwen3ForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

QWEN3 = TargetFamily(
    name="qwen3",
    model_types=("qwen3",),
    config_class=Qwen3Config,
    model_class=Qwen3ForCausalLM,
    tiny_facts=(*TINY_SHAPE, ("head_dim", 16), ("tie_word_embeddings", False)),
)
