"""After any rounds the drafter's context equals one fresh prefill of the committed text."""

from itertools import product

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, StoppingCriteriaList
from transformers.generation.stopping_criteria import MaxLengthCriteria

from specblock_zoo.inference.decode import Session, decode, prefill
from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.targets.capture import capture
from tests.support.decoding import TAPS, WIDTH, generate, prompt_ids, scripted_drafter, target_of

pytestmark = pytest.mark.contract

LENGTH, NEW, PADDING = 5, 18, 3
# Right depth of each round's draft: all of it, none of it (m = 0 several times running), and everything between.
PLACES = {"all": lambda _: 0, "none": lambda _: -1, "some": lambda index: (0, 0, -1, 0, 1, -1, -1)[index % 7]}


def padded(ids: Tensor) -> Prompt:
    mask = torch.cat((torch.zeros(1, PADDING, dtype=torch.bool), torch.ones_like(ids, dtype=torch.bool)), 1)
    return Prompt(torch.nn.functional.pad(ids, (PADDING, 0)), mask, (mask.long().cumsum(-1) - 1).clamp(min=0))


@torch.no_grad()
@pytest.mark.parametrize(("family", "place"), [*product(["llama", "qwen3"], PLACES)])
@pytest.mark.parametrize("context_slots", [1, WIDTH])
@pytest.mark.parametrize("left_padded", [False, True])
def test_context_after_rounds_equals_a_fresh_prefill(
    family: str, place: str, context_slots: int, left_padded: bool
) -> None:
    target, ids = target_of(family), prompt_ids(LENGTH)
    text = generate(target, ids, NEW)
    drafter = scripted_drafter(target, text, PLACES[place], num_blocks=2, context_slots=context_slots)
    drafter.attach(target.get_input_embeddings().weight)
    prompt = padded(ids) if left_padded else Prompt(ids, None, torch.arange(LENGTH)[None])
    rules = Rules(stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(prompt.ids.shape[1] + NEW)]))
    growing = Text(prompt.ids, rules)
    session = Session(drafter, Verifier(target, TAPS, DynamicCache()), drafter.config.tree_settings)
    rows = prefill(session, prompt, [growing])
    positions = torch.arange(LENGTH + NEW)[None]
    features = capture(target, TAPS, text, torch.ones_like(text, dtype=torch.bool)).features
    known = LENGTH
    for each in decode(session, rows):
        if each.drafter_calls == 0:
            break
        fresh = drafter.extend(features[:, :known], text[:, 1 : known + 1], positions[:, :known])
        for kept, expected in zip(rows[0].drafter_cache.view(), fresh.context, strict=True):
            torch.testing.assert_close(kept.keys, expected.keys, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(kept.values, expected.values, atol=1e-4, rtol=1e-4)
        known += len(each.verdict.committed_tokens)
    assert known >= LENGTH + NEW - 2
    assert torch.equal(growing.ids[:, -LENGTH - NEW :], text)
