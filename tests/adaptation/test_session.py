"""Texts never depend on adaptation, and whatever goes wrong leaves the last good weights serving."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specblock_zoo.adaptation.drift import Fall, Moments
from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.settings import AdaptationConfig, memory_bound
from specblock_zoo.adaptation.updater import Update
from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.prepack import can_prepack, optimize_for_cpu
from specblock_zoo.models.base import Drafter
from tests.support.adapting import NEW, adaptive, ask, eager, plain_text, target
from tests.support.decoding import generate, prompt_ids, random_drafter

BOTH = (Action.HEAD, Action.FULL)


def snapshot(drafter: AdaptiveDrafter) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in drafter.serving.state_dict().items()}


def same(before: dict[str, torch.Tensor], drafter: AdaptiveDrafter) -> bool:
    return all(torch.equal(before[name], value) for name, value in drafter.serving.state_dict().items())


@pytest.mark.parametrize("action", BOTH)
def test_adapting_raises_the_accepted_length_and_keeps_the_text(action: Action) -> None:
    drafter = adaptive(action)
    taus = []
    for _ in range(10):
        ask(drafter)
        taus.append(drafter.last_stats.tau)
    assert drafter.bandit.events >= 2
    assert taus[-1] > taus[0]
    assert drafter.last_report.decision.reason in ("always", "filling")
    bound = memory_bound(drafter.settings, drafter.config)
    assert drafter.head_buffer.nbytes <= bound["head_buffer"]
    assert drafter.text_buffer.nbytes <= bound["text_buffer"]


def test_a_query_is_one_generate_call_in_inference_mode_too() -> None:
    drafter = adaptive(Action.HEAD)
    with torch.inference_mode():
        for _ in range(4):
            ask(drafter)
    assert drafter.bandit.queries == 4
    assert drafter.bandit.events >= 1


@pytest.mark.parametrize("deployment", ["inline", "worker"])
def test_threads_share_one_while_it_updates_and_swaps(deployment: str) -> None:
    drafter = adaptive(*BOTH, deployment=deployment, head_needed=4, text_needed=4)
    with ThreadPoolExecutor(max_workers=2) as threads:
        list(threads.map(lambda seed: ask(drafter, seed % 2), range(8)))
    drafter.close()
    assert drafter.bandit.queries == 8
    assert drafter.bandit.events >= 1
    assert drafter.bandit.pending is None


def test_a_swap_in_mid_query_waits_for_the_next() -> None:
    drafter = adaptive(Action.HEAD)
    for _ in range(3):
        ask(drafter)
    with drafter.query() as (drafting, _):
        before = drafting.lm_head.weight.clone()
        drafter._swap(drafter.updater.revert())
        assert torch.equal(drafting.lm_head.weight, before)
        drafting.last_stats = drafter.last_stats
        drafting.attach(target().get_input_embeddings().weight)
    assert not torch.equal(drafter.serving.lm_head.weight, before)


def test_a_query_that_began_before_a_swap_says_nothing_about_what_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = adaptive(Action.HEAD)
    for _ in range(3):
        ask(drafter)
    assert len(drafter.bandit.recent) == 3
    learn = drafter._learn

    def late(*answered: Any) -> None:
        drafter._swap(drafter.updater.revert())
        drafter.head_buffer.clear()
        learn(*answered)

    with monkeypatch.context() as patched:
        patched.setattr(drafter, "_learn", late)
        ask(drafter)
    assert drafter.bandit.queries == 4
    assert len(drafter.bandit.recent) == 3
    assert len(drafter.head_buffer) == 0, "states of a decoder that serves no more"
    ask(drafter)
    assert len(drafter.bandit.recent) == 4


def test_sampled_texts_are_those_of_the_seed() -> None:
    drafter = adaptive(*BOTH, head_needed=1, text_needed=4)
    for seed in range(4):
        texts = []
        for assistant in (None, drafter):
            torch.manual_seed(seed)
            options = {"do_sample": True, "assistant_model": assistant}
            texts.append((generate(target(), prompt_ids(8, seed), NEW, **options), torch.get_rng_state()))
        (plain, plain_state), (drafted, drafted_state) = texts
        assert torch.equal(plain, drafted)
        assert torch.equal(plain_state, drafted_state), "updates draw from generators of their own"
    assert drafter.bandit.events >= 1


def test_several_rows_are_one_query() -> None:
    drafter = adaptive(Action.HEAD)
    ids = torch.cat([prompt_ids(8, seed) for seed in (0, 1)])
    text = generate(target(), ids, NEW, assistant_model=drafter)
    assert torch.equal(text, torch.cat([plain_text(seed) for seed in (0, 1)]))
    assert drafter.bandit.queries == 1


@pytest.mark.parametrize("deployment", ["inline", "worker"])
def test_an_exception_in_the_updater_leaves_the_weights(
    deployment: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = adaptive(Action.HEAD, deployment=deployment)
    before = snapshot(drafter)
    descend = drafter.updater._descend
    monkeypatch.setattr(drafter.updater, "_descend", lambda *data: descend(*data) and 1 / 0)
    for _ in range(4):
        ask(drafter)
    drafter.close()
    assert same(before, drafter)
    assert drafter.bandit.events == 0
    assert drafter.bandit.pending is None
    assert "the last weights go on serving" in caplog.text


def test_a_loss_that_is_no_number_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = adaptive(Action.HEAD)
    before = snapshot(drafter)
    descend = drafter.updater._descend
    monkeypatch.setattr(drafter.updater, "_descend", lambda *data: [*descend(*data), float("nan")])
    for _ in range(3):
        ask(drafter)
    assert same(before, drafter)
    assert drafter.bandit.events == 0


def test_a_mistake_while_learning_costs_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = adaptive(Action.HEAD)
    monkeypatch.setattr(drafter.head_buffer, "add", lambda _: 1 / 0)
    ask(drafter)
    assert "nothing was learned from this query" in caplog.text


def test_frozen_drafters_stay_and_thawed_ones_learn() -> None:
    drafter = adaptive(Action.HEAD)
    drafter.freeze()
    before = snapshot(drafter)
    for _ in range(3):
        ask(drafter)
    assert same(before, drafter)
    assert len(drafter.head_buffer) == 0
    drafter.thaw()
    for _ in range(3):
        ask(drafter)
    assert not same(before, drafter)


def test_a_shift_leaves_the_new_traffics_slots_alone_in_the_buffer() -> None:
    drafter = adaptive(Action.HEAD, head_needed=10**6, alert_needed=10**6)
    for _ in range(3):
        ask(drafter)
    before = len(drafter.head_buffer)
    # The level of another traffic, and a fall one step from an alarm.
    drafter.bandit = replace(drafter.bandit, fall=Fall(Moments(count=20, mean_x=9.0, var_x=0.01), 4.9, 0))
    ask(drafter, 1)
    assert drafter.last_report.decision.shift == 3
    assert drafter.bandit.alert == drafter.settings.bandit.alert
    assert 0 < len(drafter.head_buffer) < before


def test_on_the_alert_a_smaller_buffer_is_enough_and_taught_for_longer() -> None:
    drafter = adaptive(Action.HEAD, head_needed=10**6, alert_needed=1, alert_steps=20)
    ask(drafter)
    assert drafter.bandit.events == 0
    drafter.bandit = replace(drafter.bandit, alert=2)
    taken: list[Update] = []
    update = drafter.updater.update
    drafter.updater.update = lambda *args: taken.append(update(*args)) or taken[-1]
    ask(drafter)
    assert drafter.bandit.events == 1
    assert len(taken[0].losses) >= 20


def test_rolling_back_by_hand() -> None:
    drafter = adaptive(Action.HEAD)
    before = snapshot(drafter)
    for _ in range(3):
        ask(drafter)
    assert not same(before, drafter)
    drafter.rollback()
    assert same(before, drafter)
    assert len(drafter.head_buffer) == 0
    ask(drafter)


def test_the_state_is_saved_after_an_update_and_a_full_disk_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = adaptive(Action.HEAD, folder=str(tmp_path / "state"))
    for _ in range(3):
        ask(drafter)
    other = adaptive(Action.HEAD)
    other.restore(tmp_path / "state")
    assert other.bandit.events == drafter.bandit.events
    assert same(snapshot(other), drafter)

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specblock_zoo.adaptation.saving.write_tensors", no_space)
    events = drafter.bandit.events
    for _ in range(3):
        ask(drafter)
    assert drafter.bandit.events > events
    assert "could not be saved" in caplog.text
    another = adaptive(Action.HEAD)
    another.restore(tmp_path / "state")
    assert another.bandit.events == events


@pytest.mark.parametrize("deployment", ["inline", "worker"])
def test_nothing_is_saved_while_an_update_trains(
    deployment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another query's update may begin whenever the saving thread looks away."""
    drafter = adaptive(Action.HEAD, deployment=deployment)
    training, over, seen = threading.Event(), threading.Event(), []

    def update() -> None:
        training.set()
        over.wait(10)
        training.clear()

    drain = drafter._deployment.drain

    def drain_and_lose_the_race() -> None:
        drain()
        threads.append(threading.Thread(target=drafter._deployment.submit, args=("keep", update)))
        threads[-1].start()
        training.wait(10)

    def save(*_: object) -> None:
        seen.append(training.is_set())
        over.set()

    threads: list[threading.Thread] = []
    monkeypatch.setattr(drafter._deployment, "drain", drain_and_lose_the_race)
    monkeypatch.setattr("specblock_zoo.adaptation.saving.save", save)
    drafter.save(tmp_path)
    for each in threads:
        each.join()
    assert seen == [False]
    monkeypatch.undo()
    drafter.close()


