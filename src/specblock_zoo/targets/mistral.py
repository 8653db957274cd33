"""The dense Mistral family. Where a window is configured every layer looks through it; there is one mask for all."""

from transformers import MistralConfig, MistralForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

MISTRAL = TargetFamily(
    name="mistral",
    model_types=("mistral",),
    config_class=MistralConfig,
    model_class=MistralForCausalLM,
    tiny_facts=(*TINY_SHAPE, ("head_dim", 8), ("tie_word_embeddings", False), ("sliding_window", 8)),
)
