import pytest
import torch

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.functional.sampling import capped
from specblock_zoo.structures import default_tap_layers
from specblock_zoo.targets.base import TargetFamily, check_tap_layers
from specblock_zoo.targets.registry import FAMILIES


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys(), scope="module")
def family(request: pytest.FixtureRequest) -> TargetFamily:
    return request.param


@pytest.mark.parametrize(("num_layers", "taps"), [(30, (1, 14, 26)), (32, (1, 15, 28)), (36, (1, 17, 32))])
def test_default_tap_layers_are_those_of_the_published_drafters(num_layers, taps):
    assert default_tap_layers(num_layers) == taps


def test_default_tap_layers_rise_strictly_from_the_fewest_layers_on():
    for num_layers in range(7, 90):
        taps = default_tap_layers(num_layers)
        assert taps[0] < taps[1] < taps[2] < num_layers - 1


def test_too_shallow_a_target_has_no_default_tap_layers():
    with pytest.raises(ConfigurationError, match="6 layers"):
        default_tap_layers(6)


@pytest.mark.parametrize("taps", [(), (0, 7), (-1,), (2, 2)])
def test_taps_that_are_not_layers_are_refused_with_both_values(taps):
    with pytest.raises(ConfigurationError, match="7 layers"):
        check_tap_layers(taps, 7)


def test_accessors_return_the_live_parameters(family):
    model = family.tiny_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert names[id(family.embedding_weight(model))] == "model.embed_tokens.weight"
    head = "model.embed_tokens.weight" if model.config.tie_word_embeddings else "lm_head.weight"
    assert names[id(family.head_weight(model))] == head
    assert len(family.decoder_layers(model)) == model.config.num_hidden_layers
    assert family.final_norm(model) is model.model.norm


def test_head_weight_maps_the_last_state_to_the_logits(family):
    model = family.tiny_model()
    ids = torch.arange(3, 9)[None]
    last_hidden = family.decoder(model)(ids).last_hidden_state
    logits = last_hidden @ family.head_weight(model).T
    torch.testing.assert_close(capped(logits, family.logit_cap(model.config)), model(ids).logits)


def test_only_gemma_2_caps_its_logits_unless_told_to(family):
    assert (family.logit_cap(family.tiny_config()) is not None) == (family.name == "gemma2")


def test_windows_are_those_of_the_configuration(family):
    config = family.tiny_config()
    windows = family.attention_windows(config)
    assert set(windows) <= {"full_attention", "sliding_attention"}
    assert windows.get("full_attention") is None
    if "sliding_attention" in windows:
        assert windows["sliding_attention"] == config.sliding_window == 8


def test_layers_that_attend_in_another_way_are_refused(family):
    config = family.tiny_config()
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ConfigurationError, match="chunked_attention"):
        family.attention_windows(config)


def test_tiny_models_are_functions_of_their_seed_and_leave_the_generator_alone(family):
    before = torch.random.get_rng_state()
    first, again, other = family.tiny_model(seed=3), family.tiny_model(seed=3), family.tiny_model(seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(family.head_weight(first), family.head_weight(again))
    assert not torch.equal(family.head_weight(first), family.head_weight(other))
    assert not first.training
