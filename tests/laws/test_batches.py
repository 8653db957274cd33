"""Several rows at once: each row's text is plain batched `generate`'s, pad tokens included."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference import verify
from specblock_zoo.structures import BranchOutput, ContextOutput
from specblock_zoo.targets.local import EMBEDDED_TARGETS, find_gguf, load_target
from specblock_zoo.targets.registry import FAMILIES
from tests.support.decoding import (
    VOCAB,
    ScriptedDrafter,
    config_for,
    generate,
    prompt_ids,
    random_drafter,
    target_of,
    word_tokenizer,
)

pytestmark = pytest.mark.contract

LENGTHS, NEW = (3, 11, 6, 9), 16
EVERY_FAMILY = [
    pytest.param(name, marks=[] if name in ("llama", "gemma3") else [pytest.mark.slow]) for name in FAMILIES
]


@cache
def target(family: str) -> PreTrainedModel:
    """Nobody changes it."""
    return target_of(family)


def padded(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Prompts of these lengths, padded on the left; ids and mask `[rows, longest]`."""
    longest = max(lengths)
    pad = torch.nn.functional.pad
    ids = [pad(prompt_ids(length, seed), (longest - length, 0)) for seed, length in enumerate(lengths)]
    masks = [pad(torch.ones(1, length, dtype=torch.int64), (longest - length, 0)) for length in lengths]
    return torch.cat(ids), torch.cat(masks)


class RowDrafter(ScriptedDrafter):
    """A scripted drafter for several rows: it knows a row by the token it drafts from and that one's position."""

    scripts: tuple[list[int], ...] = ()

    def extend(self, features: Tensor, tokens: Tensor, positions: Tensor, *rest: Any, **more: Any) -> ContextOutput:
        place, token = int(positions[0, -1]) + 1, int(tokens[0, -1])
        fits = [script for script in self.scripts if place < len(script) and script[place] == token]
        self.script = fits[0] if fits else []
        return super().extend(features, tokens, positions, *rest, **more)

    def branch(self, *args: Any, **more: Any) -> BranchOutput:
        return super().branch(*args, **more)


def row_drafter(family: str, text: Tensor, mask: Tensor, wrong: int = 4, **changes: Any) -> RowDrafter:
    """Right but for every `wrong`-th token, and ragged: that token differs from row to row."""
    torch.manual_seed(0)
    drafter = RowDrafter(config_for(target(family), num_blocks=2, **changes)).eval()
    drafter.scripts = tuple(row[int((present == 0).sum()) :].tolist() for row, present in zip(text, mask, strict=True))
    drafter.place = lambda index: -1 if (index + drafter.script[0] % 5) % wrong == 0 else 0
    return drafter


