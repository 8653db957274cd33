"""Cards generated from `entry.yaml` and `results.json`: a drafter's README, the zoo's table, the framework's card."""

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from specblock_zoo.bench.records import Ratio, Results, TaskResult, read_results
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.entry import Training, ZooEntry
from specblock_zoo.hub.plot import PLOT_FILE, results_svg
from specblock_zoo.hub.zoo import list_entries, zoo_folder
from specblock_zoo.models.registry import DRAFTERS, kind_of
from specblock_zoo.targets.local import EMBEDDED_TARGETS

TEMPLATE = Path(__file__).with_name("card.md.jinja")
FRAMEWORK_TEMPLATE = Path(__file__).with_name("framework.md.jinja")
TAGS = ("speculative-decoding", "draft-model")
LIBRARY = "specblock-zoo"
HUB_LICENCES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "bsd-3-clause", "llama3.1"}
"""Licence identifiers of the Hub that we write as such; any other goes under `other`, with its name."""
OTHER_LICENCE = "other"
BLOCK_BEGIN, BLOCK_END = "<!-- results:begin -->", "<!-- results:end -->"


@dataclass(frozen=True)
class MeasuredEntry:
    """A zoo entry and its results, none before it was measured."""

    entry: ZooEntry
    results: Results | None


def measured_entries(zoo: Path | None = None) -> tuple[MeasuredEntry, ...]:
    """Every entry of the zoo with its results, by name; arguments and errors as `zoo.list_entries`."""
    folder = zoo or zoo_folder()
    return tuple(MeasuredEntry(entry, read_results(folder / entry.name)) for entry in list_entries(zoo))


def eval_results(results: Results) -> list[EvalResult]:
    """Accepted length and speedup of each task, in the Hub's evaluation format."""

    def metric(task: TaskResult, kind: str, name: str, value: float) -> EvalResult:
        return EvalResult(
            task_type="text-generation",
            dataset_type=task.task,
            dataset_name=task.task,
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 3),
        )

    return [
        measured
        for task in results.tasks
        for measured in (
            metric(task, "accepted_length", "tau (committed tokens per round)", task.tau or 1.0),
            metric(task, "speedup", f"speedup over plain decoding ({results.provenance.dtype})", task.speedup.median),
        )
    ]


def card_data(measured: MeasuredEntry) -> ModelCardData:
    """The card's metadata block."""
    entry, results = measured.entry, measured.results
    return ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="text-generation",
        base_model=entry.target.repository,
        license=licence_identifier(entry.licence),
        # Written into the metadata beside `license: other` only.
        license_name=None if licence_identifier(entry.licence) != OTHER_LICENCE else entry.licence,
        language="en",
        tags=[*TAGS, entry.kind],
        model_name=entry.name,
        eval_results=eval_results(results) if results else None,
    )


def overlap_sentence(training: Training | None) -> str:
    """What is known of evaluation prompts among the training text; empty where there was no training of ours."""
    if training is None:
        return ""
    found = training.overlap
    if found is None:
        return "Whether evaluation prompts are among the training text was not checked; `specblock overlap` does that."
    shared = f"{found.shared or 'None'} of {found.records:,} training records"
    if found.shared:
        shared += ", which were left out," if found.left_out else ", which were trained on,"
    return (
        f"{shared} share a run of {found.words} words with one of {found.prompts:,} prompts of "
        f"{', '.join(found.tasks)}, or contain a shorter one whole (`specblock overlap`)."
    )


def licence_identifier(licence: str) -> str:
    """The Hub's identifier of a licence, or `other`."""
    return licence.lower() if licence.lower() in HUB_LICENCES else OTHER_LICENCE


def drafter_card(measured: MeasuredEntry, source: str | None = None) -> ModelCard:
    """The README of one drafter, from the packaged template.

    Args:
        source: what the usage snippet loads; default the entry's zoo name.
    """
    target = measured.entry.target
    card: ModelCard = ModelCard.from_template(
        card_data(measured),
        template_path=str(TEMPLATE),
        entry=measured.entry,
        kind=kind_of(measured.entry.kind),
        results=measured.results,
        training=measured.entry.training,
        overlap=overlap_sentence(measured.entry.training),
        rows=task_rows(measured.results),
        source=source or measured.entry.name,
        target=target.name if target.name in EMBEDDED_TARGETS else target.repository,
    )
    return card


def framework_card(entries: tuple[MeasuredEntry, ...]) -> ModelCard:
    """The framework's own card (`MODEL_CARD.md`): every drafter of the zoo, its data and its numbers."""
    data = ModelCardData(
        library_name=LIBRARY,
        pipeline_tag="text-generation",
        license="apache-2.0",
        tags=[*TAGS, *DRAFTERS],
        base_model=sorted({measured.entry.target.repository for measured in entries}) or None,
        model_name=LIBRARY,
    )
    card: ModelCard = ModelCard.from_template(
        data,
        template_path=str(FRAMEWORK_TEMPLATE),
        entries=entries,
        table=zoo_table(entries),
        sources=source_rows(entries),
    )
    return card


