"""Measures how much of a decode round lies outside both models' forwards, and ends with one JSON line.

Usage: python benchmarks/decode_overhead.py --drafter=NAME   (on an otherwise idle machine)
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jsonargparse import auto_cli

from specblock_zoo.bench.tasks import encode_prompt
from specblock_zoo.bench.timing import thread_limit
from specblock_zoo.cli.demo import DEFAULT_DRAFTER, QUESTIONS
from specblock_zoo.cli.generate import DEFAULT_TARGET, DtypeName, answered, dtype_of
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.stats import DecodeStats, tau_of
from specblock_zoo.targets.local import load_target

FORWARDS = {"target": ("forward",), "drafter": ("extend", "branch")}


@contextmanager
def timed(models: dict[str, Any]) -> Iterator[list[float]]:
    """Seconds of every forward of these models, in order, the prompt's among them."""
    seconds: list[float] = []

    def wrapped(call: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            before = time.perf_counter()
            result = call(*args, **kwargs)
            seconds.append(time.perf_counter() - before)
            return result

        return forward

    names = [(models[kind], name) for kind in models for name in FORWARDS[kind]]
    for model, name in names:
        setattr(model, name, wrapped(getattr(model, name)))
    try:
        yield seconds
    finally:
        for model, name in names:
            delattr(model, name)


def other_share(stats: DecodeStats, forward_seconds: list[float]) -> float:
    """Share of all rounds outside both models' forwards, 0..1. The first forward reads the prompt and is left out."""
    rounds = stats.draft_ms + stats.verify_ms + stats.other_ms
    return 1.0 - 1000.0 * sum(forward_seconds[1:]) / rounds


def main(
    drafter: str = DEFAULT_DRAFTER,
    target: str = DEFAULT_TARGET,
    max_new_tokens: int = 128,
    dtype: DtypeName = "bfloat16",
    threads: int = 2,
) -> None:
    """Answers three questions and prints {"other_share": share of a round, "tau": tokens per round}.

    Other is the growth of the tree, masks, the walk, the text's rules, the cache's compaction and all bookkeeping.

    Args:
        drafter: name in the zoo or a folder.
        target: name of an embedded target, a model folder or a Hub repository.
        max_new_tokens: at most that many per answer.
        dtype: of both models.
        threads: of torch.
    """
    with thread_limit(threads):
        model, tokenizer = load_target(target, dtype=dtype_of(dtype))
        assistant = load_drafter(drafter, dtype=model.dtype)
        options = {"assistant_model": assistant, "max_new_tokens": max_new_tokens, "do_sample": False}
        answered(model, encode_prompt(tokenizer, "Hello"), **options)
        shares, measured = [], []
        for name, question in QUESTIONS:
            with timed({"target": model, "drafter": assistant}) as seconds:
                answered(model, encode_prompt(tokenizer, question), **options)
            measured.append(assistant.last_stats)
            shares.append(other_share(measured[-1], seconds))
            print(f"{name}: {shares[-1]:.3f} of a round, tau {measured[-1].tau:.2f}")
    print(json.dumps({"other_share": round(statistics.median(shares), 4), "tau": round(tau_of(measured), 3)}))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    auto_cli(main, as_positional=False)
