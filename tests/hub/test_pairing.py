"""A drafter meets its own target only: shapes, vocabulary and tokenizer are compared and named."""

import pytest
from transformers import PreTrainedModel

from specblock_zoo.errors import TargetMismatchError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.targets.identity import tokenizer_sha256
from specblock_zoo.targets.llama import LLAMA
from tests.support.tiny_pair import VOCAB_SIZE, character_tokenizer, tiny_drafter


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return LLAMA.tiny_model(vocab_size=VOCAB_SIZE)


def test_a_drafter_and_its_target_belong_together(target: PreTrainedModel) -> None:
    drafter, tokenizer = tiny_drafter(), character_tokenizer()
    check_pair(target, tokenizer, drafter)
    drafter.config.tokenizer_hash = tokenizer_sha256(tokenizer)
    check_pair(target, tokenizer, drafter)


@pytest.mark.parametrize("change", ["token", "template"])
def test_another_tokenizer_is_refused_with_both_hashes(target: PreTrainedModel, change: str) -> None:
    drafter, tokenizer = tiny_drafter(), character_tokenizer()
    recorded = drafter.config.tokenizer_hash = tokenizer_sha256(tokenizer)
    if change == "token":
        tokenizer.add_tokens(["<new>"])
    else:
        tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(TargetMismatchError, match=f"{tokenizer_sha256(tokenizer)[:12]}.*{recorded[:12]}"):
        check_pair(target, tokenizer, drafter)


def test_a_padded_target_is_refused_and_the_padding_can_be_undone() -> None:
    padded = LLAMA.tiny_model(vocab_size=VOCAB_SIZE + 8)
    with pytest.raises(TargetMismatchError, match=rf"{VOCAB_SIZE + 8} rows.*resize_token_embeddings\({VOCAB_SIZE}\)"):
        check_pair(padded, character_tokenizer(), tiny_drafter())
    padded.resize_token_embeddings(VOCAB_SIZE)
    check_pair(padded, character_tokenizer(), tiny_drafter())


def test_another_depth_is_refused() -> None:
    deeper = LLAMA.tiny_model(vocab_size=VOCAB_SIZE, num_hidden_layers=8)
    with pytest.raises(TargetMismatchError, match="num_hidden_layers 7; this target has 8"):
        check_pair(deeper, character_tokenizer(), tiny_drafter())
