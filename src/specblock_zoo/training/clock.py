"""Training by the clock: as many updates as fit the time, the schedule sized to them."""

import time
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from specblock_zoo.errors import check_values
from specblock_zoo.training.module import DrafterModule
from specblock_zoo.training.schedules import resize


class FitToTime(Callback):
    """Ends a run when its time is over, with the schedule at its end.

    How many updates fit is read off those made lately, validation and checkpoints included: first after a few, then at
    multiples of `multiple_of`, since an update costs more once more rows stay right. Each time the warm-up and
    cosine are sized anew. The trainer's own end stays the most there may be. A resumed run has the time given to
    it, not what the interrupted one had left; one that had come to its end stays there.

    Logs `seen_tokens`, padding included, beside every validation: the axis of a learning curve. Each process is taken
    to see as many as the first.

    Args:
        seconds: of the run, from the moment this callback is made (before data and target are read).
        multiple_of: the last update is a multiple of it. Let `ModelCheckpoint.every_n_train_steps` and the trainer's
            `val_check_interval` divide it, and the last update is stored and validated.
        first: updates before the first estimate, whose first quarter, which warms up, is not timed; and the least
            between two later ones, so that one validation among them does not pass for what updates cost.
    """

    def __init__(self, seconds: float, multiple_of: int = 1, first: int = 20) -> None:
        self.seconds = seconds
        self.multiple_of = multiple_of
        self.first = first
        check_values(
            self,
            {
                "seconds": (seconds > 0, "a number above 0"),
                "multiple_of": (multiple_of >= 1, "an integer from 1"),
                "first": (first >= 4, "an integer from 4"),
            },
        )
        self.ends = time.monotonic() + seconds
        self.tokens = 0
        self.total: int | None = None
        self._since: tuple[float, int] | None = None
        self._begun, self._judged = 0, 0
        self._most = 0

    def state_dict(self) -> dict[str, Any]:
        """Tokens seen, and how many updates the run was to have."""
        return {"tokens": self.tokens, "total": self.total}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes up where a run stopped."""
        self.tokens, self.total = state_dict["tokens"], state_dict["total"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begun, self._most = trainer.global_step, int(trainer.estimated_stepping_batches)
        self._judged = self._begun
        if self.total is not None:
            self._size(trainer, pl_module, self.total)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.tokens += batch["input_ids"].numel() * trainer.world_size
        updates = trainer.global_step
        if updates == self._judged:
            # A part of an accumulated update.
            return
        self._judged = updates
        fresh = updates - self._begun
        # One clock for all processes: they must stop at the same update.
        now, left = trainer.strategy.broadcast((time.monotonic(), self.ends - time.monotonic()))
        if self._since is None:
            self._since = (now, updates) if fresh >= self.first // 4 else None
        elif left <= 0:
            trainer.should_stop = True
        elif fresh == self.first or (self._timed(updates) >= self.first and updates % self.multiple_of == 0):
            more = int(left / max(now - self._since[0], 1e-9) * self._timed(updates))
            self._size(trainer, pl_module, self._last_multiple(updates, more))
            self._since = (now, updates)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            pl_module.log("seen_tokens", float(self.tokens))

    def _timed(self, updates: int) -> int:
        """Updates since the latest estimate."""
        return updates - self._since[1] if self._since else 0

    def _last_multiple(self, updates: int, more: int) -> int:
        """The last multiple that `more` updates reach; the next one from here where they reach none."""
        reached, following = (updates + more) // self.multiple_of, -(-updates // self.multiple_of)
        return max(reached, following) * self.multiple_of

    def _size(self, trainer: Trainer, pl_module: LightningModule, total: int) -> None:
        total = min(total, self._most)
        if total != self.total:
            rank_zero_info(f"{total} updates fit the time; {trainer.global_step} are made")
        self.total = total
        trainer.fit_loop.epoch_loop.max_steps = total
        fraction = cast(DrafterModule, pl_module).adamw.warmup_fraction
        for config in trainer.lr_scheduler_configs:
            resize(cast(Any, config.scheduler), total, fraction)
