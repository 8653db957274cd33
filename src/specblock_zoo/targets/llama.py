"""The Llama family (Llama 2 and 3, SmolLM2)."""

from transformers import LlamaConfig, LlamaForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

LLAMA = TargetFamily(
    name="llama",
    model_types=("llama",),
    config_class=LlamaConfig,
    model_class=LlamaForCausalLM,
    tiny_facts=(*TINY_SHAPE, ("head_dim", 8), ("tie_word_embeddings", True)),
)
