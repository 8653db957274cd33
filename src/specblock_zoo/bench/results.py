"""From a run to the `results.json` of one drafter."""

from collections.abc import Callable

from specblock_zoo.bench.folder import Run, provenance_of
from specblock_zoo.bench.records import AnswerRecord, Results
from specblock_zoo.bench.report import BASELINE_KINDS, PROMPT_LOOKUP_KIND, Records, of_method, summarize_run
from specblock_zoo.errors import ConfigurationError


def method_of(run: Run, is_drafter: Callable[[str], bool]) -> str:
    """The method of a run that stands for a drafter: as it ships, else the first one it took part in.

    Args:
        is_drafter: whether a name or folder of the run's configuration means that drafter.
    Raises:
        ConfigurationError: no method did.
    """
    own = [method for method, drafter in run.drafters.items() if is_drafter(drafter)]
    if own:
        return next((method for method in own if _as_shipped(run, method)), own[0])
    measured = ", ".join(f"{method} ({drafter})" for method, drafter in run.drafters.items()) or "none"
    raise ConfigurationError(f"The run did not measure this drafter; it measured {measured}.", "Name one of these.")


def _as_shipped(run: Run, method: str) -> bool:
    """Whether a method drafts whole trees by the drafter's own settings."""
    facts = run.identity.get(f"method {method}", {})
    return facts.get("mode") == "tree" and not facts.get("tree")


def behind(records: Records, method: str) -> tuple[AnswerRecord, ...]:
    """The records that a method's results are made of: its own, and those it is compared with."""
    kinds = (*BASELINE_KINDS, PROMPT_LOOKUP_KIND)
    return tuple(record for record in records if record.method == method or record.kind in kinds)


def results_of(run: Run, records: Records, method: str, drafter: str) -> Results:
    """The results of a drafter.

    Args:
        run, records: of a run.
        method: the method that stands for the drafter.
        drafter: the drafter's name in the zoo.
    Raises:
        ConfigurationError: the method is not in the run, nothing was measured greedily, or the run is not finished.
    """
    greedy = [record for record in records if record.temperature == 0]
    sampled = [record for record in records if record.temperature == 1]
    if not any(record.method == method for record in greedy):
        raise ConfigurationError(
            f"The run has no greedy records of the method {method!r}; its methods are {', '.join(run.methods)}.",
            "Name one of them, or run it at temperature 0.",
        )
    check_finished(run, records, method)
    overall, tasks = summarize_run(greedy, method, seed=run.provenance.seed)
    drawn = any(record.method == method for record in sampled)
    return Results(
        drafter=drafter,
        target=run.target,
        provenance=provenance_of(run, behind(records, method)),
        overall=overall,
        tasks=tasks,
        sampled=summarize_run(sampled, method, seed=run.provenance.seed)[0] if drawn else None,
        version=2,
    )


def check_finished(run: Run, records: Records, method: str) -> None:
    """Raises `ConfigurationError` unless a method, and what it is compared with, has answered every question."""
    compared = [name for name, kind in run.methods.items() if kind in (*BASELINE_KINDS, PROMPT_LOOKUP_KIND)]
    for name in (*compared, method):
        answered = len(of_method(records, name))
        if answered < run.places:
            raise ConfigurationError(
                f"The run is not finished: {name} has answered {answered} of {run.places} questions.",
                "Call `specblock bench` with the same configuration and folder again; it goes on where it was.",
            )