def test_rows_of_unequal_length() -> None:
    ids, mask = padded(LENGTHS)
    text = generate(target("llama"), ids, NEW, attention_mask=mask)
    drafter = row_drafter("llama", text, mask)
    assert torch.equal(generate(target("llama"), ids, NEW, attention_mask=mask, assistant_model=drafter), text)
    assert drafter.last_stats.tau > 1.5
    assert len(set(drafter.last_stats.accepted_per_round)) > 2, "a law about ragged rows needs ragged rows"


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize("ends", [None, 7, list(range(0, VOCAB, 6))])
def test_rows_that_end_early(family: str, ends: Any) -> None:
    for rows in (1, 2, 4):
        ids, mask = padded(LENGTHS[:rows])
        options = {"eos_token_id": ends, "pad_token_id": 1, "attention_mask": mask}
        text = generate(target(family), ids, NEW, **options)
        whole = generate(target(family), ids, NEW, attention_mask=mask)
        drafter = row_drafter(family, whole, mask)
        assert torch.equal(generate(target(family), ids, NEW, assistant_model=drafter, **options), text)
        assert torch.equal(
            generate(target(family), ids, NEW, assistant_model=random_drafter(target(family)), **options), text
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 9, "eos_token_id": list(range(VOCAB // 2)), "pad_token_id": 0},
    "bad_words_ids": {"bad_words_ids": [[5], [7, 8]]},
    "stop_strings": {"stop_strings": ["w3", "w17", "w29", "w40"], "tokenizer": word_tokenizer(), "eos_token_id": VOCAB},
    "length 1": {"max_new_tokens": 1},
    "length 2": {"max_new_tokens": 2},
    "no mask": {"attention_mask": torch.ones(4, 11, dtype=torch.int64)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str) -> None:
    ids, mask = padded(LENGTHS)
    options = {"attention_mask": mask, **OPTIONS[name]}
    text = generate(target("llama"), ids, NEW, **options)
    drafter = row_drafter("llama", text, mask, wrong=6)
    assert torch.equal(generate(target("llama"), ids, NEW, assistant_model=drafter, **options), text)


@pytest.mark.parametrize("few", [0, 10**6])
def test_holes_are_closed_and_may_stay(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether columns are moved together whenever there is a hole, or never: the text is the same."""
    monkeypatch.setattr(verify, "FEW_HOLES", few)
    monkeypatch.setattr(verify, "HOLE_SHARE", 0.0)
    ids, mask = padded((2, 12, 5))
    text = generate(target("gemma3"), ids, 24, attention_mask=mask, eos_token_id=[3, 9], pad_token_id=0)
    whole = generate(target("gemma3"), ids, 24, attention_mask=mask)
    drafter = row_drafter("gemma3", whole, mask)
    options = {"attention_mask": mask, "eos_token_id": [3, 9], "pad_token_id": 0}
    assert torch.equal(generate(target("gemma3"), ids, 24, assistant_model=drafter, **options), text)


def test_records_hold_the_sequences_alone() -> None:
    ids, mask = padded(LENGTHS)
    options = {"attention_mask": mask, "return_dict_in_generate": True}
    found = generate(target("llama"), ids, NEW, assistant_model=random_drafter(target("llama")), **options)
    assert torch.equal(found.sequences, generate(target("llama"), ids, NEW, **options).sequences)
    assert found.scores is None


def test_sampled_rows_have_the_targets_law() -> None:
    """Rows draw in their own order, so a seed gives another text than plain decoding; the frequencies must agree."""
    model = target_of("llama", vocab_size=3, bos_token_id=0, pad_token_id=0)
    rows, new = 400, 3
    ids = prompt_ids(4, vocab=3).repeat(rows, 1)
    torch.manual_seed(3)
    drafter = random_drafter(model, max_nodes=6)
    found = generate(model, ids, new, do_sample=True, top_k=0, assistant_model=drafter)[:, 4:]
    texts = torch.cartesian_prod(*(torch.arange(3),) * new)
    whole = torch.cat((ids[:1].expand(len(texts), -1), texts), dim=1)
    steps = model(whole).logits[:, 3:-1].log_softmax(-1)
    law = steps.gather(-1, texts[..., None]).sum((1, 2)).exp()
    counts = torch.stack([(found == text).all(1).sum() for text in texts])
    statistic = float(((counts - rows * law) ** 2 / (rows * law)).sum())
    # Chi-squared with 26 degrees of freedom exceeds 54 once in a thousand; the seed is fixed.
    assert statistic < 54.0


@pytest.mark.slow
@pytest.mark.skipif(
    find_gguf(EMBEDDED_TARGETS["smollm2-135m"].package) is None, reason="the embedded target is not installed"
)
def test_forty_prompts_of_the_embedded_target_four_at_a_time() -> None:
    model, tokenizer = load_target("smollm2-135m", dtype=torch.float32)
    tokenizer.padding_side = "left"
    drafter = load_drafter("specblock-smollm2-135m", dtype=torch.float32)
    topics = ("trains", "bread", "the sea", "a fox", "graphs", "rust", "winter", "tea", "chess", "prime numbers")
    forms = (
        "Write a short note about {}.",
        "What is {}? Explain briefly.",
        "List facts about {}.",
        "Why {}? Be brief.",
    )
    for topic in topics:
        messages = [[{"role": "user", "content": form.format(topic)}] for form in forms]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        options = {"max_new_tokens": 24, "do_sample": False}
        assert torch.equal(
            model.generate(**inputs, assistant_model=drafter, **options), model.generate(**inputs, **options)
        )
