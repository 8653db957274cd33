"""Medusa (arXiv 2401.10774): independent heads on the target's last state; configuration, model, published format."""

from specblock_zoo.models.medusa.configuration_medusa import MedusaConfig
from specblock_zoo.models.medusa.modeling_medusa import MedusaDrafter

__all__ = ["MedusaConfig", "MedusaDrafter"]
