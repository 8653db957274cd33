"""`specblock trace`: one answer, round by round, as one HTML page."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.bench.records import write_atomically
from specblock_zoo.bench.trace import Trace, TraceHeader, Words, render, trace_decode
from specblock_zoo.cli.demo import DEFAULT_DRAFTER, name_of
from specblock_zoo.cli.generate import (
    DEFAULT_TARGET,
    GREEDY,
    Drafting,
    DtypeName,
    Sampling,
    answered,
    prepare,
)
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.base import Drafter

STANDARD_OUTPUT = "-"


@dataclass(frozen=True)
class Tracing:
    """How the answer is drafted, and where the trace goes.

    Attributes:
        drafter: name in the zoo (the tag may be left out) or a folder.
        mode: whether whole trees are drafted, or only the likeliest chain.
        num_blocks: drafter forwards per round; the drafter's own default when not given.
        max_nodes: drafted nodes per round; the drafter's own default when not given.
        out: the file to write; - is standard output. Default trace.html, or trace.json with --json.
        json: write the data alone, without the page.
    """

    drafter: str = DEFAULT_DRAFTER
    mode: Literal["tree", "chain"] = "tree"
    num_blocks: PositiveInt | None = None
    max_nodes: PositiveInt | None = None
    out: str | None = None
    json: bool = False

    @property
    def drafting(self) -> Drafting:
        """The part that `specblock generate` has too."""
        return Drafting(self.drafter, self.mode, self.num_blocks, self.max_nodes)

    @property
    def path(self) -> Path | None:
        """The file to write; None for standard output. Raises `ConfigurationError` where no file can be written."""
        if self.out == STANDARD_OUTPUT:
            return None
        path = Path(self.out or f"trace.{'json' if self.json else 'html'}")
        if path.is_dir() or not path.parent.is_dir():
            problem = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
            raise ConfigurationError(f"The trace's file {path} {problem}.", "Name a file in a folder that exists.")
        return path


def trace(
    prompt: str,
    settings: Tracing,
    target: str = DEFAULT_TARGET,
    max_new_tokens: PositiveInt = 128,
    sampling: Sampling = GREEDY,
    dtype: DtypeName = "auto",
) -> None:
    """Writes how a prompt was answered, round by round, as one HTML page: trees, verdicts, times and the growing text.

    Args:
        prompt: the user's message; goes through the target's chat template where it has one.
        settings: the drafter, and where the trace goes.
        target: name of an embedded target, a model folder or a Hub repository.
        max_new_tokens: at most that many tokens of answer.
        sampling: temperature and seed.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.

    Raises:
        ConfigurationError: the prompt is no text, or the file cannot be written.
        PromptTooLongError: prompt and answer exceed the target's positions.
        UnknownNameError: no such drafter.
        TargetMismatchError: the drafter was made for another target, or for its tokenizer before a change.
    """
    path = settings.path
    ready = prepare(prompt, settings.drafting, target, max_new_tokens, dtype)
    model, tokenizer, drafter, input_ids = ready.model, ready.tokenizer, ready.drafter, ready.input_ids
    if drafter is None:
        raise ConfigurationError("No drafter is named, so there is nothing to trace.", "Add --drafter NAME.")
    header = header_of(prompt, input_ids, (target, model), (settings.drafter, drafter), sampling)
    torch.manual_seed(sampling.seed)
    arguments = {"max_new_tokens": max_new_tokens, **sampling.arguments}
    answer = answered(model, input_ids, assistant_model=drafter, **arguments)
    traced = trace_decode(drafter.last_stats, int(answer.ids[0]), header, words_of(tokenizer))
    text = traced.model_dump_json(indent=2) + "\n" if settings.json else render(traced)
    if path is None:
        sys.stdout.write(text)
        return
    write_atomically(path, text)
    print(f"{path}: {summary(traced)}")


def header_of(
    prompt: str,
    input_ids: Tensor,
    target: tuple[str, PreTrainedModel],
    drafter: tuple[str, Drafter],
    sampling: Sampling,
) -> TraceHeader:
    """What the decode is about; `target` and `drafter` with the names a user gave them."""
    (target_name, model), (drafter_name, assistant) = target, drafter
    tree = assistant.config.tree_settings
    return TraceHeader(
        prompt=prompt,
        prompt_tokens=input_ids.shape[1],
        target=target_name,
        drafter=drafter_name,
        device=model.device.type,
        dtype=name_of(model.dtype),
        threads=torch.get_num_threads(),
        mode="chain" if tree.chain else "tree",
        num_blocks=tree.num_blocks,
        block_width=assistant.config.block_width,
        max_nodes=tree.max_nodes,
        branching=tuple(tree.branching),
        temperature=sampling.temperature,
        seed=sampling.seed,
    )


def words_of(tokenizer: PreTrainedTokenizerBase) -> Words:
    """A tokenizer's words, its special tokens among them and nothing tidied."""

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return Words(lambda ids: decode(list(ids)), lambda token: str(tokenizer.convert_ids_to_tokens(token)))


def summary(traced: Trace) -> str:
    """One line: tokens, rounds and tau."""
    if not traced.rounds:
        return "1 token, no round"
    totals = traced.rounds[-1].totals
    return f"{totals.tokens} tokens in {len(traced.rounds)} rounds, tau {totals.tau:.2f}"
