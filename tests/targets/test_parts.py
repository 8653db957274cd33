"""The parts of a target are those of the whole one, bit for bit; nothing else of it is in memory."""

import pytest
import torch

from specblock_zoo.errors import ConfigurationError, WeightsMismatchError
from specblock_zoo.targets import parts
from specblock_zoo.targets.identity import identify
from specblock_zoo.targets.local import load_target
from specblock_zoo.targets.parts import load_target_parts
from specblock_zoo.targets.registry import FAMILIES, family_of
from tests.support.tiny import save_tiny_target


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parts_are_the_whole_targets_bit_for_bit(tmp_path, family):
    save_tiny_target(tmp_path, family)
    (some, _), (whole, _) = load_target_parts(tmp_path, last_layers=2), load_target(tmp_path, torch.float32)
    facts = family_of(whole.config)
    for read in (facts.embedding_weight, facts.head_weight):
        assert torch.equal(read(some), read(whole))
    modules = [(facts.final_norm(some), facts.final_norm(whole))]
    modules += zip(facts.decoder_layers(some)[-2:], facts.decoder_layers(whole)[-2:], strict=True)
    for found, expected in modules:
        expected_tensors = dict(expected.named_parameters())
        assert expected_tensors.keys() == dict(found.named_parameters()).keys()
        assert all(torch.equal(tensor, expected_tensors[name]) for name, tensor in found.named_parameters())
    assert not any(parameter.requires_grad for parameter in some.parameters())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharded", [True, False])
def test_the_rest_of_the_target_is_not_read(tmp_path, monkeypatch, tied, sharded):
    model = save_tiny_target(tmp_path, tie_word_embeddings=tied)
    if sharded:
        (tmp_path / "model.safetensors").unlink()
        model.save_pretrained(tmp_path, max_shard_size="20KB")
        assert (tmp_path / "model.safetensors.index.json").is_file()
    monkeypatch.setattr(parts, "load_target", None)
    some, _ = load_target_parts(tmp_path, last_layers=1)
    layers = family_of(some.config).decoder_layers(some)
    assert all(parameter.is_meta for layer in layers[:-1] for parameter in layer.parameters())
    assert not any(parameter.is_meta for parameter in layers[-1].parameters())
    assert torch.equal(some.get_output_embeddings().weight, model.get_output_embeddings().weight)
    assert (some.get_output_embeddings().weight is some.get_input_embeddings().weight) == tied


def test_a_half_precision_file_is_widened_without_loss(tmp_path):
    save_tiny_target(tmp_path).bfloat16().save_pretrained(tmp_path)
    (some, _), (whole, _) = load_target_parts(tmp_path), load_target(tmp_path, torch.float32)
    assert some.get_input_embeddings().weight.dtype == torch.float32
    assert torch.equal(some.get_input_embeddings().weight, whole.get_input_embeddings().weight)


def test_it_is_the_same_target_to_a_cache(tmp_path):
    save_tiny_target(tmp_path)
    names = str(tmp_path)
    assert identify(names, *load_target_parts(names)) == identify(names, *load_target(names, torch.float32))


@pytest.mark.parametrize("fault", ["absent", "cut"])
def test_what_cannot_be_read_is_refused_as_for_a_whole_target(tmp_path, fault):
    save_tiny_target(tmp_path)
    file = tmp_path / "model.safetensors"
    if fault == "absent":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises((ConfigurationError, WeightsMismatchError), match=str(tmp_path)):
        load_target_parts(tmp_path)
