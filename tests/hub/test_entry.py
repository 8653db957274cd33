"""Zoo entries are strict: a wrong name, type, field or file is refused, and says why."""

from pathlib import Path

import pytest
import yaml

from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.hub.entry import (
    ENTRY_FILE,
    ENTRY_VERSION,
    NameParts,
    hash_files,
    parse_name,
    read_entry,
    verify_files,
    write_entry,
)
from tests.support.measured import entry


def rewrite(folder: Path, **changes: object) -> None:
    path = write_entry(entry(), folder)
    fields = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({name: value for name, value in fields.items() if value is not None}))


def test_an_entry_survives_the_disk(tmp_path: Path) -> None:
    write_entry(entry(), tmp_path)
    assert read_entry(tmp_path) == entry()
    assert [path.name for path in tmp_path.iterdir()] == [ENTRY_FILE]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("specblock-smollm2-135m.k4m1-v1", NameParts("smollm2-135m", 4, 1, "v1")),
        ("specblock-llama-3.1-8b.k4m2-published", NameParts("llama-3.1-8b", 4, 2, "published")),
        ("specblock-qwen3-8b.k12m3-v10", NameParts("qwen3-8b", 12, 3, "v10")),
        ("specblock-smollm2-135m.eagle3-v1", NameParts("smollm2-135m", None, None, "v1", "eagle3")),
    ],
)
def test_names_are_taken_apart(name: str, parts: NameParts) -> None:
    assert parse_name(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "",
        "smollm2.k4m1-v1",
        "specblock-smollm2",
        "specblock-.k4m1-v1",
        "specblock-A.k4m1-v1",
        "specblock-a.k4m1",
        "specblock-a.k4m1-v1/x",
    ],
)
def test_names_against_the_grammar_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a zoo name"):
        parse_name(name)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"remark": "x"}, "remark: Extra inputs are not permitted"),
        ({"licence": None}, "licence: Field required"),
        ({"block_width": "4"}, r"block_width: .*integer \(found '4'\)"),
        ({"block_width": 5}, r"states .*'tiny', 4, 2.*the fields \('tiny', 5, 2\)"),
        ({"name": "specblock-other.k4m2-v1"}, "'other', 4, 2"),
        ({"name": "tiny"}, "not a zoo name"),
        ({"kind": "eagle3"}, r"states \(target, kind\) .*'specblock'.*the fields .*'eagle3'"),
        ({"name": "specblock-tiny.eagle3-v1"}, r"'eagle3'.*the fields .*'specblock'"),
        ({"kind": "nothing"}, "known: specblock"),
        ({"status": "lost"}, "status"),
        ({"files": {"model.safetensors": "abc"}}, "files.model.safetensors"),
        ({"training": None}, "'trained' needs training"),
        ({"status": "published", "training": None}, "'published' needs repository"),
        ({"draft_vocabulary": {"size": 10, "coverage": 1.2}}, "coverage"),
        ({"tap_layers": [-1]}, "tap_layers"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    rewrite(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=problem):
        read_entry(tmp_path)


def test_a_baseline_is_named_after_its_kind(tmp_path: Path) -> None:
    rewrite(tmp_path, name="specblock-tiny.eagle3-v1", kind="eagle3", block_width=1)
    found = read_entry(tmp_path)
    assert (found.kind, found.block_width) == ("eagle3", 1)
    assert entry().kind == "specblock"


def test_a_recipe_needs_a_plan_and_no_weights(tmp_path: Path) -> None:
    rewrite(tmp_path, status="recipe", training=None, files=None, draft_vocabulary=None, plan="Train it.")
    assert read_entry(tmp_path).training is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"plan": None}, "'recipe' needs plan"),
        ({"training": entry().model_dump(mode="json")["training"]}, "no training of ours"),
        ({"files": {"model.safetensors": "0" * 64}}, r"no weights, but files lists model\.safetensors"),
    ],
)
def test_nothing_untrained_is_presented_as_trained(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    rewrite(tmp_path, **{"status": "recipe", "plan": "Train it.", "training": None, "files": None, **changes})
    with pytest.raises(ConfigurationError, match=problem):
        read_entry(tmp_path)


@pytest.mark.parametrize(("version", "hint"), [(None, "seal_entry"), (1, "seal_entry"), (3, "Upgrade specblock-zoo")])
def test_another_schema_version_is_named_with_the_way_out(tmp_path: Path, version: int | None, hint: str) -> None:
    rewrite(tmp_path, entry_version=version)
    with pytest.raises(ConfigurationError, match=f"version {version or 1} .*reads version 2.*{hint}"):
        read_entry(tmp_path)


def test_listed_files_stay_inside_the_folder(tmp_path: Path) -> None:
    rewrite(tmp_path, files={"../config.json": "0" * 64})
    with pytest.raises(ConfigurationError, match="files"):
        read_entry(tmp_path)


def test_unreadable_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"has no entry\.yaml"):
        read_entry(tmp_path)
    (tmp_path / ENTRY_FILE).write_text("a: [1")
    with pytest.raises(ConfigurationError, match="not YAML"):
        read_entry(tmp_path)
    (tmp_path / ENTRY_FILE).write_text("- just\n- a list\n")
    with pytest.raises(ConfigurationError, match="entry"):
        read_entry(tmp_path)


def test_changed_and_absent_files_are_found_by_their_hash(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    listed = entry(tmp_path)
    verify_files(listed, tmp_path)
    weights.write_bytes(b"weight")
    found, expected = (
        hash_files(tmp_path, ("model.safetensors",))["model.safetensors"],
        listed.files["model.safetensors"],
    )
    with pytest.raises(WeightsMismatchError, match=f"{found[:12]}.*{expected[:12]}"):
        verify_files(listed, tmp_path)
    weights.unlink()
    with pytest.raises(WeightsMismatchError, match=r"lacks model\.safetensors"):
        verify_files(listed, tmp_path)


def test_a_strangers_entry_does_not_hang_the_reader(tmp_path: Path) -> None:
    laughs = [f"entry_version: {ENTRY_VERSION}", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    laughs += [f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]" for n in range(1, 9)]
    (tmp_path / ENTRY_FILE).write_text("\n".join(laughs))
    with pytest.raises(ConfigurationError, match="aliases are not taken"):
        read_entry(tmp_path)
    (tmp_path / ENTRY_FILE).write_text("# " + 100_000 * "x")
    with pytest.raises(ConfigurationError, match=r"^\S+entry.yaml has more than 100,000 bytes"):
        read_entry(tmp_path)
    for text in (20_000 * "[", "name: 2001-99-99"):
        (tmp_path / ENTRY_FILE).write_text(text)
        with pytest.raises(ConfigurationError, match="not YAML"):
            read_entry(tmp_path)
    (tmp_path / ENTRY_FILE).write_text(f"entry_version: {ENTRY_VERSION}\nname: !!binary /w==")
    with pytest.raises(ConfigurationError, match="text, numbers and lists"):
        read_entry(tmp_path)
    (tmp_path / ENTRY_FILE).write_bytes("name: Stra\u00dfe".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="not YAML"):
        read_entry(tmp_path)
