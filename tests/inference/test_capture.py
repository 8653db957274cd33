"""A captured drafter proposes what it proposes uncaptured, at a handful of shapes, and compiles nothing after them."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from specblock_zoo.errors import UnsupportedOptionError
from specblock_zoo.inference.cache import FIRST_CAPACITY, DrafterCache, Pairs
from specblock_zoo.inference.capture import (
    PAIRS,
    ROWS,
    TOKENS,
    Capture,
    CompiledTarget,
    StaticContext,
    can_capture,
    context_of,
    filled,
    optimize_for_gpu,
)
from specblock_zoo.inference.grow import Limits, grow_tree, refresh
from specblock_zoo.structures import ContextOutput, DraftTree, TreeSettings
from tests.support.decoding import (
    STATIC_TAKES_BACK,
    generate,
    prompt_ids,
    random_drafter,
    scripted_drafter,
    target_of,
)
from tests.support.drafters import tiny_drafter, tiny_eagle3, tiny_medusa

PADDED = {"disable": True}
SETTINGS = TreeSettings(num_blocks=3, max_nodes=30, beam_width=5, branching=(2, 3, 4, 2))
KINDS = {
    "specblock": lambda **changes: tiny_drafter(context_slots=2, **changes),
    "eagle3": tiny_eagle3,
    "medusa": tiny_medusa,
}
STEPS = (5, 1, 2, 9, 3, 1, 8, 40, 4, 200, 1, 17)
"""Pairs per refresh: short and long prompts, rounds of every size, and a buffer that grows."""


def pairs_of(drafter: Any, count: int, first: int) -> Pairs:
    generator = torch.Generator().manual_seed(first)
    config = drafter.config
    width = config.target_hidden_size * (1 if drafter.reads_last_hidden else len(config.tap_layers or (0, 0, 0)))
    tokens = torch.randint(0, config.vocab_size, (1, count), generator=generator)
    return Pairs(torch.randn(1, count, width, generator=generator), tokens, first)


def rounds(drafter: Any, steps: tuple[int, ...] = STEPS) -> list[tuple[ContextOutput, DraftTree, DrafterCache]]:
    """A refresh and a tree per step, each with the context it left."""
    cache, first, found = context_of(drafter), 0, []
    # Independent heads have one block.
    settings = replace(SETTINGS, num_blocks=1 if drafter.reads_last_hidden else SETTINGS.num_blocks)
    for count in steps:
        output = refresh(drafter, cache, pairs_of(drafter, count, first))
        first += count
        tree, _ = grow_tree(drafter, cache, output, first - 1, Limits(settings, 100))
        found.append((output, tree, copy.copy(cache)))
    return found


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_padded_forwards_propose_the_same_trees(kind: str) -> None:
    drafter = KINDS[kind]()
    plain = rounds(drafter)
    padded = rounds(optimize_for_gpu(drafter, PADDED))
    for (expected, tree, cache), (found, same, static) in zip(plain, padded, strict=True):
        torch.testing.assert_close(found.block.hidden, expected.block.hidden, rtol=1e-4, atol=1e-5)
        assert torch.equal(same.tokens, tree.tokens)
        assert torch.equal(same.parents, tree.parents)
        assert len(static) == len(cache)
        for rows, buffers in zip(cache.view(), static.view(), strict=True):
            torch.testing.assert_close(buffers.keys[:, :, : len(cache)], rows.keys, rtol=1e-4, atol=1e-5)
            assert buffers.values.isfinite().all()
    assert len({tuple(tree.tokens.tolist()) for _, tree, _ in plain}) > 1


class Shapes:
    """Stands where the compiled forward does and notes the shapes it is called with."""

    def __init__(self, forward: Any) -> None:
        self.forward, self.seen = forward, set[Any]()

    def __call__(self, *args: Any) -> Any:
        self.seen.add(shapes(args))
        return self.forward(*args)


def shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(shapes, value))
    return shapes(tuple(vars(value).values())) if hasattr(value, "__dict__") else value


@torch.inference_mode()
def test_a_long_decode_has_a_handful_of_shapes() -> None:
    drafter = optimize_for_gpu(tiny_drafter(), PADDED)
    extended, branched = (Shapes(forward) for forward in (drafter.extend, drafter.branch))
    drafter.capture._extend, drafter.capture._branch = extended, branched
    steps = (20, *(1 + step % 9 for step in range(90)))
    rounds(drafter, steps)
    capacities = 2
    assert sum(steps) > FIRST_CAPACITY
    assert 0 < len(extended.seen) <= 2 * capacities
    assert 0 < len(branched.seen) <= 2 * (SETTINGS.num_blocks - 1) * capacities


def devices_of(graph: torch.fx.GraphModule) -> set[str]:
    """Devices of everything in a graph."""
    values = [node.meta.get("example_value") for node in graph.graph.nodes]
    return {str(value.device) for value in values if isinstance(value, torch.Tensor)}


def test_nothing_is_compiled_after_the_first_rounds_and_graphs_are_whole() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    plain, drafter = (tiny_drafter(num_hidden_layers=1) for _ in range(2))
    optimize_for_gpu(drafter, {"backend": backend})
    with torch.no_grad():
        rounds(drafter, (20, 3))
        assert len(graphs) == SETTINGS.num_blocks
        found, expected = rounds(drafter, (20, 1, 7, 2, 5)), rounds(plain, (20, 1, 7, 2, 5))
    assert len(graphs) == SETTINGS.num_blocks
    for (_, tree, _), (_, other, _) in zip(found, expected, strict=True):
        assert torch.equal(tree.tokens, other.tokens)
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["specblock", "eagle3"])
def test_graphs_hold_nothing_of_another_device(kind: str) -> None:
    """A constant made on the host would keep the graph from being captured."""
    found: set[str] = set()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.update(devices_of(graph))
        return graph.forward

    torch._dynamo.reset()
    drafter = KINDS[kind](num_hidden_layers=1)
    embedding = drafter.embedding.to("meta")
    drafter.to("meta").attach(embedding)
    capture = Capture(drafter, {"backend": backend})
    with torch.no_grad():
        cache, pairs = StaticContext(), pairs_of(drafter, PAIRS[0], 100)
        features, tokens = pairs.features.to("meta"), pairs.tokens.to("meta")
        cache.append(drafter.extend(features, tokens, tokens).context)
        capture.extend(features, tokens, tokens, cache.view(), cache.mask())
    assert found == {"meta"}
    torch._dynamo.reset()


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "options", [{}, {"do_sample": True, "temperature": 1.0, "top_k": 0}], ids=["greedy", "sampled"]
)
def test_the_text_is_plain_generates(place: int, options: dict[str, Any]) -> None:
    model, ids = target_of("llama"), prompt_ids(12)
    script = generate(model, ids, 60)
    drafter = optimize_for_gpu(scripted_drafter(model, script, lambda index: place * index % 3, num_blocks=2), PADDED)
    texts = []
    for assistant in ({}, {"assistant_model": drafter}):
        torch.manual_seed(0)
        texts.append(generate(model, ids, 40, **options, **assistant))
    assert torch.equal(*texts)
    assert drafter.last_stats.rounds < 40


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
@pytest.mark.parametrize("spare", [0, 5, 200])
def test_trees_over_a_static_cache_are_judged_at_few_sizes(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the cache has no room for a filled tree at the end of the text."""
    sizes, model, ids = list[int](), target_of("qwen3"), prompt_ids(12)
    call = CompiledTarget.__call__

    def noted(self: CompiledTarget, **inputs: Any) -> Any:
        sizes.append(inputs["input_ids"].shape[1])
        return call(self, **inputs)

    monkeypatch.setattr(CompiledTarget, "__call__", noted)
    script = generate(model, ids, 60)
    drafter = scripted_drafter(model, script, lambda index: index % 3, num_blocks=2)
    drafter.config.max_nodes = 20
    optimize_for_gpu(drafter, PADDED)
    cache = {"cache_implementation": "static", "max_cache_len": 12 + 40 + spare}
    for _ in range(2):
        text = generate(model, ids, 40, assistant_model=drafter, **cache)
        assert torch.equal(text, script[:, : 12 + 40])
    assert set(sizes) <= {size for size in TOKENS if size <= 32}
    assert len(sizes) == 2 * drafter.last_stats.rounds or spare < 20
    assert not any(layer._forward_hooks for layer in model.get_decoder().layers)


@pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")
def test_one_compilation_per_size_of_tree() -> None:
    graphs = list[torch.fx.GraphModule]()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model, ids = target_of("llama"), prompt_ids(12)
    script = generate(model, ids, 60)
    drafter = scripted_drafter(model, script, lambda index: index % 4, max_nodes=6)
    optimize_for_gpu(drafter, PADDED)
    drafter.capture._options = {"backend": backend}
    options = {"assistant_model": drafter, "cache_implementation": "static", "max_cache_len": 80}
    for _ in range(2):
        assert torch.equal(generate(model, ids, 20, **options), script[:, : 12 + 20])
    assert len(graphs) == 1
    torch._dynamo.reset()


def test_rows_of_a_batch_have_contexts_of_their_own() -> None:
    model = target_of("llama")
    drafter = random_drafter(model, num_blocks=2)
    ids = torch.cat((prompt_ids(12), prompt_ids(12, seed=1)))
    plain = generate(model, ids, 30, assistant_model=drafter)
    rounds_plain = drafter.last_stats.rounds
    assert torch.equal(generate(model, ids, 30, assistant_model=optimize_for_gpu(drafter, PADDED)), plain)
    assert drafter.last_stats.rounds == rounds_plain


def test_a_context_cropped_and_read_again_is_the_same() -> None:
    drafter = optimize_for_gpu(tiny_drafter(), PADDED)
    cache = context_of(drafter)
    with torch.no_grad():
        refresh(drafter, cache, pairs_of(drafter, 30, 0))
        found = []
        for _ in range(2):
            found.append(refresh(drafter, cache, pairs_of(drafter, 3, 30)).block.logits)
            cache.crop(3 * drafter.config.context_slots)
    assert torch.equal(*found)


def test_copies_are_not_captured_and_training_is_not_changed() -> None:
    drafter = optimize_for_gpu(tiny_drafter(), PADDED)
    assert copy.deepcopy(drafter).capture is None
    assert type(context_of(copy.copy(drafter))) is DrafterCache
    assert drafter.extend.__func__ is type(drafter).extend


@pytest.mark.parametrize(("count", "size"), [(1, ROWS[0]), (ROWS[0], ROWS[0]), (ROWS[0] + 1, ROWS[1]), (99, 99)])
def test_counts_are_filled_up(count: int, size: int) -> None:
    assert filled(count, ROWS) == size


def test_what_cannot_be_captured_is_refused() -> None:
    with pytest.raises(UnsupportedOptionError, match="train mode"):
        optimize_for_gpu(tiny_drafter().train(), PADDED)
    with pytest.raises(UnsupportedOptionError, match="another drafter"):
        optimize_for_gpu(nn.Linear(1, 1), PADDED)
    assert not can_capture(torch.device("cpu"))
    with pytest.raises(UnsupportedOptionError, match="on cpu"):
        optimize_for_gpu(tiny_drafter())
