"""Where updates run: between queries on the serving device, or beside it on another. One writer in both."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

LOG = logging.getLogger(__name__)

Job = Callable[[], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its result or its error, and the seconds it took from serving."""

    name: str
    result: Any
    error: BaseException | None
    seconds: float


class Deployment(Protocol):
    """Runs jobs one after another, in the order they were handed in."""

    def submit(self, name: str, job: Job) -> None:
        """Hands in a job; `name` returns with its outcome."""

    def poll(self) -> list[Outcome]:
        """Outcomes since the last poll, in order."""

    def drain(self) -> None:
        """Waits until every job has an outcome."""

    def close(self) -> None:
        """Ends it; jobs handed in before are finished."""


def outcome_of(name: str, job: Job) -> Outcome:
    """Runs a job; nothing it raises gets out, except what ends the process."""
    started = time.perf_counter()
    try:
        return Outcome(name, job(), None, time.perf_counter() - started)
    except Exception as error:
        LOG.exception("the job %s failed; the last weights go on serving", name)
        return Outcome(name, None, error, time.perf_counter() - started)


def run_here(name: str, job: Job, outcomes: "queue.SimpleQueue[Outcome]") -> None:
    """Runs a job in the caller's thread, where Ctrl-C reaches it; it has an outcome then too, or it would count as
    under way for ever."""
    started = time.perf_counter()
    try:
        outcomes.put(outcome_of(name, job))
    except BaseException as error:
        outcomes.put(Outcome(name, None, error, time.perf_counter() - started))
        raise


class Inline:
    """On the serving device, in the thread that hands the job in: after an answer, before the next query."""

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def submit(self, name: str, job: Job) -> None:
        """Runs the job at once; a second thread waits for the first."""
        with self._lock:
            run_here(name, job, self._outcomes)

    def poll(self) -> list[Outcome]:
        """See `Deployment`."""
        return emptied(self._outcomes)

    def drain(self) -> None:
        """See `Deployment`."""
        with self._lock:
            pass

    def close(self) -> None:
        """Nothing to end."""


class Worker:
    """A thread of its own, for a training copy on another device; serving pays for the swap only.

    Args:
        device: where the jobs train; on CUDA they run on a stream of their own there.
    """

    def __init__(self, device: torch.device) -> None:
        # Made here: a device that has none must fail in front of the caller, not in a thread that jobs then wait for.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._jobs: queue.Queue[tuple[str, Job] | None] = queue.Queue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._lock, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="specblock-adaptation", daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Job) -> None:
        """Queues the job; once closed, runs it here, after those queued before."""
        with self._lock:
            if not self._closed:
                self._jobs.put((name, job))
                return
            self._thread.join()
            run_here(name, job, self._outcomes)

    def poll(self) -> list[Outcome]:
        """See `Deployment`."""
        return emptied(self._outcomes)

    def drain(self) -> None:
        """See `Deployment`."""
        self._jobs.join()

    def close(self) -> None:
        """See `Deployment`."""
        with self._lock:
            if not self._closed:
                self._jobs.put(None)
            self._closed = True
        self._thread.join()

    def _run(self) -> None:
        while (handed_in := self._jobs.get()) is not None:
            name, job = handed_in
            outcome = outcome_of(name, partial(self._on_stream, job))
            self._outcomes.put(replace(outcome, seconds=0.0))
            self._jobs.task_done()
        self._jobs.task_done()

    def _on_stream(self, job: Job) -> Any:
        """Waits for the stream inside the job, where an error of its kernels is one of the job."""
        with torch.cuda.stream(self._stream):  # does nothing for None
            result = job()
        if self._stream is not None:
            self._stream.synchronize()
        return result


def emptied(outcomes: "queue.SimpleQueue[Outcome]") -> list[Outcome]:
    """Everything in a queue now."""
    found = []
    while True:
        try:
            found.append(outcomes.get_nowait())
        except queue.Empty:
            return found
