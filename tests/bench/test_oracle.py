"""Random weights decode the text they are said to, and the drafter is right as often as asked."""

import copy

import pytest
import torch
from transformers import PreTrainedModel

from specblock_zoo.bench.oracle import OracleDrafter, known_text, make_cyclic
from specblock_zoo.targets.llama import LLAMA
from specblock_zoo.training.initialise import drafter_config
from tests.support.decoding import generate

VOCAB, DRAFT_VOCAB, LENGTH, NEW = 96, 64, 5, 40


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    model = LLAMA.tiny_model(vocab_size=VOCAB, hidden_size=64, tie_word_embeddings=False, max_position_embeddings=512)
    model.generation_config.eos_token_id = None
    make_cyclic(model, DRAFT_VOCAB)
    return model


def oracle(target: PreTrainedModel, alpha: tuple[float, ...], **changes: object) -> OracleDrafter:
    facts = {"draft_vocab_size": DRAFT_VOCAB, "tap_layers": list(LLAMA.tap_layers(target.config))}
    config = drafter_config(target.config, facts, {"num_blocks": 2, "cost_curve": "off", **changes})
    torch.manual_seed(0)
    drafter = OracleDrafter(config).eval()
    drafter.foretell(alpha)
    return drafter


def test_plain_text_is_the_known_one(target: PreTrainedModel) -> None:
    ids = torch.tensor([known_text(3, LENGTH, DRAFT_VOCAB)])
    text = generate(target, ids, NEW)[0, LENGTH:].tolist()
    assert text == known_text(int(ids[0, -1]), NEW, DRAFT_VOCAB)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("alpha", "accepted"), [((1.0,), 8), ((1.0, 0.0), 1), ((0.0,), 0)])
def test_acceptance_is_what_was_asked_for(
    target: PreTrainedModel, dtype: torch.dtype, alpha: tuple[float, ...], accepted: int
) -> None:
    model = copy.deepcopy(target).to(dtype)
    ids = torch.tensor([known_text(3, LENGTH, DRAFT_VOCAB)])
    drafter = oracle(model, alpha, chain=True).to(dtype)
    text = generate(model, ids, NEW, assistant_model=drafter)[0, LENGTH:].tolist()
    assert text == known_text(int(ids[0, -1]), NEW, DRAFT_VOCAB)
    # The last round may have fewer tokens left.
    assert set(drafter.last_stats.accepted_per_round[:-1]) == {accepted}


def test_a_tree_finds_what_a_chain_misses(target: PreTrainedModel) -> None:
    ids = torch.tensor([known_text(3, LENGTH, DRAFT_VOCAB)])
    taus = {}
    for chain in (True, False):
        drafter = oracle(target, (0.5,), chain=chain)
        generate(target, ids, DRAFT_VOCAB, assistant_model=drafter)
        taus[chain] = drafter.last_stats.tau
    assert taus[False] > taus[True] > 1.2
