"""A drafter that was pushed, and pulled into an empty cache by a fresh process, drafts the same tokens as before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, pipeline

import specblock_zoo
from specblock_zoo.hub.publish import Destination, plan_drafter, publish
from specblock_zoo.hub.zoo import CHECKOUT, list_entries
from tests.support.hub_server import TOKEN, environment, serve
from tests.support.measured import NAME, publishable
from tests.support.tiny_pair import TinyFolders, tiny_folders

__all__ = ["tiny_folders"]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own call

REPO = "someone/drafter"
PROMPT = "The three primary colours are"
FRESH = """
import json, sys, torch
from specblock_zoo import load_drafter, load_target

repository, target, tag, prompt = sys.argv[1:]
model, tokenizer = load_target(target, dtype=torch.float32)
inputs = tokenizer(prompt, return_tensors="pt")
drafted = {}
for revision in ("main", tag):
    drafter = load_drafter(repository, revision=revision)
    answer = model.generate(**inputs, assistant_model=drafter, max_new_tokens=24, do_sample=False)
    drafted[revision] = answer[0].tolist()
    assert drafter.last_stats.rounds
print(json.dumps(drafted))
"""


def fresh_process(arguments: list[str], extra: dict[str, str]) -> str:
    """Output of a new Python process with these variables."""
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **extra})
    assert ended.returncode == 0, ended.stderr
    assert TOKEN not in ended.stdout + ended.stderr
    return ended.stdout


def pulled_afresh(folder: Path, target: str, home: Path) -> dict[str, list[int]]:
    """Pushes `folder`, and drafts in a fresh process with what it pulls by branch and by tag."""
    with serve() as hub, pytest.MonkeyPatch.context() as patch:
        for name, value in (("ENDPOINT", hub.url), ("HF_HUB_DISABLE_XET", True)):
            patch.setattr(f"huggingface_hub.constants.{name}", value)
        patch.setenv("HF_TOKEN", TOKEN)
        receipt = publish(plan_drafter(folder, REPO), Destination(REPO))
        assert receipt.tag is not None
        drafted = json.loads(fresh_process(["-c", FRESH, REPO, target, receipt.tag, PROMPT], environment(hub, home)))
        assert hub.count("GET", "model.safetensors") == 1, "the tag and the branch are one commit"
    return drafted


def test_pushed_and_pulled_afresh_it_drafts_the_same_tokens(tmp_path: Path, tiny_folders: TinyFolders) -> None:
    model, tokenizer = specblock_zoo.load_target(tiny_folders.target, dtype=torch.float32)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()
    folder = publishable(tmp_path / NAME, tiny_folders.drafter)
    drafted = pulled_afresh(folder, str(tiny_folders.target), tmp_path / "home")
    assert drafted == {"main": plain, "k4m2-v1": plain}


@pytest.mark.slow
def test_every_trained_entry_survives_the_trip(tmp_path: Path) -> None:
    trained = [entry for entry in list_entries(CHECKOUT) if entry.status == "trained"]
    if not trained:
        pytest.skip("the zoo has no trained entry yet")
    for entry in trained:
        model, tokenizer = specblock_zoo.load_target(entry.target.name, dtype=torch.float32)
        inputs = tokenizer(PROMPT, return_tensors="pt")
        plain = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()
        drafted = pulled_afresh(CHECKOUT / entry.name, entry.target.name, tmp_path / entry.name)
        assert set(map(tuple, drafted.values())) == {tuple(plain)}


def test_hf_download_gets_the_same_files(tmp_path: Path, tiny_folders: TinyFolders) -> None:
    files = {path.name: path.read_bytes() for path in tiny_folders.drafter.iterdir()}
    with serve() as hub:
        hub.add(REPO, files)
        command = Path(sys.executable).with_name("hf")
        out = tmp_path / "out"
        fresh_process([str(command), "download", REPO, "--local-dir", str(out)], environment(hub, tmp_path / "home"))
    assert {name: (out / name).read_bytes() for name in files} == files


def test_a_pipeline_takes_a_drafter_as_its_assistant(tiny_folders: TinyFolders) -> None:
    drafter = AutoModel.from_pretrained(tiny_folders.drafter)
    assert isinstance(drafter, specblock_zoo.SpecBlockDrafter)
    drafter.config.eos_token_id, drafter.config.pad_token_id, drafter.config.bos_token_id = 2, 0, 1
    options = {"max_new_tokens": 16, "do_sample": False, "return_full_text": False}
    plain, drafted = (
        pipeline("text-generation", model=str(tiny_folders.target), dtype=torch.float32, assistant_model=assistant)
        for assistant in (None, drafter)
    )
    assert drafted(PROMPT, **options) == plain(PROMPT, **options)
    assert drafter.last_stats.rounds


@pytest.mark.live_hub
def test_a_maintainer_can_push_to_and_pull_from_the_real_hub(tmp_path: Path, tiny_folders: TinyFolders) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    repository = f"{api.whoami()['name']}/specblock-zoo-test"
    folder = publishable(tmp_path / NAME, tiny_folders.drafter)
    try:
        receipt = publish(plan_drafter(folder, repository), Destination(repository, private=True))
        loaded = specblock_zoo.SpecBlockDrafter.from_pretrained(repository, revision=receipt.tag)
        local = specblock_zoo.SpecBlockDrafter.from_pretrained(folder)
        torch.testing.assert_close(loaded.state_dict(), local.state_dict(), rtol=0, atol=0)
    finally:
        api.delete_repo(repository, missing_ok=True)
