"""A drafter that learns while it serves: `model.generate(**inputs, assistant_model=AdaptiveDrafter(drafter))`."""

import copy
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specblock_zoo.adaptation import bandit, saving
from specblock_zoo.adaptation.bandit import BanditState, Decision
from specblock_zoo.adaptation.buffers import HeadBuffer, TextBuffer
from specblock_zoo.adaptation.deployment import Deployment, Inline, Outcome, Worker
from specblock_zoo.adaptation.events import Action, Answered, Dropped, Event, Frozen, RolledBack, Sample, Spent, Synced
from specblock_zoo.adaptation.feedback import Feedback, Recorder
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.adaptation.updater import Update, Updater, serving_copy, with_modules
from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.prepack import is_packed
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.structures import BranchOutput, ContextOutput

LOG = logging.getLogger(__name__)
NO_SAMPLE = Sample(math.nan, math.nan, math.nan)
"""Of a query that tells nothing."""
UPDATE, KEEP, REVERT, SAVE, BY_HAND = "update", "keep", "revert", "save", "by hand"


@dataclass(frozen=True)
class Report:
    """What the latest query led to.

    Attributes:
        decision: of the bandit.
        update_seconds: taken from serving by updates, during this query's call.
        synced: the update whose weights began to serve in it.
    """

    decision: Decision
    update_seconds: float = 0.0
    synced: Action | None = None


@dataclass
class _Live:
    """The serving drafter; in a record of its own so that torch does not see a submodule."""

    serving: SpecBlockDrafter


