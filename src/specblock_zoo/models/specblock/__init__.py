"""The SpecBlock drafter: configuration, model, and the authors' published checkpoint format."""

from specblock_zoo.models.specblock.configuration_specblock import SpecBlockConfig
from specblock_zoo.models.specblock.modeling_specblock import SpecBlockDrafter

__all__ = ["SpecBlockConfig", "SpecBlockDrafter"]
