"""Which family a target belongs to."""

import difflib

from transformers import PreTrainedConfig

from specblock_zoo.errors import UnknownNameError
from specblock_zoo.targets.base import TargetFamily
from specblock_zoo.targets.gemma2 import GEMMA2
from specblock_zoo.targets.gemma3 import GEMMA3
from specblock_zoo.targets.gpt_oss import GPT_OSS
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.targets.mistral import MISTRAL
from specblock_zoo.targets.qwen2 import QWEN2
from specblock_zoo.targets.qwen3 import QWEN3
from specblock_zoo.targets.qwen3_moe import QWEN3_MOE

FAMILIES: dict[str, TargetFamily] = {
    "llama": LLAMA,
    "qwen3": QWEN3,
    "qwen2": QWEN2,
    "mistral": MISTRAL,
    "gemma3": GEMMA3,
    "gemma2": GEMMA2,
    "gpt_oss": GPT_OSS,
    "qwen3_moe": QWEN3_MOE,
}


def family_of(config: PreTrainedConfig) -> TargetFamily:
    """The family of a target's config.

    Raises:
        UnknownNameError: no family claims `config.model_type`; the nearest known types are named.
    """
    by_type = {model_type: family for family in FAMILIES.values() for model_type in family.model_types}
    if config.model_type in by_type:
        return by_type[config.model_type]
    near = difflib.get_close_matches(config.model_type, by_type, n=3, cutoff=0.4) or sorted(by_type)
    raise UnknownNameError(
        f"No target family for model_type {config.model_type!r}; nearest known: {', '.join(near)}.",
        "Use a target of a known family, or add one as docs/recipes describe.",
    )
