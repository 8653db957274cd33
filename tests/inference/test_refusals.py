"""What cannot be honoured is refused by name, with the way out; it never becomes another text."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.errors import TargetMismatchError, UnsupportedOptionError
from specblock_zoo.inference.refusals import ROW_WISE_PROCESSORS, check_fits, check_form
from specblock_zoo.inference.verify import Form
from specblock_zoo.inference.versions import CACHE_NAME
from tests.support.decoding import STATIC_TAKES_BACK, VOCAB, generate, prompt_ids, random_drafter, target_of

pytestmark = pytest.mark.generation

LENGTH, NEW = 6, 8


@cache
def target() -> PreTrainedModel:
    """Nobody changes it."""
    return target_of("llama")


class Unknown(LogitsProcessor, StoppingCriteria):
    """Could look at all rows at once."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        raise AssertionError("never called")


class Stream(BaseStreamer):
    def put(self, value: Tensor) -> None:
        """Streams may be opened before we are asked."""

    def end(self) -> None:
        raise AssertionError("never reached")


RECORD = {"return_dict_in_generate": True}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "empty row": ({"attention_mask": torch.zeros(1, LENGTH, dtype=torch.long)}, "padding only"),
    "use_cache": ({"use_cache": False}, "use_cache=False"),
    "output_attentions": ({"output_attentions": True, **RECORD}, "output_attentions"),
    "output_hidden_states": ({"output_hidden_states": True, **RECORD}, "output_hidden_states"),
    "synced_gpus": ({"synced_gpus": True}, "synced_gpus"),
    "prompt lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
    "offloaded cache": ({CACHE_NAME: DynamicCache(offloading=True)}, "DynamicCache"),
    "another model input": ({"inputs_embeds": torch.zeros(1, LENGTH, 32)}, "inputs_embeds"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    options, named = REFUSED[name]
    with pytest.raises(UnsupportedOptionError) as caught:
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=random_drafter(target()), **options)
    assert named in caught.value.problem
    assert caught.value.hint


BATCHES: dict[str, tuple[dict[str, Any], str]] = {
    "streamer": ({"streamer": Stream()}, "streamer"),
    "scores": ({"output_scores": True, **RECORD}, "output_scores"),
    "processor": ({"logits_processor": LogitsProcessorList([Unknown()])}, "Unknown"),
    "criterion": ({"stopping_criteria": StoppingCriteriaList([Unknown()])}, "Unknown"),
    "prefix_allowed_tokens_fn": ({"prefix_allowed_tokens_fn": lambda row, _: [row]}, "PrefixConstrained"),
    "criterion without padding": ({"max_time": 100.0}, "MaxTimeCriteria alone"),
    "static cache": ({"cache_implementation": "static"}, "static"),
    "cache": ({CACHE_NAME: DynamicCache()}, "cache of yours"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_refused_for_several_rows(name: str) -> None:
    options, named = BATCHES[name]
    if name == "static cache" and not STATIC_TAKES_BACK:
        pytest.skip("this transformers has no static caches in assisted decoding")
    if name == "cache":
        options[CACHE_NAME].update(torch.zeros(2, 1, 1, 16), torch.zeros(2, 1, 1, 16), 0)
    ids = prompt_ids(LENGTH).repeat(2, 1)
    with pytest.raises(UnsupportedOptionError, match="batch_size = 2") as caught:
        generate(target(), ids, NEW, assistant_model=random_drafter(target()), **options)
    assert named in caught.value.problem


def test_targets_in_train_mode() -> None:
    training = target_of("llama").train()
    with pytest.raises(UnsupportedOptionError, match=r"model\.eval"):
        generate(training, prompt_ids(LENGTH), NEW, assistant_model=random_drafter(training))


def test_several_return_sequences_are_refused_by_transformers() -> None:
    with pytest.raises(ValueError, match="num_return_sequences"):
        generate(
            target(),
            prompt_ids(LENGTH),
            NEW,
            assistant_model=random_drafter(target()),
            num_return_sequences=2,
            do_sample=True,
        )


def test_rows_of_unequal_length_need_tree_masks() -> None:
    check_form(Form.CAUSAL, 1)
    check_form(Form.ADDITIVE, 2)
    with pytest.raises(UnsupportedOptionError, match="batch_size = 2"):
        check_form(Form.CAUSAL, 2)


def test_row_wise_processors_give_each_row_what_they_give_the_batch() -> None:
    """The table's claim, for the processors that look at the ids."""
    ids, scores = torch.cat([prompt_ids(7, seed) for seed in range(3)]), torch.randn(3, VOCAB)
    made = [
        logits_process.NoBadWordsLogitsProcessor([[5], [7, 8]], eos_token_id=2),
        logits_process.NoRepeatNGramLogitsProcessor(1),
        logits_process.RepetitionPenaltyLogitsProcessor(1.5),
        logits_process.SequenceBiasLogitsProcessor([[[9], 3.0], [[3, 4], -5.0]]),
        logits_process.MinLengthLogitsProcessor(9, 2),
        logits_process.ExponentialDecayLengthPenalty((1, 1.3), torch.tensor([2]), 3),
    ]
    assert {type(each) for each in made} <= ROW_WISE_PROCESSORS
    for each in made:
        rows = [each(row[None], score[None].clone()) for row, score in zip(ids, scores, strict=True)]
        assert torch.equal(torch.cat(rows), each(ids, scores.clone()))


MISMATCHES = {
    "hidden_size": ({"target_hidden_size": 64}, ("64", "32")),
    "num_hidden_layers": ({"target_num_hidden_layers": 30}, ("30", "5")),
    "vocab_size": ({"vocab_size": VOCAB + 1, "draft_vocab_size": 4}, (str(VOCAB + 1), str(VOCAB))),
    "layers": ({"target_num_hidden_layers": None, "tap_layers": (1, 2, 9)}, ("(1, 2, 9)", "5")),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_a_drafter_for_another_target_is_refused_with_both_values(name: str) -> None:
    changes, values = MISMATCHES[name]
    with pytest.raises(TargetMismatchError) as caught:
        check_fits(target(), random_drafter(target(), **changes))
    assert all(value in caught.value.problem for value in (name, *values))
