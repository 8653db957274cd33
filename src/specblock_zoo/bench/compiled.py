"""Plain decoding with a compiled forward: the strongest baseline that needs no drafter."""

import functools
import shutil
from typing import Any

import torch
from transformers import PreTrainedModel, StaticCache

from specblock_zoo.bench.ask import Answer, Ask, Question, ask_plainly
from specblock_zoo.errors import MissingPackageError
from specblock_zoo.inference.versions import CACHE_NAME

COMPILERS = ("g++", "clang++", "c++")


def check_compiler() -> None:
    """Raises `MissingPackageError` where inductor could not build its kernels for a CPU."""
    if not any(map(shutil.which, COMPILERS)):
        raise MissingPackageError(
            f"A compiled forward needs a C++ compiler; none of {', '.join(COMPILERS)} is on the path.",
            "Install one, or leave the method plain_compiled out.",
        )


def ask_compiled(model: PreTrainedModel, longest: int) -> Ask:
    """Greedy or sampled decoding of `model` whose one-token forwards are compiled; `model` is changed in place.

    The prompt is read by the uncompiled forward: its length changes, and each length would be compiled anew. On a CPU
    inductor freezes the weights, i.e. lays them out for the matrix kernels as `optimize_for_cpu` does.

    Args:
        longest: tokens of the longest prompt with its answer; the static cache has that many columns.
    """
    uncompiled: Any = model.forward
    options: Any = {"freezing": True} if model.device.type == "cpu" else {}
    compiled = torch.compile(uncompiled, dynamic=False, options=options)
    cache = StaticCache(config=model.config, max_cache_len=longest)

    @functools.wraps(uncompiled)
    def forward(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        return (compiled if ids is not None and ids.shape[1] == 1 else uncompiled)(*args, **kwargs)

    model.forward = forward

    def ask(question: Question) -> Answer:
        cache.reset()
        options: dict[str, Any] = {CACHE_NAME: cache, "disable_compile": True}
        return ask_plainly(model, question, **options)

    return ask
