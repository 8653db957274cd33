"""Plain decoding through our forward and text is plain `generate`."""

import pytest
import torch
from transformers import DynamicCache, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from specblock_zoo.inference.text import Rules, Text
from specblock_zoo.inference.vanilla import decode_plain
from specblock_zoo.inference.verify import Prompt, Verifier
from tests.support.decoding import TAPS, generate, prompt_ids, target_of


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_equals_generate(family: str, do_sample: bool) -> None:
    target, ids = target_of(family), prompt_ids(5)
    options = {"do_sample": True, "top_k": 0, "top_p": 1.0} if do_sample else {}
    torch.manual_seed(4)
    expected = generate(target, ids, 12, **options)
    torch.manual_seed(4)
    text = Text(ids, Rules(stopping_criteria=StoppingCriteriaList([MaxLengthCriteria(17)]), do_sample=do_sample))
    verifier = Verifier(target, TAPS, DynamicCache())
    tokens = list(decode_plain(verifier, text, Prompt(ids, None, torch.arange(5)[None])))
    assert tokens == expected[0, 5:].tolist() == text.ids[0, 5:].tolist()
    assert verifier.cache.get_seq_length() == len(text) - 1


def test_ends_where_the_text_ends() -> None:
    target, ids = target_of("llama"), prompt_ids(5)
    plain = generate(target, ids, 12)
    criteria = StoppingCriteriaList([EosTokenCriteria(int(plain[0, 8]))])
    text = Text(ids, Rules(stopping_criteria=criteria))
    prompt = Prompt(ids, None, torch.arange(5)[None])
    tokens = list(decode_plain(Verifier(target, TAPS, DynamicCache()), text, prompt))
    end = plain[0, 5:].tolist().index(int(plain[0, 8])) + 1
    assert tokens == plain[0, 5 : 5 + end].tolist()