def test_queries_go_on_while_a_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = adaptive(Action.HEAD, head_needed=10**6)
    writing, over = threading.Event(), threading.Event()

    def write(*_: object) -> None:
        writing.set()
        assert over.wait(20)

    monkeypatch.setattr("specblock_zoo.adaptation.saving.save", write)
    saver = threading.Thread(target=drafter.save, args=(tmp_path,))
    saver.start()
    assert writing.wait(20)
    asker = threading.Thread(target=ask, args=(drafter,), daemon=True)
    asker.start()
    asker.join(20)
    answered = drafter.bandit.queries
    over.set()
    saver.join()
    assert answered == 1


def test_a_closed_worker_leaves_everything_usable(tmp_path: Path) -> None:
    drafter = adaptive(Action.HEAD, deployment="worker")
    drafter.close()
    ask(drafter)
    drafter.save(tmp_path)
    drafter.restore(tmp_path)
    drafter.rollback()
    drafter.close()
    ask(drafter)


@pytest.mark.skipif(not can_prepack(), reason="this torch build has no oneDNN operators")
def test_packed_weights_serve_and_learn() -> None:
    drafter = adaptive(*BOTH, prepack=True)
    for _ in range(4):
        ask(drafter)
    assert drafter.bandit.events >= 1
    packed = optimize_for_cpu(random_drafter(target()))
    with pytest.raises(UnsupportedOptionError, match="packed weights"):
        AdaptiveDrafter(packed, eager())


