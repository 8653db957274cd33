"""Publishing is planned and checked first, sent as one commit and one tag, and never half done."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

from specblock_zoo.errors import AccessError, BadRecordError, HubError, PublishError, WeightsMismatchError
from specblock_zoo.hub.entry import ENTRY_FILE
from specblock_zoo.hub.publish import Destination, check_licence, plan_dataset, plan_drafter, publish
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.hub_server import Fault, Hub, Repository
from tests.support.measured import NAME, publishable
from tests.support.tiny_pair import TinyFolders

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own call

REPO = "someone/drafter"
FILES = {"README.md", "config.json", "entry.yaml", "model.safetensors", "results.json", "results.svg"}


@pytest.fixture
def folder(tmp_path: Path, tiny_folders: TinyFolders) -> Path:
    return publishable(tmp_path / NAME, tiny_folders.drafter)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    records = tmp_path / "answers"
    records.mkdir()
    line = {"id": "1", "prompt_ids": [1, 2], "answer_ids": [3], "temperature": 0, "finish": "eos"}
    (records / "part.jsonl").write_text(json.dumps(line) + "\n")
    (records / "README.md").write_text("---\nlicense: mit\n---\n# Answers\n")
    return records


def edit_entry(folder: Path, **changes: object) -> None:
    path = folder / ENTRY_FILE
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))


def test_a_plan_lists_what_would_be_sent_and_asks_nobody(folder: Path, hub: Hub) -> None:
    plan = plan_drafter(folder, REPO)
    assert {file.name for file in plan.files} == FILES
    assert plan.tag == "k4m2-v1"
    assert plan.bytes == sum(file.size for file in plan.files)
    weights = next(file for file in plan.files if file.name == "model.safetensors")
    assert weights.size == (folder / "model.safetensors").stat().st_size
    assert f'load_drafter("{REPO}"' in plan.card
    assert hub.log == []


def test_a_push_is_one_commit_and_one_tag_and_loads_as_it_was(folder: Path, hub: Hub) -> None:
    receipt = publish(plan_drafter(folder, REPO), Destination(REPO, private=True))
    repository = hub.repositories[("models", REPO)]
    assert len(repository.commits) == 2, "the one that made the repository, and ours"
    assert repository.private
    assert repository.tags == {"k4m2-v1": receipt.commit}
    assert set(repository.commits[receipt.commit]) == {*FILES, ".gitattributes"}
    assert receipt.url.endswith(receipt.commit)
    loaded, local = (
        SpecBlockDrafter.from_pretrained(REPO, revision="k4m2-v1"),
        SpecBlockDrafter.from_pretrained(folder),
    )
    torch.testing.assert_close(loaded.state_dict(), local.state_dict(), rtol=0, atol=0)
    card = ModelCard(repository.commits[receipt.commit]["README.md"].decode())
    assert (card.data.model_name, card.data.base_model) == (NAME, "someone/tiny")


def test_a_new_version_replaces_the_weights_of_the_old_one(folder: Path, hub: Hub) -> None:
    stale = {"model-00001-of-00002.safetensors": b"x", "model.safetensors.index.json": b"{}", "notes.md": b"kept"}
    repository = hub.add(REPO, stale)
    receipt = publish(plan_drafter(folder, REPO), Destination(REPO, tag="v2"))
    assert set(repository.commits[receipt.commit]) == {*FILES, "notes.md"}


def test_a_tag_is_never_moved(folder: Path, hub: Hub) -> None:
    publish(plan_drafter(folder, REPO), Destination(REPO))
    before = dict(hub.repositories[("models", REPO)].refs)
    with pytest.raises(PublishError, match="tag 'k4m2-v1' already"):
        publish(plan_drafter(folder, REPO), Destination(REPO))
    assert hub.repositories[("models", REPO)].refs == before


def test_a_pull_request_leaves_the_main_branch_alone_and_gets_no_tag(folder: Path, hub: Hub) -> None:
    repository = hub.add(REPO, {})
    main = repository.refs["main"]
    receipt = publish(plan_drafter(folder, REPO), Destination(REPO, create_pr=True))
    assert repository.refs["main"] == main
    assert (receipt.tag, repository.tags) == (None, {})
    assert receipt.url.endswith("/discussions/1")
    assert set(repository.commits[receipt.commit]) == FILES


def test_a_push_that_somebody_overtook_changes_nothing(folder: Path, hub: Hub) -> None:
    def overtake(repository: Repository) -> None:
        repository.commit({"theirs": b""})

    hub.before_commit = overtake
    with pytest.raises(HubError, match=r"changed while .* \(412\)"):
        publish(plan_drafter(folder, REPO), Destination(REPO))
    repository = hub.repositories[("models", REPO)]
    assert repository.commits[repository.refs["main"]] == {"theirs": b""}
    assert repository.tags == {}


@pytest.mark.parametrize("step", ["/lfs/", "/commit/"])
def test_a_push_that_breaks_leaves_the_repository_as_it_was(
    folder: Path, hub: Hub, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    repository = hub.add(REPO, {"old": b""})
    before = dict(repository.refs)
    hub.faults.append(Fault(step, times=100, status=503))
    with pytest.raises(HubError, match="503"):
        publish(plan_drafter(folder, REPO), Destination(REPO))
    assert (repository.refs, repository.tags) == (before, {})


def test_an_upload_is_retried(folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    hub.faults.append(Fault("/lfs/", status=500, method="PUT"))
    publish(plan_drafter(folder, REPO), Destination(REPO))
    assert [status for method, path, status in hub.log if method == "PUT" and "/lfs/" in path] == [500, 200]


def test_a_token_without_the_right_is_explained(folder: Path, hub: Hub) -> None:
    hub.faults.append(Fault("/repos/create", status=403))
    with pytest.raises(AccessError, match="write token"):
        publish(plan_drafter(folder, REPO), Destination(REPO))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"licence": "unclear"}, "licence of specblock-tiny.k4m2-v1 is 'unclear'"),
        ({"status": "recipe", "training": None, "plan": "x", "files": {}}, "status 'recipe'"),
        ({"status": "published", "training": None, "repository": "a/b"}, "Weights of others stay"),
    ],
)
def test_what_must_not_be_published_is_refused(folder: Path, changes: dict[str, object], problem: str) -> None:
    (folder / "results.json").unlink() if changes.get("status") == "recipe" else None
    edit_entry(folder, **changes)
    with pytest.raises(PublishError, match=problem):
        plan_drafter(folder, REPO)


@pytest.mark.parametrize("commit", ["0" * 40 + "-dirty", "unknown"])
@pytest.mark.parametrize("step", ["trained", "measured"])
def test_a_provenance_nobody_can_check_out_is_refused(folder: Path, commit: str, step: str) -> None:
    if step == "trained":
        training = yaml.safe_load((folder / ENTRY_FILE).read_text())["training"]
        edit_entry(folder, training={**training, "commit": commit})
    else:
        results = json.loads((folder / "results.json").read_text())
        results["provenance"]["commit"] = commit
        (folder / "results.json").write_text(json.dumps(results))
    with pytest.raises(PublishError, match=f"was {step} at commit '{commit}'"):
        plan_drafter(folder, REPO)


def test_missing_pieces_are_named(folder: Path) -> None:
    with pytest.raises(PublishError, match="'drafter' is not a repository name"):
        plan_drafter(folder, "drafter")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"x")
    with pytest.raises(WeightsMismatchError, match="SHA-256"):
        plan_drafter(folder, REPO)
    weights.write_bytes(content)
    (folder / "results.json").unlink()
    with pytest.raises(PublishError, match=r"has no results\.json"):
        plan_drafter(folder, REPO)
    (folder / ENTRY_FILE).unlink()
    with pytest.raises(PublishError, match=r"has no entry\.yaml"):
        plan_drafter(folder, REPO)


@pytest.mark.parametrize("licence", ["", "?", "unclear (nobody said)", "None", "Unknown"])
def test_a_licence_that_grants_nothing_is_refused(licence: str) -> None:
    with pytest.raises(PublishError, match="licence"):
        check_licence("data", licence)
    check_licence("data", "CC-BY-4.0")


def test_answer_records_are_pushed_as_a_dataset(answers: Path, hub: Hub) -> None:
    receipt = publish(plan_dataset(answers, "someone/answers"), Destination("someone/answers"))
    repository = hub.repositories[("datasets", "someone/answers")]
    assert repository.tags == {"v1": receipt.commit}
    sent = repository.commits[receipt.commit]
    assert sent["part.jsonl"] == (answers / "part.jsonl").read_bytes()
    assert sent["README.md"] == (answers / "README.md").read_bytes()


def test_records_that_are_not_records_are_not_pushed(answers: Path) -> None:
    (answers / "part.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(BadRecordError, match=r"part\.jsonl:1"):
        plan_dataset(answers, "someone/answers")
    (answers / "README.md").write_text("# Answers\n")
    with pytest.raises(PublishError, match="names no licence"):
        plan_dataset(answers, "someone/answers")
    (answers / "README.md").unlink()
    with pytest.raises(PublishError, match=r"no README\.md"):
        plan_dataset(answers, "someone/answers")
    (answers / "part.jsonl").unlink()
    with pytest.raises(PublishError, match=r"no \.jsonl"):
        plan_dataset(answers, "someone/answers")
    for place in (answers / "nowhere", answers):
        if place == answers:
            answers.rmdir()
            answers.write_text("a file")
        with pytest.raises(PublishError, match=f"{place.name} is not a folder"):
            plan_dataset(place, "someone/answers")
