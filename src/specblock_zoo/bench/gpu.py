"""What a target's shapes cost on an accelerator, with random weights: forwards, decoding, a training step."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from specblock_zoo.bench.ask import Question
from specblock_zoo.bench.compiled import ask_compiled
from specblock_zoo.bench.host import peak_memory_mib
from specblock_zoo.bench.oracle import PAPER_ALPHA, OracleDrafter, known_text, make_cyclic
from specblock_zoo.bench.timing import Timed, interleave, summarize
from specblock_zoo.functional.vocab import target_to_draft
from specblock_zoo.inference.cache import Pairs
from specblock_zoo.inference.capture import can_capture, context_of, optimize_for_gpu
from specblock_zoo.inference.grow import Limits, grow_tree, refresh
from specblock_zoo.inference.measure import ANY_DEPTH, FRESH_PAIRS, Workbench
from specblock_zoo.inference.modes import form_of
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.registry import kind_of
from specblock_zoo.targets.registry import family_of
from specblock_zoo.training.initialise import drafter_config
from specblock_zoo.training.methods import METHODS
from specblock_zoo.training.rollout import RolloutSettings
from specblock_zoo.training.teachers import Teacher

TEACHER_SCALE = 20.0
GRAPH_WARM_UP = 3
"""Runs until a graph is replayed: one compiles, one is watched, one is captured."""
OPTIONS: dict[str, dict[str, Any]] = {
    # The deployed settings of the paper; without a curve, so that the tree is the one they say.
    "specblock": {"num_hidden_layers": 2, "num_blocks": 2, "max_nodes": 60, "cost_curve": "off"},
    "eagle3": {"num_hidden_layers": 1, "num_blocks": 8, "max_nodes": 60, "cost_curve": "off"},
}


@dataclass(frozen=True)
class Bench:
    """What is measured.

    Attributes:
        target: shapes of the target.
        device, dtype: of both models; the training step keeps float32 weights and multiplies in `dtype`.
        draft_vocab: draft vocabulary.
        context: tokens before the tree.
        nodes: drafted nodes of the verify forwards, the root not counted; the last but one is a full tree's.
        new_tokens: length of the decoded texts.
        repeats: measurements per case, after one that is not counted.
        batch: sequences and tokens of a training step.
        compiled: also decode with a compiled forward.
    """

    target: PreTrainedConfig
    device: torch.device
    dtype: torch.dtype
    draft_vocab: int = 32_000
    context: int = 512
    nodes: tuple[int, ...] = (1, 16, 60, 90)
    new_tokens: int = 128
    repeats: int = 5
    batch: tuple[int, int] = (4, 512)
    compiled: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: OPTIONS)

    def model(self) -> PreTrainedModel:
        """The target with random weights, made on the device."""
        torch.manual_seed(0)
        with self.device:
            model: PreTrainedModel = AutoModelForCausalLM.from_config(self.target, dtype=self.dtype)
        model.generation_config.eos_token_id = None
        model.eval()
        return model

    def drafter(self, kind: str, dtype: torch.dtype, oracle: bool = False) -> Any:
        """A drafter of one kind with random weights, the first ids of the target as its draft vocabulary."""
        facts = {"draft_vocab_size": self.draft_vocab, "tap_layers": list(self.taps)}
        config = drafter_config(self.target, facts, {"model_type": kind, **self.options[kind]})
        torch.manual_seed(1)
        with self.device:
            drafter: Any = (OracleDrafter if oracle else kind_of(kind).model)(config)
        return drafter.to(dtype).eval()

    @property
    def taps(self) -> tuple[int, ...]:
        """The method's tap layers."""
        return family_of(self.target).tap_layers(self.target)


def weights_mib(module: torch.nn.Module) -> float:
    """Size of a module's parameters in MiB."""
    return round(sum(each.numel() * each.element_size() for each in module.parameters()) / (1 << 20), 1)


def memory_mib(device: torch.device) -> float:
    """Peak memory so far: allocated on the accelerator, resident on a CPU, in MiB."""
    peak = torch.cuda.max_memory_allocated(device) / (1 << 20) if device.type == "cuda" else peak_memory_mib()
    return round(peak, 1)