def test_other_drafters_are_refused() -> None:
    class Other(Drafter):
        extend = branch = target_tokens = None

    with pytest.raises(UnsupportedOptionError, match="Cannot adapt a Other"):
        AdaptiveDrafter(Other())


def test_the_default_waits_for_its_warm_up() -> None:
    drafter = AdaptiveDrafter(random_drafter(target()), AdaptationConfig(head_needed=1, text_needed=1))
    ask(drafter)
    assert drafter.last_report.decision.reason == "warm-up"
    assert drafter.is_attached is drafter.serving.is_attached


@pytest.mark.gpu
def test_a_second_device_trains() -> None:
    if torch.cuda.device_count() < 1:
        pytest.skip("needs an accelerator")
    drafter = adaptive(Action.HEAD, deployment="worker", train_device="cuda:0")
    for _ in range(6):
        ask(drafter)
        drafter._settle()
    assert drafter.bandit.events >= 1
    assert drafter.serving.device.type == "cpu"
    drafter.close()


def test_keeping_saving_and_taking_back_cost_time_that_the_bandit_knows(tmp_path: Path) -> None:
    drafter = adaptive(Action.HEAD, folder=str(tmp_path))
    reported = 0.0
    for seed in range(8):
        ask(drafter, seed)
        reported += drafter.last_report.update_seconds
    before = drafter.bandit.spent
    assert before == pytest.approx(reported)
    drafter.rollback()
    assert drafter.bandit.spent > before


def test_an_interrupted_update_is_dropped_and_learning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = adaptive(Action.HEAD)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = snapshot(drafter)
    with monkeypatch.context() as patch:
        patch.setattr(drafter.updater, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(map(ask, 10 * [drafter]))
    for _ in range(20):
        ask(drafter)
    assert drafter.updater.updates > 0
    assert not same(before, drafter)


def test_strictness_is_the_drafters() -> None:
    plain = random_drafter(target())
    plain.strict = True
    assert AdaptiveDrafter(plain).strict
    assert not AdaptiveDrafter(random_drafter(target())).strict