class AdaptiveDrafter(Drafter):
    """Serves like the drafter it was made from, and updates itself when the bandit says so. A query is a generate call.

    Each query drafts with the weights it began with; an update replaces the serving drafter by one with new modules, in
    one assignment, so that texts never depend on it and threads may share one adaptive drafter.

    Args:
        drafter: a SpecBlock drafter in plain layout, on the target's device; its own weights are never changed.
        settings: how it adapts.

    Raises:
        UnsupportedOptionError: another kind of drafter, or one whose weights are packed.
    """

    def __init__(self, drafter: Drafter, settings: AdaptationConfig | None = None) -> None:
        super().__init__()
        self.settings = settings or AdaptationConfig()
        plain = checked(drafter)
        self.base, self.strict = saving.base_of(plain), plain.strict
        device = torch.device(self.settings.train_device) if self.settings.train_device else plain.device
        self.updater = Updater(plain, self.settings.update, device, self.settings.prepack)
        self._live = _Live(serving_copy(plain, self.settings.prepack))
        self._deployment: Deployment = Worker(device) if self.settings.deployment == "worker" else Inline()
        self.head_buffer = HeadBuffer(self.settings.head_capacity, self.settings.head_needed)
        self.text_buffer = TextBuffer(self.settings.text_capacity, self.settings.text_needed)
        self.bandit = BanditState()
        self.trigger = 0
        self.last_report = Report(Decision())
        self._save_is_due = False
        self._lock = threading.RLock()

    @property
    def serving(self) -> SpecBlockDrafter:
        """The drafter that the next query begins with."""
        return self._live.serving

    @property
    def config(self) -> Any:
        """The drafter's configuration."""
        return self.serving.config

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The serving drafter's."""
        return self.serving.parameters(recurse)

    def attach(self, embedding: Tensor) -> None:
        """See `Drafter`; the training copy borrows the same table."""
        self.serving.attach(embedding)

    @property
    def embedding(self) -> Tensor:
        """See `Drafter`."""
        return self.serving.embedding

    @property
    def is_attached(self) -> bool:
        """See `Drafter`."""
        return self.serving.is_attached

    def extend(self, *args: Any, **kwargs: Any) -> ContextOutput:
        """The serving drafter's."""
        return self.serving.extend(*args, **kwargs)

    def branch(self, *args: Any, **kwargs: Any) -> BranchOutput:
        """The serving drafter's."""
        return self.serving.branch(*args, **kwargs)

    def target_tokens(self, draft_ids: Tensor) -> Tensor:
        """The serving drafter's."""
        return self.serving.target_tokens(draft_ids)

    @contextmanager
    def query(self) -> Iterator[tuple[Drafter, Recorder]]:
        """One generate call: drafts with the weights of now, and learns from it once the text has ended."""
        with self._lock:
            self.last_report = Report(Decision())
            self._collect()
            drafting = copy.copy(self.serving)
        recorder = Recorder(drafting, self.settings.capture)
        started = time.perf_counter()
        yield drafting, recorder
        seconds = time.perf_counter() - started
        self.last_stats = drafting.last_stats
        try:
            # Callers may generate in inference mode, whose tensors cannot be trained on.
            with torch.inference_mode(False):
                self._learn(recorder, drafting, seconds)
        except Exception:
            LOG.exception("nothing was learned from this query")

    def freeze(self) -> None:
        """No updates from now on; one under way is finished and served first."""
        self._settle()
        self._tell(Frozen(True))

    def thaw(self) -> None:
        """Updates are allowed again."""
        self._tell(Frozen(False))

    def rollback(self) -> None:
        """The last good weights serve again, at once for the queries to come; buffers are emptied."""
        self._settle()
        self._deployment.submit(REVERT, self.updater.revert)
        self._settle()

    def save(self, folder: str | Path) -> None:
        """Saves weights, optimizer, buffers and bandit; whole, or the save before stays current.

        Raises:
            OSError, ConfigurationError: the disk is full or cannot be written.
        """
        self._between_jobs(partial(self._save, Path(folder)))

    def restore(self, folder: str | Path) -> None:
        """Goes on from what `save` wrote.

        Raises:
            ConfigurationError: nothing was saved there.
            WeightsMismatchError: it is another drafter's, or not whole.
        """
        self._between_jobs(partial(self._restore, Path(folder)))

    def close(self) -> None:
        """Finishes what is under way and ends the worker."""
        self._settle()
        self._deployment.close()

    def _save(self, folder: Path) -> None:
        # Captured under the lock, written without it: no query waits for a disk.
        with self._lock:
            self._collect()
            now = saving.captured(self)
        saving.save(self.updater, now, folder)

    def _restore(self, folder: Path) -> None:
        with self._lock:
            saving.restore(self, folder)
            self._swap(self.updater.modules())

    def _settle(self) -> None:
        self._deployment.drain()
        self._collect_and_save()
        self._deployment.drain()

    def _between_jobs(self, work: Callable[[], None]) -> None:
        """Runs `work` without the lock while no job trains, once what the jobs before it gave is served.

        Raises what it raises.
        """
        raised: list[Exception] = []

        def job() -> None:
            try:
                with self._lock:
                    self._collect()
                work()
            except Exception as error:
                raised.append(error)

        self._deployment.submit(BY_HAND, job)
        self._settle()
        if raised:
            raise raised[0]

    def _tell(self, event: Event) -> Decision:
        with self._lock:
            self.bandit, decision = bandit.step(self.settings.bandit, self.bandit, event)
            return decision

    def _learn(self, recorder: Recorder, drafting: SpecBlockDrafter, seconds: float) -> None:
        feedback = recorder.finish()
        with self._lock:
            self.updater.embedding = drafting.embedding
            decision = self._answered(feedback, drafting, seconds)
            self.last_report = replace(self.last_report, decision=decision)
            jobs = self._jobs(decision)
        # Without the lock, so that other queries start and end meanwhile.
        for name, job in jobs:
            self._deployment.submit(name, job)
        self._collect_and_save()

    def _answered(self, feedback: Sequence[Feedback], drafting: SpecBlockDrafter, seconds: float) -> Decision:
        sample = sample_of(drafting.last_stats, feedback, self.settings.clock)
        if drafting.lm_head is not self.serving.lm_head:
            # Other weights began to serve meanwhile: it says nothing about theirs.
            sample = NO_SAMPLE
        for each in feedback if not self.bandit.frozen else ():
            # Another decoder's states would teach the heads what they will never read.
            if drafting.norm is self.serving.norm:
                self.head_buffer.add(each.head, self.bandit.queries)
            if each.text is not None:
                self.text_buffer.add(each.text)
                self.trigger += each.text.uncovered
        # What an update gains comes with each return of the texts it has seen: after a shift, better soon than whole.
        soon = self.bandit.alert > 0 and self.head_buffer.fresh >= self.settings.alert_needed
        full = {Action.HEAD: soon or self.head_buffer.is_full, Action.FULL: self.text_buffer.is_full}
        draw = random.Random(f"{self.settings.seed}/{self.bandit.queries}")
        ready = tuple(action for action, is_full in full.items() if is_full)
        return self._tell(Answered(sample, seconds, self.trigger, ready, (draw.random(), draw.random())))

    def _jobs(self, decision: Decision) -> list[tuple[str, Any]]:
        jobs: list[tuple[str, Any]] = []
        if decision.shift is not None:
            # Slots of another traffic would take the place of the new one's: an update reads only so many.
            self.head_buffer.forget(decision.shift)
        if decision.keep:
            jobs.append((KEEP, self.updater.keep))
        if decision.revert:
            jobs.append((REVERT, self.updater.revert))
        if decision.action is not Action.SKIP:
            is_head = decision.action is Action.HEAD
            seed = self.settings.seed + self.bandit.queries
            data = self.head_buffer.rows(self.settings.head_read, seed) if is_head else self.text_buffer.texts()
            (self.head_buffer if is_head else self.text_buffer).spent()
            self.trigger = 0
            least = self.settings.alert_steps if self.bandit.alert else 0
            jobs.append((UPDATE, partial(self.updater.update, decision.action, data, least)))
        return jobs

    def _collect_and_save(self) -> None:
        """Serves what jobs have finished, and has the state saved if an update is among it; without the lock."""
        with self._lock:
            self._collect()
            due, self._save_is_due = self._save_is_due, False
        if due and self.settings.folder is not None:
            self._deployment.submit(SAVE, partial(self._save_quietly, Path(self.settings.folder)))
            with self._lock:
                self._collect()

    def _collect(self) -> None:
        """Serves what jobs have finished; under the lock."""
        for outcome in self._deployment.poll():
            if outcome.name != BY_HAND:
                self._take(outcome)

    def _take(self, outcome: Outcome) -> None:
        spent, synced = outcome.seconds, None
        started = time.perf_counter()
        if outcome.error is not None and outcome.name == UPDATE:
            self._tell(Dropped(self.bandit.pending or Action.SKIP, spent))
        elif isinstance(outcome.result, Update):
            synced = outcome.result.action
            self._swap(outcome.result.modules)
            if synced is Action.FULL:
                self.head_buffer.clear()
            spent += time.perf_counter() - started
            self._tell(Synced(synced, spent))
        elif outcome.name == REVERT and outcome.error is None:
            self._swap(outcome.result)
            self.head_buffer.clear()
            self.text_buffer.clear()
            spent += time.perf_counter() - started
            self._tell(RolledBack(spent))
        else:
            self._tell(Spent(spent))
        report = self.last_report
        self.last_report = replace(report, update_seconds=report.update_seconds + spent, synced=synced or report.synced)
        self._save_is_due |= synced is not None

    def _swap(self, modules: dict[str, nn.Module]) -> None:
        before = self.serving
        made = with_modules(before, modules)
        if before.is_attached:
            made.attach(before.embedding)
        self._live.serving = made

    def _save_quietly(self, folder: Path) -> None:
        try:
            self._save(folder)
        except Exception:
            LOG.exception("the state could not be saved in %s; the save before stays, and serving goes on", folder)


