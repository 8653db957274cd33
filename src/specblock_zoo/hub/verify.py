"""Is a zoo entry what it says? Hashes, configuration, every tensor's name and shape, vocabulary map, results."""

from dataclasses import dataclass
from pathlib import Path

from specblock_zoo.bench.records import Results, read_results
from specblock_zoo.errors import ConfigurationError, SpecBlockError
from specblock_zoo.functional.vocab import check_vocab_map
from specblock_zoo.hub.entry import ZooEntry, verify_files
from specblock_zoo.models.configuration import DrafterConfig
from specblock_zoo.models.folders import check_shapes, read_named, read_shapes, weight_files
from specblock_zoo.models.pretrained import shapes_of, skeleton
from specblock_zoo.models.registry import kind_of, kind_of_folder


@dataclass(frozen=True)
class Verdict:
    """What was checked of one entry, and the first thing found wrong, if any."""

    name: str
    checked: tuple[str, ...]
    fault: SpecBlockError | None = None


def verify(entry: ZooEntry, folder: Path) -> Verdict:
    """Checks the files beside an entry; nothing is downloaded and no weight is loaded."""
    checked: list[str] = ["entry"]
    try:
        verify_files(entry, folder)
        checked += ["hashes"] * bool(entry.files)
        if (folder / "config.json").is_file():
            config: DrafterConfig = kind_of_folder(folder).config.from_pretrained(folder)
            check_config(entry, config)
            checked.append("configuration")
            if any(name.endswith(".safetensors") for name in entry.files):
                check_tensors(config, folder)
                checked += ["tensors", "vocabulary"]
        results = read_results(folder)
        if results is not None:
            check_results(entry, results)
            checked.append("results")
    except SpecBlockError as fault:
        return Verdict(entry.name, tuple(checked), fault)
    return Verdict(entry.name, tuple(checked))


def check_config(entry: ZooEntry, config: DrafterConfig) -> None:
    """Raises `ConfigurationError` when entry and `config.json` disagree, naming both values."""
    stated = {
        "kind": entry.kind,
        "block_width": entry.block_width,
        "num_blocks": entry.num_blocks,
        "tap_layers": entry.tap_layers,
        "draft_vocabulary.size": entry.draft_vocabulary.size if entry.draft_vocabulary else config.draft_vocab_size,
    }
    actual = {
        "kind": config.model_type,
        "block_width": config.block_width,
        "num_blocks": config.num_blocks,
        "tap_layers": tuple(config.tap_layers),
        "draft_vocabulary.size": config.draft_vocab_size,
    }
    for field, value in stated.items():
        if value != actual[field]:
            raise ConfigurationError(
                f"{entry.name}: the entry says {field} {value}, config.json {actual[field]}.",
                "Seal the entry again: scripts/seal_entry.py.",
            )


def check_tensors(config: DrafterConfig, folder: Path) -> None:
    """Raises `WeightsMismatchError` or `VocabularyMismatchError`; reads headers and the two vocabulary tables only."""
    check_shapes(shapes_of(skeleton(kind_of(config.model_type).model, config)), read_shapes(folder), folder)
    tables = read_named(weight_files(folder), ("d2t", "t2d"))
    check_vocab_map(tables["d2t"], tables["t2d"], config.vocab_size)


def check_results(entry: ZooEntry, results: Results) -> None:
    """Raises `ConfigurationError` for numbers of another drafter, or measured numbers of weights that are not here."""
    if results.drafter != entry.name:
        raise ConfigurationError(
            f"{entry.name}: results.json was measured with {results.drafter}.", "Measure this drafter again."
        )
    if entry.status == "recipe":
        raise ConfigurationError(
            f"{entry.name}: results.json lies beside a recipe, which has no weights.", "Remove it, or add the weights."
        )
