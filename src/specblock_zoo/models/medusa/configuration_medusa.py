"""Configuration of a Medusa drafter (specification: arXiv 2401.10774; field names are ours)."""

from dataclasses import replace
from typing import Any

from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.structures import TreeSettings


class MedusaConfig(DrafterConfig):
    """Shapes and drafting defaults of a `MedusaDrafter`.

    Attributes beside those of every drafter, of which attention and rotary fields are not read:
        block_width: heads; head k drafts slot k.
        residual_layers: residual blocks of each head, 0 or more (published weights: 1).
        hidden_size: the target's, whose states the heads read.
        tap_layers: always empty: the heads read the target's last state, not its layers.
        num_blocks, train_blocks: always 1: a drafted token has no such state to continue from.
        independent_slots: see `TreeSettings`; without it siblings have no children.
    """

    model_type = "medusa"

    block_width: int = 4
    residual_layers: int = 1
    num_blocks: int = 1
    independent_slots: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        self.tap_layers = ()
        super().__post_init__(**kwargs)

    def check(self) -> None:
        """Raises `ConfigurationError` for values out of range, naming both."""
        super().check()
        whole = type(self.residual_layers) is int and self.residual_layers >= 0
        self.refuse(
            {
                "residual_layers": (whole, "an integer from 0"),
                "hidden_size": (
                    self.hidden_size == self.target_hidden_size,
                    f"target_hidden_size ({self.target_hidden_size})",
                ),
                "num_blocks": (self.num_blocks == 1, "1: the heads cannot continue from a drafted token"),
                "train_blocks": (self.train_blocks == 1, "1 (an empty block_sampling): the heads draft one block"),
            }
        )

    @property
    def tree_settings(self) -> TreeSettings:
        """The drafting defaults as a `TreeSettings`."""
        return replace(super().tree_settings, independent_slots=self.independent_slots)