def checked(drafter: Drafter) -> SpecBlockDrafter:
    """The drafter, once it is known that it can be trained; raises `UnsupportedOptionError`."""
    if not isinstance(drafter, SpecBlockDrafter):
        raise UnsupportedOptionError(
            f"Cannot adapt a {type(drafter).__name__}; expected a SpecBlockDrafter.", "Serve it without adaptation."
        )
    if is_packed(drafter):
        raise UnsupportedOptionError(
            "Cannot adapt a drafter with packed weights: they take no gradient.",
            "Load it again, and pass AdaptationConfig(prepack=True); it is packed after each update.",
        )
    return drafter


def sample_of(stats: DecodeStats, feedback: Sequence[Feedback], clock: str) -> Sample:
    """What a query says about throughput; not finite for one that ended before its first round."""
    seconds = (stats.draft_ms + stats.verify_ms + stats.other_ms) / 1000
    if not stats.rounds or not feedback or seconds <= 0:
        return NO_SAMPLE
    rate = stats.tau if clock == "rounds" else stats.committed / seconds
    difficulty = sum(each.difficulty for each in feedback) / len(feedback)
    # Of the drafter's own: how much a text repeats itself says nothing about its weights.
    return Sample(math.log(rate), difficulty, stats.drafter_tau)
