"""Configuration of a SpecBlock drafter (specification: arXiv 2605.07243; field names are ours)."""

from specblock_zoo.models.configuration import DrafterConfig

SHIFTS = ("between_layers", "every_layer", "none")


class SpecBlockConfig(DrafterConfig):
    """Shapes, switches and drafting defaults of a `SpecBlockDrafter`; fields of all drafters: see `DrafterConfig`.

    Attributes:
        shift: `every_layer` (paper), `between_layers` (published weights) or `none` (ablation).
        advance_positions: later blocks use their true positions (ours), not the first block's (published weights).
        context_slots: see `DrafterConfig` (published weights: K).
        rank_top: logits over which the rank summary is normalised (20 in training and decoding).
        rank_hidden_size: width of the rank head.
    """

    model_type = "specblock"
    sizes = (*DrafterConfig.sizes, "rank_top", "rank_hidden_size")

    num_hidden_layers: int = 2
    block_width: int = 4
    train_blocks: int = 3
    shift: str = "every_layer"
    advance_positions: bool = True
    rank_top: int = 20
    rank_hidden_size: int = 256
    branching: list[int] | tuple[int, ...] | None = (2, 4, 10, 0)

    def check(self) -> None:
        """Raises `ConfigurationError` for values out of range, naming both."""
        super().check()
        self.refuse({"shift": (self.shift in SHIFTS, f"one of {', '.join(SHIFTS)}")})
