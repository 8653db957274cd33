"""Judging a tree equals reading each path on its own; what stays in the cache equals having read the text."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask
from transformers import DynamicCache

from specblock_zoo.functional.tree import Node, flatten, path_to
from specblock_zoo.inference.verify import Form, Prompt, Verifier, formed
from specblock_zoo.structures import DraftTree, Verdict
from tests.support.decoding import TAPS, prompt_ids, target_of

PARENTS = (-1, 0, 1, -1, 3, 0, 5, 2)
ROOT_TOKEN, LENGTH, PADDING = 7, 6, 2


def branching_tree() -> DraftTree:
    depths: list[int] = []
    for parent in PARENTS:
        depths.append(1 if parent == -1 else depths[parent] + 1)
    return flatten([Node(11 + n, parent, 0.0, 0, 0, 0, depths[n]) for n, parent in enumerate(PARENTS)])


def whole_prompt(ids: Tensor) -> Prompt:
    return Prompt(ids, None, torch.arange(ids.shape[1])[None])


def padded_prompt(ids: Tensor) -> Prompt:
    mask = torch.cat((torch.zeros(1, PADDING, dtype=torch.bool), torch.ones(1, ids.shape[1], dtype=torch.bool)), 1)
    padded = torch.cat((torch.zeros(1, PADDING, dtype=torch.int64), ids), 1)
    return Prompt(padded, mask, (mask.long().cumsum(-1) - 1).clamp(min=0))


def verifier_of(family: str, attention: str = "sdpa") -> Verifier:
    target = target_of(family)
    target.set_attn_implementation(attention)
    return Verifier(target, TAPS, DynamicCache())


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *product(["llama", "qwen3", "qwen2", "mistral", "gemma3"], ["sdpa", "eager"]),
        ("gemma2", "eager"),
        ("gpt_oss", "eager"),
    ],
)
@pytest.mark.parametrize("prompt_of", [whole_prompt, padded_prompt])
def test_every_row_equals_its_path_read_alone(
    family: str, attention: str, prompt_of: Callable[[Tensor], Prompt]
) -> None:
    tree, ids, verifier = branching_tree(), prompt_ids(LENGTH), verifier_of(family, attention)
    verifier.read(prompt_of(ids))
    reading = verifier.judge([ROOT_TOKEN], [tree])
    for node in range(-1, len(tree)):
        path = [ROOT_TOKEN, *(int(tree.tokens[n]) for n in path_to(PARENTS, node))]
        alone = verifier_of(family, attention)
        single = alone.read(whole_prompt(torch.cat((ids, torch.tensor([path])), 1)))
        torch.testing.assert_close(reading.logits[0, node + 1], single.logits[0, -1], atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(reading.features[0, node + 1], single.features[0, -1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2"])
@pytest.mark.parametrize(
    ("accepted", "finished"), [((), False), ((0, 1, 2, 7), False), ((0, 5, 6), False), ((3, 4), True)]
)
def test_the_cache_keeps_the_committed_text_but_its_last_token(
    family: str, accepted: tuple[int, ...], finished: bool
) -> None:
    """Also where the accepted nodes are no prefix of the tree, and where the text ends on an accepted token."""
    tree, ids, verifier = branching_tree(), prompt_ids(LENGTH), verifier_of(family)
    verifier.read(whole_prompt(ids))
    verifier.judge([ROOT_TOKEN], [tree])
    tokens = [int(tree.tokens[node]) for node in accepted]
    committed = tokens if finished else [*tokens, 40]
    (rows,) = verifier.commit([tree], [Verdict(accepted, tuple(committed), finished)])
    text = torch.cat((ids, torch.tensor([[ROOT_TOKEN, *committed[:-1]]])), 1)
    assert len(rows) == len(committed)
    fresh = verifier_of(family)
    fresh.read(whole_prompt(text))
    assert verifier.cache.get_seq_length() == text.shape[1]
    for kept, read in zip(verifier.cache.layers, fresh.cache.layers, strict=True):
        torch.testing.assert_close(kept.keys, read.keys, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(kept.values, read.values, atol=2e-5, rtol=1e-4)
    following = verifier.judge([committed[-1]], [flatten(())])
    expected = fresh.judge([committed[-1]], [flatten(())])
    torch.testing.assert_close(following.logits, expected.logits, atol=2e-5, rtol=1e-4)


def test_a_block_mask_shows_what_the_additive_one_shows() -> None:
    seen = torch.rand(2, 5, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    block_mask = formed(seen, Form.BLOCK, torch.float32)
    shown = create_mask(block_mask.mask_mod, 2, 1, 5, 9, device="cpu")
    assert torch.equal(shown[:, 0], seen)
    assert torch.equal(formed(seen, Form.ADDITIVE, torch.float32)[:, 0] == 0, seen)
