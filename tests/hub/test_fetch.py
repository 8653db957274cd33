"""Drafters come from a Hub over real HTTP, and every way that can fail is explained and leaves the cache clean."""

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModel

from specblock_zoo.errors import AccessError, HubError, UnknownNameError, UnsupportedOptionError, WeightsMismatchError
from specblock_zoo.hub import fetch as module
from specblock_zoo.hub.entry import write_entry
from specblock_zoo.hub.fetch import fetch, is_repository
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.hub_server import TOKEN, Fault, Hub
from tests.support.measured import entry
from tests.support.tiny_pair import TinyFolders

REPO = "someone/drafter"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def listed(tmp_path: Path, tiny_folders: TinyFolders) -> dict[str, bytes]:
    """The files of a tiny drafter with an entry that lists their hashes."""
    folder = tmp_path / "listed"
    shutil.copytree(tiny_folders.drafter, folder)
    write_entry(entry(folder), folder)
    return files_of(folder)


def leftovers() -> list[str]:
    cache = Path(constants.HF_HUB_CACHE)
    return [path.name for path in cache.rglob("*") if path.name.endswith(".incomplete")]


@pytest.mark.parametrize(("name", "expected"), [("a/b", True), ("a.b/c_d-1", True), ("a", False), ("a/b/c", False)])
def test_a_repository_is_org_slash_name(name: str, expected: bool) -> None:
    assert is_repository(name) is expected
    assert not is_repository(f"./{name}")


def test_a_repository_loads_like_its_folder(hub: Hub, listed: dict[str, bytes], tiny_folders: TinyFolders) -> None:
    hub.add(REPO, listed)
    loaded, local = (SpecBlockDrafter.from_pretrained(place) for place in (REPO, tiny_folders.drafter))
    torch.testing.assert_close(loaded.state_dict(), local.state_dict(), rtol=0, atol=0)
    assert loaded.name_or_path == REPO
    requests = len(hub.log)
    AutoModel.from_pretrained(REPO)
    assert all(method == "HEAD" or "/api/" in path for method, path, _ in hub.log[requests:]), "nothing fetched twice"


def test_a_revision_is_a_tag_a_branch_or_a_commit(hub: Hub, listed: dict[str, bytes]) -> None:
    repository = hub.add(REPO, listed)
    first = repository.refs["main"]
    repository.tags["v1"] = first
    config = {**json.loads(listed["config.json"]), "num_blocks": 3}
    repository.commit({"config.json": json.dumps(config).encode(), "model.safetensors": listed["model.safetensors"]})
    found = {name: SpecBlockDrafter.from_pretrained(REPO, revision=name).config.num_blocks for name in ("v1", first)}
    assert found == {"v1": 2, first: 2}
    assert SpecBlockDrafter.from_pretrained(REPO, revision="main").config.num_blocks == 3
    with pytest.raises(UnknownNameError, match="no revision 'v9'"):
        SpecBlockDrafter.from_pretrained(REPO, revision="v9")


def test_what_is_in_the_cache_needs_no_hub(hub: Hub, listed: dict[str, bytes]) -> None:
    hub.add(REPO, listed)
    with pytest.raises(HubError, match="not in the local cache"):
        fetch(REPO, {"local_files_only": True})
    folder = fetch(REPO, {})
    asked = len(hub.log)
    assert fetch(REPO, {"local_files_only": True}) == folder
    assert len(hub.log) == asked


