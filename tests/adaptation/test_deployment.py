"""Both deployments keep one protocol: jobs in order, one at a time, errors as outcomes."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from specblock_zoo.adaptation.deployment import Deployment, Inline, Worker

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=["inline", "worker"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    made: Deployment = Inline() if request.param == "inline" else Worker(torch.device("cpu"))
    yield made
    made.close()


def test_outcomes_come_in_order(deployment: Deployment) -> None:
    for number in range(5):
        deployment.submit(f"job {number}", lambda number=number: number)
    deployment.drain()
    outcomes = deployment.poll()
    assert [(each.name, each.result, each.error) for each in outcomes] == [(f"job {n}", n, None) for n in range(5)]
    assert deployment.poll() == []


def test_an_error_is_an_outcome_and_the_next_job_runs(deployment: Deployment) -> None:
    deployment.submit("bad", lambda: 1 / 0)
    deployment.submit("good", lambda: 1)
    deployment.drain()
    bad, good = deployment.poll()
    assert isinstance(bad.error, ZeroDivisionError)
    assert good.result == 1


def test_one_job_at_a_time(deployment: Deployment) -> None:
    running, most = [], []

    def job() -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.005)
        running.pop()

    threads = [threading.Thread(target=deployment.submit, args=("job", job)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deployment.drain()
    assert most == [1] * 4


def test_serving_waits_for_inline_updates_only() -> None:
    gate, worker = threading.Event(), Worker(torch.device("cpu"))
    worker.submit("slow", gate.wait)
    assert worker.poll() == []
    gate.set()
    worker.drain()
    assert worker.poll()[0].seconds == 0
    worker.close()
    inline = Inline()
    inline.submit("slow", lambda: time.sleep(0.01))
    assert inline.poll()[0].seconds >= 0.01


def test_jobs_handed_in_while_it_closes_are_run_after_those_before() -> None:
    gate, done, worker = threading.Event(), [], Worker(torch.device("cpu"))
    worker.submit("slow", lambda: (gate.wait(), done.append("slow")))
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not worker._closed:
        time.sleep(0.001)
    late = threading.Thread(target=worker.submit, args=("late", lambda: done.append("late")))
    late.start()
    gate.set()
    for each in (late, closing):
        each.join(timeout=20)
    worker.drain()
    assert done == ["slow", "late"] == [each.name for each in worker.poll()]


@pytest.mark.gpu
def test_a_worker_trains_on_a_stream_of_its_own() -> None:
    worker = Worker(torch.device("cuda"))
    worker.submit("job", lambda: torch.cuda.current_stream() == torch.cuda.default_stream())
    worker.drain()
    assert worker.poll()[0].result is False
    worker.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_worker_on_a_device_that_is_not_there_fails_at_once() -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        Worker(torch.device("cuda"))


def test_an_interrupted_job_has_an_outcome_too() -> None:
    """The stop button of a notebook; a job without one would count as under way for ever."""

    def job() -> None:
        raise KeyboardInterrupt

    closed = Worker(torch.device("cpu"))
    closed.close()
    for here in (Inline(), closed):
        with pytest.raises(KeyboardInterrupt):
            here.submit("interrupted", job)
        assert [(each.name, type(each.error)) for each in here.poll()] == [("interrupted", KeyboardInterrupt)]