def task_rows(results: Results | None) -> list[str]:
    """Markdown table rows of the tasks and the overall line; empty before a measurement."""
    if results is None:
        return []
    return [_task_row(task) for task in (*results.tasks, results.overall)]


def _task_row(task: TaskResult) -> str:
    cells = (
        task.task,
        str(task.prompts),
        f"{task.equal}/{task.prompts}",
        number(task.tau),
        f"{number(task.tau_without_loops)} ({task.loop_share:.0%})",
        interval(task.speedup),
        interval(task.prompt_lookup_speedup),
        f"{task.draft_share:.0%}",
        f"{task.draft_ms:.1f} / {task.verify_ms:.1f} / {task.other_ms:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Two decimals, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def interval(ratio: Ratio | None) -> str:
    """Median and interval, e.g. `1.31 [1.25, 1.40]`, or a dash."""
    return "-" if ratio is None else f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def zoo_table(entries: tuple[MeasuredEntry, ...]) -> str:
    """Markdown table of the zoo, one line per entry."""
    if not entries:
        return "No drafter yet.\n"
    head = (
        "| drafter | target | status | tau | speedup [95 %] | equal to plain | measured in |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(_zoo_row(measured) for measured in entries)


def _zoo_row(measured: MeasuredEntry) -> str:
    name, *cells = zoo_cells(measured)
    return f"| {' | '.join((f'`{name}`', *cells))} |\n"


def zoo_cells(measured: MeasuredEntry) -> list[str]:
    """One line of the zoo's table: name, target, status, tau, speedup, answers equal to plain, device."""
    entry, results = measured.entry, measured.results
    cells = [entry.name, entry.target.repository, entry.status]
    if results is None:
        cells += [reported_cell(entry, "tau"), reported_cell(entry, "speedup"), "-", "not measured here"]
    else:
        task, made = results.overall, results.provenance
        cells += [
            number(task.tau),
            interval(task.speedup),
            f"{task.equal}/{task.prompts}",
            f"{made.dtype}, {made.threads} threads, {made.device}",
        ]
    return cells


def reported_cell(entry: ZooEntry, figure: str) -> str:
    """Somebody else's number, marked as such, or a dash."""
    found = next((reported for reported in entry.reported if reported.figure == figure), None)
    return "-" if found is None else f"{found.value:g} (reported by {found.source})"


def source_rows(entries: tuple[MeasuredEntry, ...]) -> list[str]:
    """Markdown rows of all training sources: drafter, source, licence, answer tokens."""
    return [
        f"| `{measured.entry.name}` | {source.name} | {source.licence} | {source.tokens:,} |"
        for measured in entries
        if measured.entry.training
        for source in measured.entry.training.data
    ]


def replace_block(document: str, block: str) -> str:
    """`document` with the text between the results markers replaced by `block`.

    Raises:
        ConfigurationError: the markers are not both there, once, in order.
    """
    before, begin, rest = document.partition(BLOCK_BEGIN)
    _, end, after = rest.partition(BLOCK_END)
    if not (begin and end) or BLOCK_BEGIN in after:
        raise ConfigurationError(
            f"The document has {document.count(BLOCK_BEGIN)} begin and {document.count(BLOCK_END)} end markers; "
            "expected one pair.",
            f"Put {BLOCK_BEGIN} and {BLOCK_END} around the generated part.",
        )
    return f"{before}{BLOCK_BEGIN}\n{block.strip()}\n{BLOCK_END}{after}"


def generated_documents(root: Path) -> dict[Path, str]:
    """Every document below `root` (a checkout) that is generated from the zoo -> what it must say.

    These are each entry's `README.md` and picture, `MODEL_CARD.md`, and the results block of `README.md`.
    """
    entries = measured_entries(root / "zoo")
    documents = {root / "zoo" / m.entry.name / "README.md": card_text(drafter_card(m)) for m in entries}
    documents |= {root / "zoo" / m.entry.name / PLOT_FILE: results_svg(m.results) for m in entries if m.results}
    documents[root / "MODEL_CARD.md"] = card_text(framework_card(entries))
    readme = root / "README.md"
    documents[readme] = replace_block(readme.read_text(encoding="utf-8"), zoo_table(entries))
    return documents


def card_text(card: ModelCard) -> str:
    """A card as its file says it."""
    return str(card).rstrip() + "\n"


def stale_documents(root: Path) -> list[Path]:
    """Generated documents that are absent or no longer say what the zoo says."""
    return [
        path
        for path, expected in generated_documents(root).items()
        if not path.is_file() or path.read_text(encoding="utf-8") != expected
    ]
