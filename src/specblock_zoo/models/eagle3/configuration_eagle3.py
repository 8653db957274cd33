"""Configuration of an EAGLE-3 drafter (arXiv 2503.01840; field names are ours)."""

from specblock_zoo.models.configuration import DrafterConfig


class Eagle3Config(DrafterConfig):
    """Shapes and drafting defaults of an `Eagle3Drafter`; all fields: see `DrafterConfig`.

    The dynamic tree of EAGLE-2 is what the defaults say: `num_blocks` forwards deep, at each depth the `beam_width`
    best nodes offer `beam_width` children each, and of all nodes the `max_nodes` best are kept. There is no rank head,
    so `branching` follows the beam unless it is given.

    Attributes:
        train_blocks: steps of the training-time test.
    """

    model_type = "eagle3"

    train_blocks: int = 4
    num_blocks: int = 5

    def check(self) -> None:
        """Raises `ConfigurationError` for values out of range, naming both."""
        super().check()
        one = "1: this kind of drafter has one layer, and drafts one token per forward"
        self.refuse({name: (getattr(self, name) == 1, one) for name in ("block_width", "num_hidden_layers")})