def medians(cases: Mapping[str, Callable[[int], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Interleaved wall milliseconds of each case: median and quartiles."""
    timed: dict[str, list[Timed[Any]]] = interleave(cases, range(repeats), warm_up=0)
    sums = {name: summarize([1000.0 * call.seconds for call in calls]) for name, calls in timed.items()}
    return {
        name: {"ms": round(s.median, 3), "low": round(s.low, 3), "high": round(s.high, 3)} for name, s in sums.items()
    }


@torch.no_grad()
def forwards(bench: Bench) -> dict[str, Any]:
    """Milliseconds of a round's draft for each kind of drafter, and of the target's forwards by tree size."""
    model = bench.model()
    embeddings = family_of(model.config).embedding_weight(model)
    drafters: dict[str, Any] = {}
    for kind in OPTIONS:
        drafters[kind] = bench.drafter(kind, bench.dtype, oracle=kind == "specblock")
        drafters[kind].attach(embeddings)
    drafters["specblock"].foretell()
    target = Workbench(model, drafters["specblock"], form_of(model), bench.context)
    rounds = {kind: DraftRound(drafter, bench) for kind, drafter in drafters.items()}
    cases: dict[str, Callable[[int], Any]] = {f"draft {kind}": round_.run for kind, round_ in rounds.items()}
    cases["target, 1 token"] = verified(target, 1)
    cases |= {f"verify, {nodes} nodes": verified(target, nodes + 1) for nodes in bench.nodes}
    found = medians(cases, bench.repeats)
    verify = found[f"verify, {bench.nodes[-2]} nodes"]["ms"]
    drafts = {kind: found[f"draft {kind}"]["ms"] for kind in drafters}
    return {
        "milliseconds": found,
        "draft_share": {kind: round(ms / (ms + verify), 4) for kind, ms in drafts.items()},
        "draft_vs_eagle3": round(drafts["specblock"] / drafts["eagle3"], 4),
        "nodes": {kind: round_.nodes for kind, round_ in rounds.items()},
        "drafter_calls": {kind: round_.calls for kind, round_ in rounds.items()},
        "weights_mib": {"target": weights_mib(model), **{kind: weights_mib(each) for kind, each in drafters.items()}},
        "peak_memory_mib": memory_mib(bench.device),
    }


def verified(target: Workbench, tokens: int) -> Callable[[int], Any]:
    """The case of a target forward over `tokens` tokens."""
    return lambda _: target.verify(tokens)


class DraftRound:
    """One round's draft, again and again: refresh with a few fresh pairs, then all blocks of the tree."""

    def __init__(self, drafter: Drafter, bench: Bench) -> None:
        self.drafter, self.cache, self.context = drafter, context_of(drafter), bench.context
        width = len(bench.taps) * bench.target.hidden_size
        features = torch.randn(1, bench.context, width, device=bench.device, dtype=bench.dtype)
        tokens = torch.arange(bench.context, device=bench.device)[None] % bench.draft_vocab
        old, fresh = slice(None, -FRESH_PAIRS), slice(-FRESH_PAIRS, None)
        refresh(drafter, self.cache, Pairs(features[:, old], tokens[:, old], 0))
        self.fresh = Pairs(features[:, fresh], tokens[:, fresh], bench.context - FRESH_PAIRS)
        self.held = len(self.cache)
        self.nodes = self.calls = 0

    def run(self, _: int) -> None:
        """Drafts a tree; the cache is cropped first, so every run does the same."""
        self.cache.crop(len(self.cache) - self.held)
        first = refresh(self.drafter, self.cache, self.fresh)
        limits = Limits(self.drafter.config.tree_settings, ANY_DEPTH)
        tree, self.calls = grow_tree(self.drafter, self.cache, first, self.context - 1, limits)
        self.nodes = len(tree)


@torch.no_grad()
def decoding(bench: Bench) -> dict[str, Any]:
    """Tokens per second of plain decoding, chain and tree at the paper's acceptance; plain compiled where asked for.

    All texts must be the known one; `equal` says so.
    """
    model = bench.model()
    make_cyclic(model, bench.draft_vocab)
    drafter = bench.drafter("specblock", bench.dtype, oracle=True)
    drafter.foretell()
    ids = torch.tensor([known_text(0, bench.context, bench.draft_vocab)], device=bench.device)
    expected = known_text(int(ids[0, -1]), bench.new_tokens, bench.draft_vocab)
    stats: dict[str, Any] = {}

    def drafted(name: str) -> list[int]:
        drafter.config.chain = name == "chain"
        new = written(model, ids, bench.new_tokens, assistant_model=drafter)
        stats[name] = drafter.last_stats
        return new

    cases: dict[str, Callable[[int], list[int]]] = {
        "plain": lambda _: written(model, ids, bench.new_tokens),
        "chain": lambda _: drafted("chain"),
        "tree": lambda _: drafted("tree"),
    }
    timed = interleave(cases, range(bench.repeats), warm_up=0)
    if bench.compiled:
        # Apart and last: the compiled forward takes the place of the model's own.
        ask = ask_compiled(model, bench.context + bench.new_tokens)
        question = Question(ids, bench.new_tokens)
        timed |= interleave({"plain compiled": lambda _: list(ask(question).tokens)}, range(bench.repeats), warm_up=0)
    speeds = {name: summarize([bench.new_tokens / call.seconds for call in calls]) for name, calls in timed.items()}
    best = max(speeds[name].median for name in speeds if name.startswith("plain"))
    return {
        "tokens_per_s": {name: round(each.median, 2) for name, each in speeds.items()},
        "quartiles": {name: [round(each.low, 2), round(each.high, 2)] for name, each in speeds.items()},
        "speedup_over_better_plain": {name: round(speeds[name].median / best, 4) for name in stats},
        "equal": {name: all(call.outcome == expected for call in calls) for name, calls in timed.items()},
        "drafted": {name: figures(each) for name, each in stats.items()},
        "alpha_asked_for": list(PAPER_ALPHA),
        "peak_memory_mib": memory_mib(bench.device),
    }


@torch.no_grad()
def captured(bench: Bench) -> dict[str, Any]:
    """What captured graphs make of a round's draft and of decoding over a static cache; padded only where none can be.

    `equal` says whether all texts are the known one; `cudagraph_skips` counts compiled graphs that were not captured.
    """
    model = bench.model()
    make_cyclic(model, bench.draft_vocab)
    plain, replayed = (bench.drafter("specblock", bench.dtype, oracle=True) for _ in range(2))
    for drafter in (plain, replayed):
        drafter.foretell()
        drafter.attach(family_of(model.config).embedding_weight(model))
    optimize_for_gpu(replayed, None if can_capture(bench.device) else {"disable": True})
    ids = torch.tensor([known_text(0, bench.context, bench.draft_vocab)], device=bench.device)
    expected = known_text(int(ids[0, -1]), bench.new_tokens, bench.draft_vocab)
    room = {"cache_implementation": "static", "max_cache_len": bench.context + bench.new_tokens + max(bench.nodes) + 1}
    rounds = {"plain": DraftRound(plain, bench), "captured": DraftRound(replayed, bench)}
    texts: dict[str, Callable[[int], list[int]]] = {
        "plain": lambda _: written(model, ids, bench.new_tokens, assistant_model=plain),
        "captured": lambda _: written(model, ids, bench.new_tokens, assistant_model=replayed, **room),
    }
    before = time.perf_counter()
    for index in range(GRAPH_WARM_UP):
        rounds["captured"].run(index)
        texts["captured"](index)
    seconds = time.perf_counter() - before
    drafts = medians({name: round_.run for name, round_ in rounds.items()}, bench.repeats)
    timed = interleave(texts, range(bench.repeats), warm_up=0)
    speeds = {name: summarize([bench.new_tokens / call.seconds for call in calls]) for name, calls in timed.items()}
    return {
        "captured": can_capture(bench.device),
        "warm_up_seconds": round(seconds, 1),
        "draft_milliseconds": drafts,
        "tokens_per_s": {name: round(each.median, 2) for name, each in speeds.items()},
        "equal": {name: all(call.outcome == expected for call in calls) for name, calls in timed.items()},
        "drafted": {"plain": figures(plain.last_stats), "captured": figures(replayed.last_stats)},
        "graphs": counters["stats"]["unique_graphs"],
        "cudagraph_skips": counters["inductor"]["cudagraph_skips"],
        "peak_memory_mib": memory_mib(bench.device),
    }


def written(model: PreTrainedModel, ids: Tensor, count: int, **options: Any) -> list[int]:
    """The `count` tokens that greedy `generate` adds."""
    generate: Any = model.generate
    mask = torch.ones_like(ids)
    text = generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0, **options
    )
    return [int(token) for token in text[0, ids.shape[1] :].tolist()]


def figures(stats: Any) -> dict[str, float]:
    """A decode's figures: tau, and mean milliseconds per round."""
    rounds = max(1, stats.rounds)
    times = {name: round(getattr(stats, name) / rounds, 3) for name in ("draft_ms", "verify_ms", "other_ms")}
    return {"tau": round(stats.tau, 3), "draft_share": round(stats.draft_share, 4), **times}


def training(bench: Bench) -> dict[str, Any]:
    """Milliseconds of an update of the SpecBlock drafter: forward, backward, clipping, AdamW."""
    drafter = bench.drafter("specblock", torch.float32).train()
    embeddings = torch.randn(bench.target.vocab_size, bench.target.hidden_size, device=bench.device, dtype=bench.dtype)
    drafter.attach(embeddings)
    head = torch.randn(bench.draft_vocab, bench.target.hidden_size, device=bench.device, dtype=bench.dtype)
    teacher = Teacher(head, target_to_draft(drafter.t2d))
    half_right(drafter)
    batch = half_right_batch(bench, head)
    # A rate of zero: an update costs the same, and the share of rows that stay right does not move.
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=0.0, foreach=True)
    generator = torch.Generator().manual_seed(0)
    rows: list[int] = []

    def step(_: int) -> None:
        optimizer.zero_grad()
        with torch.autocast(bench.device.type, bench.dtype, enabled=bench.dtype is not torch.float32):
            report = METHODS["specblock"].rollout(drafter, batch, teacher, RolloutSettings(), generator)
        report.total().backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        rows.append(int(report.rows.sum()))

    found = medians({"step": step}, bench.repeats)
    sequences, length = bench.batch
    return {
        "milliseconds": found["step"],
        "tokens_per_s": round(1000.0 * sequences * length / found["step"]["ms"], 1),
        "rows_graded": rows[-1],
        "parameters": sum(each.numel() for each in drafter.parameters()),
        "peak_memory_mib": memory_mib(bench.device),
    }


@torch.no_grad()
def half_right(drafter: Any) -> None:
    """Two opposite head rows: one of them always wins, so a text of these two tokens is met half of the time."""
    weight = drafter.lm_head.weight
    weight.mul_(0.01)
    weight[0] = torch.randn_like(weight[0])
    weight[1] = -weight[0]


def half_right_batch(bench: Bench, head: Tensor) -> dict[str, Tensor]:
    """Text of draft tokens 0 and 1, of which the teacher is sure; an eighth of it is prompt."""
    sequences, length = bench.batch
    with bench.device:
        tokens = torch.randint(2, bench.batch)
        inside = torch.ones(bench.batch, dtype=torch.bool)
        counted = (torch.arange(length) > length // 8).expand(sequences, length)
        features = torch.randn(*bench.batch, len(bench.taps) * bench.target.hidden_size, dtype=bench.dtype)
    sure = TEACHER_SCALE * F.normalize(head[F.pad(tokens[:, 1:], (0, 1))].float(), dim=-1)
    return {
        "input_ids": tokens,
        "attention_mask": inside,
        "loss_mask": counted,
        "features": features,
        "last_hidden": sure.to(bench.dtype),
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "forwards": forwards,
    "decoding": decoding,
    "training": training,
    "captured": captured,
}


def tiny(bench: Bench) -> Bench:
    """The same on a CPU within seconds."""
    options = {kind: {**options, "max_nodes": 12, "num_blocks": 2} for kind, options in bench.options.items()}
    return replace(
        bench,
        draft_vocab=64,
        context=24,
        nodes=(1, 4, 12, 16),
        new_tokens=12,
        repeats=2,
        batch=(2, 24),
        options=options,
    )
