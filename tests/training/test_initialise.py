"""A drafter that starts as the target's last layers computes what those layers compute."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.errors import CacheMismatchError, ConfigurationError
from specblock_zoo.functional.vocab import build_vocab_map
from specblock_zoo.models.specblock import SpecBlockDrafter
from specblock_zoo.targets.registry import FAMILIES, family_of
from specblock_zoo.training.initialise import (
    RIDGE,
    copy_last_layers,
    drafter_config,
    fit_first_state,
    pair_sums,
    regression_rows,
    ridge,
)

DRAFT_VOCAB = 24
FACTS = {"tap_layers": [1, 2, 3], "draft_vocab_size": DRAFT_VOCAB}


def fresh_drafter(target: PreTrainedModel, **options: object) -> SpecBlockDrafter:
    drafter = SpecBlockDrafter(drafter_config(target.config, FACTS, options))
    vocab = build_vocab_map(torch.arange(1, target.config.vocab_size + 1), DRAFT_VOCAB)
    drafter.d2t.copy_(vocab.d2t)
    drafter.t2d.copy_(vocab.t2d)
    return drafter


@pytest.fixture(params=sorted(name for name, family in FAMILIES.items() if family.layers_start_drafters))
def target(request: pytest.FixtureRequest) -> PreTrainedModel:
    return FAMILIES[request.param].tiny_model()


def test_shapes_and_positions_follow_the_target(target: PreTrainedModel) -> None:
    config = drafter_config(target.config, FACTS, {"block_width": 3})
    assert config.block_width == 3
    assert config.draft_vocab_size == DRAFT_VOCAB
    assert config.target_num_hidden_layers == target.config.num_hidden_layers
    assert config.rope_theta == target.config.rope_parameters["rope_theta"]
    assert config.head_dim == family_of(target.config).decoder_layers(target)[0].self_attn.head_dim
    for name in ("vocab_size", "hidden_size", "num_key_value_heads", "max_position_embeddings"):
        assert getattr(config, name) == getattr(target.config, name)


def test_layers_of_another_kind_start_no_drafter() -> None:
    for family in FAMILIES.values():
        if not family.layers_start_drafters:
            target = family.tiny_model()
            # Some of them also have rotary scalings that a drafter does not; here only the layers are in question.
            drafter = fresh_drafter(target, rope_scaling=None)
            with pytest.raises(ConfigurationError, match=family.name):
                copy_last_layers(drafter, target)


def test_a_targets_unknown_rotary_scaling_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="yarn"):
        drafter_config(FAMILIES["gpt_oss"].tiny_config(), FACTS)


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
    copy_last_layers(drafter, target)
    states = torch.randn(5, target.config.hidden_size)
    expected = target.lm_head(target.model.norm(states))[:, drafter.draft_tokens]
    torch.testing.assert_close(drafter.heads(states)[0], expected)


def test_layers_are_copies_of_the_targets_last_ones(target: PreTrainedModel) -> None:
    drafter = fresh_drafter(target)
    copy_last_layers(drafter, target)
    originals = family_of(target.config).decoder_layers(target)[-len(drafter.layers) :]
    for layer, original in zip(drafter.layers, originals, strict=True):
        theirs = dict(original.named_parameters())
        for name, parameter in layer.named_parameters():
            assert torch.equal(parameter, theirs[name])
            assert parameter.data_ptr() != theirs[name].data_ptr()


def linear_batch(drafter: SpecBlockDrafter, rows: int = 6, length: int = 80) -> dict[str, Tensor]:
    """Features whose last tap follows linearly from the previous features and the token; right padding holds noise."""
    draw = torch.Generator().manual_seed(0)
    hidden, taps = drafter.config.hidden_size, drafter.input_layer.condition_proj.in_features
    tokens = torch.randint(drafter.config.vocab_size, (rows, length), generator=draw)
    features = torch.randn(rows, length, taps, generator=draw)
    from_features = torch.randn(hidden, taps, generator=draw) / taps**0.5
    from_token = torch.randn(hidden, hidden, generator=draw) / hidden**0.5
    words = drafter.input_layer.token_norm(drafter.embed(tokens)).detach()
    for j in range(1, length):
        features[:, j, -hidden:] = features[:, j - 1] @ from_features.T + words[:, j] @ from_token.T
    mask = torch.arange(length) < torch.tensor([length, *[length - 7 * row for row in range(1, rows)]])[:, None]
    features[~mask] = 1e3
    return {"input_ids": tokens, "attention_mask": mask, "features": features}


@pytest.fixture
def attached(target: PreTrainedModel) -> SpecBlockDrafter:
    drafter = fresh_drafter(target)
    drafter.attach(target.get_input_embeddings().weight)
    return drafter


def test_first_states_predict_the_last_tap_of_their_token(attached: SpecBlockDrafter) -> None:
    batch = linear_batch(attached)
    fit_first_state(attached, [batch])
    known, wanted = regression_rows(attached, attached.input_layer.token_norm, batch)
    features, token = known.split((known.shape[1] - wanted.shape[1], wanted.shape[1]), dim=1)
    embedding = attached.embed(batch["input_ids"][:, 1:][batch["attention_mask"][:, 1:]])
    found = attached.input_layer.pair(attached.condition(features), embedding).detach()
    torch.testing.assert_close(attached.input_layer.token_norm(embedding), token)
    # What is left is the condition norm's: it takes each row's own size away.
    assert float((found - wanted).pow(2).sum() / wanted.pow(2).sum()) < 0.05


def test_enough_tokens_end_the_fit(attached: SpecBlockDrafter) -> None:
    read = []

    def batches() -> Iterator[dict[str, Tensor]]:
        for number in range(9):
            read.append(number)
            yield linear_batch(attached)

    fit_first_state(attached, batches(), tokens=int(linear_batch(attached)["attention_mask"][:, 1:].sum()) + 1)
    assert read == [0, 1]


def test_rows_pair_a_state_with_the_next_token_and_leave_padding_out(attached: SpecBlockDrafter) -> None:
    batch = linear_batch(attached)
    known, wanted = regression_rows(attached, attached.input_layer.token_norm, batch)
    assert len(known) == len(wanted) == int(batch["attention_mask"].sum()) - len(batch["input_ids"])
    assert torch.equal(known[3, : batch["features"].shape[-1]], batch["features"][0, 3])
    assert torch.equal(wanted[3], batch["features"][0, 4, -wanted.shape[1] :])


def test_ridge_equals_least_squares_with_the_penalty_as_extra_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 6, generator=draw, dtype=torch.float64) * torch.tensor([1.0, 1, 100, 100, 0.01, 0.01])
    y = torch.randn(50, 3, generator=draw, dtype=torch.float64)
    gram = x.T @ x
    sizes = gram.diagonal().view(3, 2).mean(1).repeat_interleave(2)
    extended = torch.cat((x, (RIDGE * sizes).sqrt().diag()))
    expected = torch.linalg.lstsq(extended, torch.cat((y, torch.zeros(6, 3, dtype=torch.float64)))).solution
    torch.testing.assert_close(ridge(gram, x.T @ y, 2), expected)


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
        copy_last_layers(fresh_drafter(target, **options), target)


def test_states_of_zeros_weigh_nothing() -> None:
    known, wanted = torch.randn(6, 3), torch.randn(6, 2)
    wanted[4:] = 0.0
    whole = pair_sums(lambda pair: pair, [(known, wanted)], tokens=6)  # type: ignore[arg-type,list-item]  # any batch does
    some = pair_sums(lambda pair: pair, [(known[:4], wanted[:4])], tokens=4)  # type: ignore[arg-type,list-item]  # same
    torch.testing.assert_close(whole.gram, some.gram)
    torch.testing.assert_close(whole.cross, some.cross)
    assert whole.weight == pytest.approx(some.weight)
