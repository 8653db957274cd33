"""`generate(assistant_model=drafter)`: dispatch, outputs, and a clear refusal of what is not supported."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedModel

from specblock_zoo.errors import TargetMismatchError, UnsupportedOptionError
from specblock_zoo.inference import hf_generate
from specblock_zoo.inference.refusals import Request
from specblock_zoo.inference.text import Rules
from specblock_zoo.inference.verify import Verifier
from specblock_zoo.inference.versions import CACHE_NAME
from tests.support.decoding import (
    VOCAB,
    ScriptedDrafter,
    generate,
    prompt_ids,
    random_drafter,
    scripted_drafter,
    target_of,
)

pytestmark = pytest.mark.contract

LENGTH, NEW = 6, 16


@cache
def target(family: str = "llama") -> PreTrainedModel:
    """One target for the tests that do not change it."""
    return target_of(family)


@cache
def plain_text() -> Tensor:
    """Its plain greedy text."""
    return generate(target(), prompt_ids(LENGTH), NEW)


def half_right(**changes: Any) -> ScriptedDrafter:
    """A drafter that is right half of the time."""
    return scripted_drafter(target(), plain_text(), lambda index: -(index % 4 == 0), **changes)


def test_installing_twice_wraps_once_and_uninstalling_restores() -> None:
    hf_generate.install()
    wrapped = GenerationMixin._assisted_decoding
    hf_generate.install()
    assert GenerationMixin._assisted_decoding is wrapped
    hf_generate.uninstall()
    original = GenerationMixin._assisted_decoding
    assert original is not wrapped
    hf_generate.uninstall()
    assert GenerationMixin._assisted_decoding is original
    hf_generate.install()
    assert GenerationMixin._assisted_decoding is not original


def test_unknown_generation_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def _assisted_decoding(self: Any, input_ids: Tensor) -> None: ...

    monkeypatch.setattr(GenerationMixin, "_assisted_decoding", _assisted_decoding)
    with pytest.raises(ImportError, match="assistant_model"):
        hf_generate.install()


def test_other_assistants_go_through_untouched() -> None:
    helper = target_of("llama", num_hidden_layers=2)
    assert torch.equal(generate(target(), prompt_ids(LENGTH), NEW, assistant_model=helper), plain_text())


def test_the_drafter_meets_its_target_and_keeps_a_record() -> None:
    drafter = half_right()
    assert not drafter.is_attached
    generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter)
    assert drafter.embedding.data_ptr() == target().get_input_embeddings().weight.data_ptr()
    stats = drafter.last_stats
    assert stats.committed == NEW - 1
    assert stats.rounds < stats.committed
    assert stats.tau == pytest.approx(stats.committed / stats.rounds)
    assert stats.prefill_ms > 0.0


def test_the_explicit_twin_is_the_same_call() -> None:
    options = {"max_new_tokens": NEW, "do_sample": False, "attention_mask": torch.ones(1, LENGTH), "pad_token_id": 0}
    assert torch.equal(half_right().generate(target(), prompt_ids(LENGTH), **options), plain_text())


def test_a_drafter_moves_from_target_to_target() -> None:
    first, second, drafter = target_of("llama"), target_of("llama", seed=3), random_drafter(target())
    for each in (first, second, first):
        assert torch.equal(
            generate(each, prompt_ids(LENGTH), NEW, assistant_model=drafter), generate(each, prompt_ids(LENGTH), NEW)
        )


@pytest.mark.parametrize("do_sample", [False, True])
def test_output_records_equal_plain_ones(do_sample: bool) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options |= {"do_sample": True, "temperature": 0.7, "top_k": 9} if do_sample else {"repetition_penalty": 1.2}
    torch.manual_seed(2)
    expected = generate(target(), prompt_ids(LENGTH), NEW, **options)
    drafter = scripted_drafter(target(), expected.sequences, lambda index: index % 2)
    torch.manual_seed(2)
    found = generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert found[CACHE_NAME].get_seq_length() == expected[CACHE_NAME].get_seq_length() == LENGTH + NEW - 1
    for name in ("scores", "logits"):
        torch.testing.assert_close(torch.cat(found[name]), torch.cat(expected[name]), atol=1e-4, rtol=1e-4)
    transitions = [
        target().compute_transition_scores(each.sequences, each.scores, normalize_logits=True)
        for each in (found, expected)
    ]
    torch.testing.assert_close(*transitions, atol=1e-4, rtol=1e-4)


def test_a_plain_call_returns_ids_nobody_else_holds() -> None:
    drafter = half_right()
    first = generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter)
    kept = first.clone()
    generate(target(), prompt_ids(LENGTH, 5), NEW, assistant_model=drafter)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("padding", [1, 4])
def test_a_left_padded_row(padding: int) -> None:
    ids = torch.nn.functional.pad(prompt_ids(LENGTH), (padding, 0))
    mask = torch.nn.functional.pad(torch.ones(1, LENGTH, dtype=torch.int64), (padding, 0))
    found = generate(target(), ids, NEW, assistant_model=half_right(), attention_mask=mask)
    assert torch.equal(found, generate(target(), ids, NEW, attention_mask=mask))
    assert torch.equal(found[:, padding:], plain_text())


def test_a_masked_token_inside_the_prompt() -> None:
    mask = torch.tensor([[1, 1, 0, 1, 0, 1]])
    expected = generate(target(), prompt_ids(LENGTH), NEW, attention_mask=mask)
    drafter = scripted_drafter(target(), expected, lambda index: index % 2)
    assert torch.equal(
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter, attention_mask=mask), expected
    )
    assert not torch.equal(expected, plain_text())


@pytest.mark.parametrize("whole_ids", [True, False])
def test_three_turns_with_one_cache(whole_ids: bool) -> None:
    """The drafter sees only what is new each turn; the text is what plain decoding writes with its own cache."""

    def talk(**options: Any) -> Tensor:
        cache, text = DynamicCache(), torch.zeros(1, 0, dtype=torch.int64)
        for turn in range(3):
            text = torch.cat((text, prompt_ids(4, turn)), 1)
            given = text if whole_ids else text[:, cache.get_seq_length() :]
            mask = torch.ones_like(text)
            out = generate(target(), given, 5, attention_mask=mask, **{CACHE_NAME: cache}, **options)
            text = torch.cat((text[:, : text.shape[1] - given.shape[1]], out), 1)
        assert cache.get_seq_length() == text.shape[1] - 1
        return text

    assert torch.equal(talk(assistant_model=random_drafter(target(), num_blocks=2)), talk())


def test_eager_attention() -> None:
    eager = target_of("qwen3")
    eager.set_attn_implementation("eager")
    text = generate(eager, prompt_ids(LENGTH), NEW)
    drafter = scripted_drafter(eager, text, lambda index: index % 2)
    assert torch.equal(generate(eager, prompt_ids(LENGTH), NEW, assistant_model=drafter), text)


def test_num_beams_warns_that_the_drafter_is_left_out() -> None:
    expected = generate(target(), prompt_ids(LENGTH), 4, num_beams=2)
    with pytest.warns(UserWarning, match="num_beams = 2"):
        found = generate(target(), prompt_ids(LENGTH), 4, num_beams=2, assistant_model=half_right())
    assert torch.equal(found, expected)


def test_a_cache_that_holds_the_whole_prompt_is_refused() -> None:
    cache = DynamicCache()
    target()(prompt_ids(LENGTH), **{CACHE_NAME: cache})
    request = Request(prompt_ids(LENGTH), target().generation_config, Rules(), {})
    with pytest.raises(UnsupportedOptionError, match=f"{LENGTH}"):
        hf_generate.prompt_of(request, Verifier(target(), (0,), cache))


def test_a_prompt_comes_to_the_device_of_the_target() -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.int64).index_fill(1, torch.tensor([0]), 0)
    request = Request(prompt_ids(LENGTH), target().generation_config, Rules(), {"attention_mask": mask})
    elsewhere = copy.deepcopy(target()).to("meta")
    prompt = hf_generate.prompt_of(request, Verifier(elsewhere, (0,), DynamicCache()))
    assert prompt.mask is not None
    assert {each.device.type for each in (prompt.ids, prompt.mask, prompt.positions)} == {"meta"}


def test_a_vocabulary_of_another_size_is_named_before_transformers_blames_tokenizers() -> None:
    other = random_drafter(target(), vocab_size=VOCAB + 1, draft_vocab_size=4)
    with pytest.raises(TargetMismatchError, match="vocab_size 49; this target has 48"):
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=other)


def test_a_drafter_on_another_device_is_refused() -> None:
    with pytest.raises(TargetMismatchError, match="meta"):
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=random_drafter(target()).to("meta"))


def test_a_failed_call_leaves_no_trace_in_the_next() -> None:
    drafter = half_right()
    with pytest.raises(UnsupportedOptionError):
        generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter, use_cache=False)
    assert torch.equal(generate(target(), prompt_ids(LENGTH), NEW, assistant_model=drafter), plain_text())
