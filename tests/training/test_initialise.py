"""A drafter that starts as the target's last layers computes what those layers compute."""

import pytest
import torch
from transformers import PreTrainedModel

from specblock_zoo.errors import CacheMismatchError, ConfigurationError
from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.capture import forward_with_taps
from specblock_zoo.targets.registry import FAMILIES, family_of
from specblock_zoo.training.initialise import drafter_config, initialise_from_target, residual_rms

DRAFT_VOCAB = 24
FACTS = {"tap_layers": [1, 2, 3], "draft_vocab_size": DRAFT_VOCAB}


def fresh_drafter(target: PreTrainedModel, **options: object) -> SpecBlockDrafter:
    drafter = SpecBlockDrafter(drafter_config(target.config, FACTS, options))
    vocab = build_vocab_map(torch.arange(1, target.config.vocab_size + 1), DRAFT_VOCAB)
    drafter.d2t.copy_(vocab.d2t)
    drafter.t2d.copy_(vocab.t2d)
    return drafter


@pytest.fixture(params=sorted(FAMILIES))
def target(request: pytest.FixtureRequest) -> PreTrainedModel:
    return FAMILIES[request.param].tiny_model()


def test_shapes_and_positions_follow_the_target(target: PreTrainedModel) -> None:
    config = drafter_config(target.config, FACTS, {"block_width": 3})
    assert config.block_width == 3
    assert config.draft_vocab_size == DRAFT_VOCAB
    assert config.target_num_hidden_layers == target.config.num_hidden_layers
    assert config.rope_theta == target.config.rope_parameters["rope_theta"]
    for name in ("vocab_size", "hidden_size", "head_dim", "num_key_value_heads", "max_position_embeddings"):
        assert getattr(config, name) == getattr(target.config, name)


def test_scaled_rotary_positions_are_carried_over() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {**scaling, "original_max_position_embeddings": 64, "rope_theta": 500000.0}
    config = drafter_config(FAMILIES["llama"].tiny_config(rope_parameters=rope), FACTS)
    assert config.rope_theta == 500000.0
    assert config.rope_scaling is not None
    assert scaling.items() <= config.rope_scaling.items()


def test_an_option_that_contradicts_the_target_is_refused(target: PreTrainedModel) -> None:
    with pytest.raises(CacheMismatchError, match="vocab_size is 96, not 5"):
        drafter_config(target.config, FACTS, {"vocab_size": 5})


def test_heads_equal_the_targets_on_the_draft_vocabulary(target: PreTrainedModel) -> None:
    drafter = fresh_drafter(target)
    initialise_from_target(drafter, target)
    states = torch.randn(5, target.config.hidden_size)
    expected = target.lm_head(target.model.norm(states))[:, drafter.draft_tokens]
    torch.testing.assert_close(drafter.heads(states)[0], expected)


def test_layers_are_copies_of_the_targets_last_ones(target: PreTrainedModel) -> None:
    drafter = fresh_drafter(target)
    initialise_from_target(drafter, target)
    originals = family_of(target.config).decoder_layers(target)[-len(drafter.layers) :]
    for layer, original in zip(drafter.layers, originals, strict=True):
        theirs = dict(original.named_parameters())
        for name, parameter in layer.named_parameters():
            assert torch.equal(parameter, theirs[name])
            assert parameter.data_ptr() != theirs[name].data_ptr()


def test_first_state_is_last_tap_plus_token_at_the_streams_size(target: PreTrainedModel) -> None:
    drafter = fresh_drafter(target)
    initialise_from_target(drafter, target, stream_rms=3.0)
    hidden = target.config.hidden_size
    features, token = torch.randn(400, 3 * hidden), torch.randn(400, hidden)
    pair = drafter.input_layer.pair(drafter.condition(features), token)
    other = features.clone()
    other[:, : 2 * hidden] = torch.randn(400, 2 * hidden)
    assert torch.equal(pair, drafter.input_layer.pair(drafter.condition(other), token)), "only the last tap is read"
    assert float(pair.detach().pow(2).mean().sqrt()) == pytest.approx(3.0, rel=0.05)


def test_residual_size_is_the_median_over_tokens(target: PreTrainedModel) -> None:
    tokens = list(range(3, 30))
    _, features = forward_with_taps(target, [2], input_ids=torch.tensor([tokens]))
    sizes = features.features[0].pow(2).mean(-1).sqrt()
    assert residual_rms(target, 2, tokens) == pytest.approx(float(sizes.median()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"intermediate_size": 40}, "mlp.gate_proj.weight"),
        ({"num_hidden_layers": 7}, "7 layers, the target 7"),
        ({"hidden_size": 16}, "of the drafter from the target's"),
    ],
)
def test_shapes_that_cannot_be_copied_are_refused(options: dict[str, int], words: str) -> None:
    target = FAMILIES["llama"].tiny_model()
    with pytest.raises(ConfigurationError, match=words):
        initialise_from_target(fresh_drafter(target, **options), target)
