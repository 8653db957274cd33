"""A drafter's results come from the run that measured it."""

import pytest

from specblock_zoo.bench.report import DRAFTED, summarize_run
from specblock_zoo.bench.results import behind, method_of, results_of
from specblock_zoo.errors import ConfigurationError
from tests.support.measured import NAME, prompt, record, run

RECORDS = [*prompt(), *prompt("code", 0, 1.7)]


def test_results_are_the_sums_of_the_greedy_records() -> None:
    found = results_of(run(), RECORDS, DRAFTED, NAME)
    assert (found.overall, found.tasks) == summarize_run(RECORDS)
    assert (found.drafter, found.target, found.sampled, found.version) == (NAME, "tiny", None, 2)
    sampled = [each.model_copy(update={"temperature": 1.0, "seconds": each.seconds}) for each in RECORDS]
    both = results_of(run(), [*RECORDS, *sampled], DRAFTED, NAME)
    assert both.overall == found.overall
    assert both.sampled == found.overall


def test_what_was_not_measured_is_explained() -> None:
    with pytest.raises(ConfigurationError, match="no greedy records of the method 'medusa'; its methods are plain"):
        results_of(run(), RECORDS, "medusa", NAME)
    assert method_of(run(), lambda name: name == NAME) == DRAFTED
    with pytest.raises(ConfigurationError, match=rf"it measured drafted \({NAME}"):
        method_of(run(), lambda name: False)


def test_the_method_that_drafts_as_the_drafter_ships_stands_for_it() -> None:
    modes = {"tuned": ("tree", {"max_nodes": 4}), "chain": ("chain", {}), "shipped": ("tree", {})}
    several = run(**{f"method {name}": {"mode": mode, "tree": tree} for name, (mode, tree) in modes.items()})
    found = several.model_copy(update={"drafters": dict.fromkeys(modes, NAME)})
    assert method_of(found, lambda name: name == NAME) == "shipped"
    without = found.model_copy(update={"drafters": {"tuned": NAME, "chain": NAME}})
    assert method_of(without, lambda name: name == NAME) == "tuned"


def test_the_records_behind_results_leave_other_drafters_out() -> None:
    other = record("medusa")
    lookup = record("lookup", kind="prompt_lookup")
    assert behind([*RECORDS, other, lookup], DRAFTED) == (*RECORDS, lookup)


def test_a_run_that_is_not_finished_has_no_results() -> None:
    with pytest.raises(ConfigurationError, match="plain has answered 1 of 2 questions"):
        results_of(run(), RECORDS[1:], DRAFTED, NAME)
    with pytest.raises(ConfigurationError, match="plain has answered 2 of 4 questions"):
        results_of(run(temperatures=[0.0, 1.0]), RECORDS, DRAFTED, NAME)


def test_results_name_every_commit_and_version_that_a_resumed_run_was_measured_with() -> None:
    later = [each.model_copy(update={"commit": "1" * 40, "versions": {"torch": "2.14.0"}}) for each in prompt("code")]
    made = results_of(run(), [*prompt(), *later], DRAFTED, NAME).provenance
    assert made.commit == f"{'0' * 40}, {'1' * 40}"
    assert made.versions == {"torch": "2.13.0, 2.14.0"}
