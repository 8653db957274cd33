"""The EAGLE-3 drafter, a baseline: configuration, model, and the published checkpoint format."""

from specblock_zoo.models.eagle3.configuration_eagle3 import Eagle3Config
from specblock_zoo.models.eagle3.modeling_eagle3 import Eagle3Drafter

__all__ = ["Eagle3Config", "Eagle3Drafter"]
