"""The dense Qwen3 family. Its head size is not hidden / heads, so the tiny config keeps them apart too.

Upper layers may look through a sliding window, as Qwen2's.
"""

from transformers import Qwen3Config, Qwen3ForCausalLM

from specblock_zoo.targets.base import TINY_SHAPE, TargetFamily

QWEN3 = TargetFamily(
    name="qwen3",
    model_types=("qwen3",),
    config_class=Qwen3Config,
    model_class=Qwen3ForCausalLM,
    tiny_facts=(*TINY_SHAPE, ("head_dim", 16), ("tie_word_embeddings", False)),
    mask_by_layer_type=True,
)
