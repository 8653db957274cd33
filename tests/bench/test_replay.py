"""Streams arrive as described, every policy is asked, and an interrupted replay goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.bench.replay import RECORDS, STATES, QueryRecord, Replay, Segment, Stream, arrivals, asker
from specblock_zoo.bench.tasks import Prompt
from specblock_zoo.bench.timing import turn_order
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.base import Drafter
from tests.support.adapting import NEW, adaptive, plain_text, target
from tests.support.decoding import prompt_ids


def write_task(folder: Path, name: str, count: int) -> None:
    lines = [json.dumps({"id": f"{name}/{n}", "category": "c", "turns": [f"{n}"]}) for n in range(count)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    write_task(tmp_path, "one", 4)
    write_task(tmp_path, "two", 3)
    return tmp_path


def segments() -> list[Segment]:
    return [Segment("one", 4), Segment("two", 3)]


def test_a_sequence_sends_one_segment_after_the_other(tasks: Path) -> None:
    every = arrivals(Stream("s", segments(), passes=2), tasks)
    assert [each.task for each in every] == (["one"] * 4 + ["two"] * 3) * 2
    assert [each.number for each in every] == list(range(14))
    assert [each.turn for each in every] == [0] * 7 + [1] * 7
    assert len(arrivals(Stream("s", segments()), tasks, limit=2)) == 4


def test_a_mixed_stream_shuffles_each_pass_its_own_way(tasks: Path) -> None:
    every = [each.prompt.id for each in arrivals(Stream("s", segments(), "mixed", passes=2), tasks)]
    assert sorted(every[:7]) == sorted(every[7:])
    assert every[:7] != every[7:]
    assert every == [each.prompt.id for each in arrivals(Stream("s", segments(), "mixed", passes=2), tasks)]


@pytest.mark.parametrize("stream", [Stream("s"), Stream("s", segments(), passes=0)])
def test_empty_streams_are_refused(stream: Stream, tasks: Path) -> None:
    with pytest.raises(ConfigurationError, match="at least one"):
        arrivals(stream, tasks)


def ask(drafter: Drafter | None, prompt: Prompt) -> Tensor:
    answer = asker(target(), lambda text: prompt_ids(8, int(text) % 2), NEW)(drafter, prompt)
    assert torch.equal(answer, plain_text(int(prompt.turns[0]) % 2)[0, 8:])
    return answer


def replay_of(out: Path, save_every: int = 3) -> Replay:
    return Replay("s", {"plain": None, "always": adaptive(Action.HEAD)}, ask, out, save_every)


def test_every_prompt_is_recorded_under_every_policy_and_a_replay_goes_on(tasks: Path) -> None:
    every, out = arrivals(Stream("s", segments()), tasks), tasks / "out"
    first = replay_of(out)
    assert len(first.run(every[:5])) == 10
    second = replay_of(out)
    records = second.run(every[:6])
    assert [(each.number, each.policy) for each in records] == [
        (number, policy) for number in range(6) for policy in turn_order(["plain", "always"], number)
    ]
    adapted = second.drafters["always"]
    assert isinstance(adapted, AdaptiveDrafter)
    assert adapted.bandit.queries == 6, "three of the first run were saved, three are new"
    digests = {each.number: each.digest for each in records if each.policy == "plain"}
    assert all(each.digest == digests[each.number] for each in records)
    assert any(each.synced == "head" and each.update_seconds > 0 for each in records)
    assert all(each.rounds == each.committed for each in records if each.policy == "plain")
    assert len((out / RECORDS).read_text().splitlines()) == 12
    assert QueryRecord.model_validate_json((out / RECORDS).read_text().splitlines()[0]) == records[0]


def test_a_replay_killed_between_two_saves_goes_on_with_all_policies_at_the_same_question(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> Replay:
        return Replay("s", {"a": adaptive(Action.HEAD), "b": adaptive(Action.HEAD)}, ask, tasks / "out", save_every=2)

    every, saves, save = arrivals(Stream("s", segments()), tasks)[:5], [0], AdaptiveDrafter.save

    def dies_at_the_fourth(self: AdaptiveDrafter, folder: Path) -> None:
        saves[0] += 1
        if saves[0] == 4:
            raise KeyboardInterrupt
        save(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(AdaptiveDrafter, "save", dies_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            both().run(every)
    resumed = both()
    records = resumed.run(every)
    assert [(each.number, each.policy) for each in records] == [
        (number, policy) for number in range(5) for policy in turn_order(["a", "b"], number)
    ]
    assert [each.bandit.queries for each in resumed.drafters.values() if isinstance(each, AdaptiveDrafter)] == [5, 5]
    assert [folder.name for folder in (tasks / "out" / STATES).iterdir()] == ["4"], "older states are removed"


def test_nothing_is_timed_cold_and_no_drafter_learns_from_it(tasks: Path) -> None:
    asked: list[tuple[str, str]] = []
    adapted = adaptive(Action.HEAD)

    def note(drafter: Drafter | None, prompt: Prompt) -> Tensor:
        asked.append((type(drafter).__name__, prompt.id))
        return ask(drafter, prompt)

    every = arrivals(Stream("s", segments()), tasks)[:2]
    run = Replay("s", {"plain": None, "always": adapted}, note, tasks / "out")
    assert len(run.run(every)) == 4
    first = every[0].prompt.id
    assert asked[:2] == [("NoneType", first), ("SpecBlockDrafter", first)]
    assert len(asked) == 6
    assert adapted.bandit.queries == 2
    run.run(every)
    assert len(asked) == 12, "nothing was saved, so all is asked again"


def test_policies_take_turns() -> None:
    assert sorted(turn_order(["a", "b", "c"], number)[0] for number in range(3)) == ["a", "b", "c"]


def test_a_folder_of_another_replay_is_refused_and_left_alone(tasks: Path) -> None:
    every, out = arrivals(Stream("s", segments()), tasks), tasks / "out"
    run = Replay("s", {"plain": None}, lambda *_: torch.arange(3), out, save_every=1)
    run.run(every)
    before = (out / RECORDS).read_text()
    for other, named in (
        (replace(run, identity={"target": "another"}), "target is nothing there and another here"),
        (replace(run, drafters={"plain": None, "none": None}), "policies is"),
    ):
        with pytest.raises(ConfigurationError, match=named):
            other.run(every)
    with pytest.raises(ConfigurationError, match="what was asked is"):
        run.run(every[::-1])
    bench = tasks / "bench"
    bench.mkdir()
    (bench / RECORDS).write_text(before)
    with pytest.raises(ConfigurationError, match="not of a replay"):
        replace(run, out=bench).run(every)
    assert (bench / RECORDS).read_text() == (out / RECORDS).read_text() == before


def test_a_replay_that_was_killed_before_its_first_note_begins(tasks: Path) -> None:
    out = tasks / "out"
    out.mkdir()
    (out / RECORDS).write_text("")
    run = Replay("s", {"plain": None}, lambda *_: torch.arange(3), out)
    assert len(run.run(arrivals(Stream("s", segments()), tasks)[:2])) == 2