def test_offline_mode_takes_what_is_there_by_branch_and_by_tag(
    hub: Hub, listed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = hub.add(REPO, listed)
    repository.tags["v1"] = repository.refs["main"]
    online = [fetch(REPO, {"revision": revision}) for revision in ("main", "v1")]
    asked = len(hub.log)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert [fetch(REPO, {"revision": revision}) for revision in ("main", "v1")] == online
    assert len(hub.log) == asked
    with pytest.raises(HubError, match=r"someone/other is not in the local cache.*HF_HUB_OFFLINE"):
        fetch("someone/other", {})


def test_a_model_that_is_no_drafter_is_refused_before_its_weights_come(hub: Hub) -> None:
    hub.add(REPO, {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"x" * 1000})
    with pytest.raises(UnknownNameError, match=r"holds a 'llama' model; expected a drafter"):
        fetch(REPO, {})
    assert hub.count("GET", "model.safetensors") == 0


def test_pickled_weights_are_not_fetched_and_the_way_to_them_is_named(hub: Hub, listed: dict[str, bytes]) -> None:
    fields = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    hub.add(REPO, {"config.json": json.dumps(fields).encode(), "pytorch_model.bin": b"x" * 1000})
    with pytest.raises(UnsupportedOptionError, match=r"pytorch_model\.bin only") as refused:
        fetch(REPO, {})
    assert f"hf download {REPO} --revision " in refused.value.hint
    assert hub.count("GET", "pytorch_model.bin") == 0
    hub.add("someone/both", {**listed, "pytorch_model.bin": b"x" * 1000})
    assert (fetch("someone/both", {}) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("files", "problem"),
    [({}, "has no config.json"), ({"config.json": b"<html>"}, "is not JSON")],
    ids=["none", "html"],
)
def test_a_repository_without_a_configuration_is_refused(hub: Hub, files: dict[str, bytes], problem: str) -> None:
    hub.add(REPO, files)
    with pytest.raises(UnknownNameError, match=problem):
        fetch(REPO, {})


@pytest.mark.parametrize("name", [REPO, "someone/-bad-"])
def test_an_unknown_repository_is_explained(hub: Hub, name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"neither a folder nor a repository.*specblock zoo list"):
        fetch(name, {})


def test_a_gated_repository_says_how_to_get_in(hub: Hub, listed: dict[str, bytes]) -> None:
    hub.add(REPO, listed, gated=True)
    with pytest.raises(AccessError, match=rf"gated.*huggingface\.co/{REPO}.*hf auth login") as refused:
        fetch(REPO, {})
    assert TOKEN not in f"{refused.value}{refused.value.__cause__}"


def test_a_download_that_breaks_leaves_nothing_and_the_next_one_works(
    hub: Hub, listed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    hub.add(REPO, listed)
    hub.faults.append(Fault("model.safetensors", times=100, keep=500, method="GET"))
    with pytest.raises(HubError, match=REPO):
        fetch(REPO, {})
    assert leftovers() == []
    hub.faults.clear()
    assert (fetch(REPO, {}) / "model.safetensors").read_bytes() == listed["model.safetensors"]


@pytest.mark.skipif(huggingface_hub.__version__.startswith("1."), reason="this client does not repeat a listing")
def test_a_server_error_is_retried(hub: Hub, listed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    hub.add(REPO, listed)
    hub.faults.append(Fault("/tree/", status=500))
    assert (fetch(REPO, {}) / "config.json").is_file()
    assert [status for _, path, status in hub.log if "/tree/" in path] == [500, 200]


def test_a_file_with_the_wrong_hash_is_removed_again(hub: Hub, listed: dict[str, bytes]) -> None:
    good = listed["model.safetensors"]
    repository = hub.add(REPO, {**listed, "model.safetensors": good[:-1] + bytes([good[-1] ^ 1])})
    with pytest.raises(WeightsMismatchError, match="SHA-256"):
        fetch(REPO, {})
    cache = Path(constants.HF_HUB_CACHE)
    assert not [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size == len(good)]
    repository.commit(listed)
    assert (fetch(REPO, {}) / "model.safetensors").read_bytes() == good


def test_every_failure_has_its_own_explanation() -> None:
    assert isinstance(module.http_error("a/b", OSError("disk\nfull")), HubError)
    assert "OSError: disk" in str(module.http_error("a/b", OSError("disk\nfull")))
