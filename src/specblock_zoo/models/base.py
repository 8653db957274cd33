"""What every drafter offers to training and decoding."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from specblock_zoo.errors import TargetMismatchError, UnboundDrafterError
from specblock_zoo.structures import (
    FINAL_NORM,
    BranchMemory,
    BranchOutput,
    ContextOutput,
    KeyValues,
    default_tap_layers,
)


class Drafter(nn.Module, ABC):
    """Marker and protocol: `model.generate(assistant_model=...)` dispatches on it.

    A drafter has no token embeddings of its own: it borrows the target's (`attach`), so they are neither saved nor
    copied.
    `last_stats` is set by each generate call (see `inference.stats.DecodeStats`). `strict` refuses a target that cannot
    judge trees, instead of drafting chains for it.
    """

    config: Any
    last_stats: Any = None
    strict: bool = False
    reads_last_hidden: bool = False
    """The features are the target's states after its final norm `[batch, seq, target_hidden]`, not tap layers."""
    capture: Any = None
    """The same forwards at few shapes (`inference.capture.Capture`), which decoding calls where there are such."""
    _embedding: Tensor | None = None

    def attach(self, embedding: Tensor) -> None:
        """Borrows the target's token embeddings `[vocab, target_hidden]`; no copy is made, no gradient flows into them.

        Raises:
            TargetMismatchError: the table's shape is not the one the drafter was made for.
        """
        expected = (self.config.vocab_size, self.config.hidden_size)
        if tuple(embedding.shape) != expected:
            raise TargetMismatchError(
                f"The target's embedding table is {tuple(embedding.shape)}; this drafter was made for {expected}.",
                "Use the drafter of this target, or train one with `specblock fit`.",
            )
        self._embedding = embedding.detach()

    @property
    def embedding(self) -> Tensor:
        """The borrowed table `[vocab, hidden]`. Raises `UnboundDrafterError` before `attach`."""
        if self._embedding is None:
            raise UnboundDrafterError(
                "The drafter has not met its target yet, so it has no token embeddings.",
                "Call drafter.attach(model.get_input_embeddings().weight), "
                "or use model.generate(assistant_model=drafter).",
            )
        return self._embedding

    @property
    def is_attached(self) -> bool:
        """True once the drafter has met its target."""
        return self._embedding is not None

    def tap_layers(self, num_target_layers: int) -> tuple[int, ...]:
        """Target layers to read (0-based, outputs): the configured ones, or the method's default for this depth.

        `FINAL_NORM` alone for drafters that read the last state.
        """
        if self.reads_last_hidden:
            return (FINAL_NORM,)
        return tuple(self.config.tap_layers or default_tap_layers(num_target_layers))

    @abstractmethod
    def extend(
        self,
        features: Tensor,
        tokens: Tensor,
        positions: Tensor,
        context: Sequence[KeyValues] | None = None,
        context_mask: Tensor | None = None,
    ) -> ContextOutput:
        """Appends committed pairs to the context and drafts the first block at the last one."""

    @abstractmethod
    def branch(
        self,
        tokens: Tensor,
        conditions: Tensor,
        depths: Tensor,
        drafting_position: Tensor,
        memory: BranchMemory,
    ) -> BranchOutput:
        """Drafts one more block from each start node."""

    @abstractmethod
    def target_tokens(self, draft_ids: Tensor) -> Tensor:
        """Draft-vocabulary ids -> target ids, any shape, int64."""

    @contextmanager
    def query(self) -> Iterator[tuple["Drafter", Any]]:
        """Brackets one generate call: who drafts in it, and its `inference.observe.Observer` (None: nobody watches)."""
        yield self, None

    def generate(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """The explicit twin of `model.generate(*args, assistant_model=drafter, **kwargs)`; same result."""
        return model.generate(*args, assistant_model=self, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave the borrowed table behind, which a copy gets again at its next use, and captures."""
        return {**self.__dict__, "_embedding": None, "capture": None}
