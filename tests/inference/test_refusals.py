"""What cannot be honoured is refused by name, with the way out; it never becomes another text."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.generation import logits_process
from transformers.generation.stopping_criteria import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from specblock_zoo.errors import TargetMismatchError, UnknownNameError, UnsupportedOptionError
from specblock_zoo.inference.refusals import (
    OTHER_METHODS,
    ROW_WISE_PROCESSORS,
    Request,
    check_fits,
    check_form,
    check_supported,
)
from specblock_zoo.inference.text import Rules
from specblock_zoo.inference.verify import Form
from specblock_zoo.inference.versions import CACHE_NAME
from tests.support.decoding import (
    STATIC_TAKES_BACK,
    VOCAB,
    generate,
    prompt_ids,
    random_drafter,
    target_of,
    word_tokenizer,
)

pytestmark = pytest.mark.contract

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


def test_several_return_sequences_are_refused_with_the_way_out() -> None:
    drafter = random_drafter(target())
    with pytest.raises(UnsupportedOptionError, match=r"num_return_sequences = 2.*repeat_interleave\(2"):
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter, num_return_sequences=2, do_sample=True)
    ids = prompt_ids(LENGTH).repeat_interleave(2, dim=0)
    assert len(generate(target(), ids, NEW, assistant_model=drafter, do_sample=True)) == 2


def test_a_tokenizer_for_the_drafter_is_refused() -> None:
    tokenizer = word_tokenizer()
    with pytest.raises(UnsupportedOptionError, match="assistant_tokenizer"):
        generate(
            target(),
            prompt_ids(LENGTH),
            NEW,
            assistant_model=random_drafter(target()),
            tokenizer=tokenizer,
            assistant_tokenizer=tokenizer,
        )


def tiny_encoder_decoder() -> PreTrainedModel:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": VOCAB}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()


def tiny_state_space() -> PreTrainedModel:
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": VOCAB}
    return MambaForCausalLM(MambaConfig(**sizes)).eval()


def tiny_stranger() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=5, n_head=2, vocab_size=VOCAB)).eval()


OTHER_TARGETS = {
    "encoder-decoder": (tiny_encoder_decoder, UnsupportedOptionError, "encoder-decoder target"),
    "state space": (tiny_state_space, UnsupportedOptionError, "MambaForCausalLM"),
    "of no known family": (tiny_stranger, UnknownNameError, "gpt2"),
}


@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_targets_that_cannot_be_drafted_for(name: str) -> None:
    make, error, named = OTHER_TARGETS[name]
    with pytest.raises(error, match=named):
        generate(make(), prompt_ids(LENGTH), NEW, assistant_model=random_drafter(target()))


def test_prompts_of_embeddings_alone_are_refused() -> None:
    embeddings = target().get_input_embeddings()(prompt_ids(LENGTH))
    with pytest.raises(UnsupportedOptionError, match=r"empty prompt|inputs_embeds"):
        target().generate(inputs_embeds=embeddings, max_new_tokens=NEW, assistant_model=random_drafter(target()))


@pytest.mark.parametrize("name", OTHER_METHODS)
def test_other_ways_to_speculate_at_once(name: str) -> None:
    """By what `generate` hands over; not every version knows every name."""
    config = copy.deepcopy(target().generation_config)
    setattr(config, name, 3)
    request = Request(prompt_ids(LENGTH), config, Rules(), {CACHE_NAME: DynamicCache()})
    with pytest.raises(UnsupportedOptionError, match=name):
        check_supported(target(), request)


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
@pytest.mark.parametrize("short", [1, LENGTH + NEW - 2])
def test_a_static_cache_too_small_for_the_text_is_refused_before_the_prompt_is_read(short: int) -> None:
    kept = StaticCache(config=target().config, max_cache_len=LENGTH + NEW - 1 - short)
    with pytest.raises(UnsupportedOptionError, match=f"{short} columns too small.*max_cache_len={LENGTH + NEW - 1}"):
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=random_drafter(target()), **{CACHE_NAME: kept})
    assert kept.get_seq_length() == 0


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


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_angles_that_follow_the_length_are_refused_beyond_it(kind: str) -> None:
    model = copy.copy(target())
    model.config = copy.deepcopy(model.config)
    limit = LENGTH + NEW - 1
    model.config.max_position_embeddings = limit if kind == "dynamic" else 4 * limit
    model.config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    if kind == "longrope":
        model.config.rope_parameters["original_max_position_embeddings"] = limit
    drafter = random_drafter(target())
    with pytest.raises(UnsupportedOptionError, match=f"up to {limit + 1} tokens.*beyond {limit}"):
        generate(model, prompt_ids(LENGTH), NEW, assistant_model=drafter)
    generate(model, prompt_ids(LENGTH), NEW - 1, assistant_model=drafter)
