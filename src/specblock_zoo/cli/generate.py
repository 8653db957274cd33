"""`specblock generate`: answer one prompt, streamed, with or without a drafter."""

import sys
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveInt, restricted_number_type
from rich.console import Console
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TextStreamer
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench.tasks import check_fits, encode_prompt
from specblock_zoo.cli.drawing import ACCEPTED, BONUS, draw_round
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.inference.prepack import optimize_on_cpu
from specblock_zoo.inference.stats import DecodeStats
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.local import load_target

DtypeName = Literal["auto", "float32", "bfloat16"]
DEFAULT_TARGET = "smollm2-135m"
WARM_UP_TOKENS = 2
Seed = restricted_number_type("Seed", int, [(">=", 0), ("<", 2**64)], docstring="What torch takes as a seed.")


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the most likely token; above 0 samples.
        seed: of the sampling; the same seed gives the same text.
    """

    temperature: NonNegativeFloat = 0.0
    seed: Seed = 0  # type: ignore[valid-type]  # made by a call; an int to mypy's eyes all the same

    @property
    def arguments(self) -> dict[str, bool | float]:
        """The keyword arguments of `generate`."""
        return {"do_sample": True, "temperature": self.temperature} if self.temperature > 0 else {"do_sample": False}


GREEDY = Sampling()


@dataclass(frozen=True)
class Drafting:
    """How the answer is drafted, and what is shown of it.

    Attributes:
        drafter: name in the zoo (the tag may be left out) or a folder; without one the target decodes alone.
        mode: whether whole trees are drafted, or only the likeliest chain.
        num_blocks: drafter forwards per round; the drafter's own default when not given.
        max_nodes: drafted nodes per round; the drafter's own default when not given.
        compare: answer a second time without the drafter, and tell whether the text is the same, and both times.
        show_tree: print the answer again, accepted tokens green and the target's own red, and the best round's tree.
    """

    drafter: str | None = None
    mode: Literal["tree", "chain"] = "tree"
    num_blocks: PositiveInt | None = None
    max_nodes: PositiveInt | None = None
    compare: bool = False
    show_tree: bool = False

    def load(self, dtype: torch.dtype) -> Drafter | None:
        """The drafter with these settings; None where none is named.

        Raises:
            UnknownNameError: no such drafter.
            ConfigurationError: another option needs a drafter, and none is named.
        """
        if self.drafter is None:
            if self != Drafting():
                raise ConfigurationError("No drafter is named, so nothing is drafted.", "Add --drafter NAME.")
            return None
        drafter: Drafter = load_drafter(self.drafter, dtype=dtype)
        chosen = {"num_blocks": self.num_blocks, "max_nodes": self.max_nodes, "chain": self.mode == "chain" or None}
        for name, value in chosen.items():
            if value is not None:
                setattr(drafter.config, name, value)
        return drafter


@dataclass(frozen=True)
class Answer:
    """New token ids, int64 `[tokens]`, and the seconds they took, the prompt's reading included."""

    ids: Tensor
    seconds: float


def generate(
    prompt: str,
    settings: Drafting,
    target: str = DEFAULT_TARGET,
    max_new_tokens: PositiveInt = 128,
    sampling: Sampling = GREEDY,
    dtype: DtypeName = "auto",
) -> None:
    """Answers a prompt with a target, streaming; a drafter makes it faster and leaves the text as it is.

    Args:
        prompt: the user's message; goes through the target's chat template where it has one.
        settings: the drafter and what is shown of its work.
        target: name of an embedded target, a model folder or a Hub repository.
        max_new_tokens: at most that many tokens of answer.
        sampling: temperature and seed.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.

    Raises:
        ConfigurationError: the prompt is no text, or an option needs a drafter and none is named.
        PromptTooLongError: prompt and answer exceed the target's positions.
        UnknownNameError: no such drafter.
        TargetMismatchError: the drafter was made for another target, or for its tokenizer before a change.
    """
    ready = prepare(prompt, settings, target, max_new_tokens, dtype)
    model, tokenizer, drafter, input_ids = ready.model, ready.tokenizer, ready.drafter, ready.input_ids
    options = {"max_new_tokens": max_new_tokens, **sampling.arguments}
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    if settings.compare:
        # What is done once per process (a look at the attention, a cost curve) belongs to neither time.
        answered(model, input_ids, assistant_model=drafter, max_new_tokens=WARM_UP_TOKENS, do_sample=False)
    torch.manual_seed(sampling.seed)
    answer = answered(model, input_ids, assistant_model=drafter, streamer=streamer, **options)
    if drafter is None:
        return
    stats: DecodeStats = drafter.last_stats
    if stats.rounds:
        copied = f", {stats.lookup_accepted} copied from the text" if stats.lookup_accepted else ""
        print(f"[{stats.committed} tokens in {stats.rounds} rounds, tau {stats.tau:.2f}{copied}]", file=sys.stderr)
    if settings.show_tree:
        show(stats, answer, tokenizer)
    if settings.compare:
        torch.manual_seed(sampling.seed)
        print(comparison(answer, answered(model, input_ids, **options), model.dtype), file=sys.stderr)


@dataclass(frozen=True)
class Prepared:
    """What answers a prompt: a target, its tokenizer, a drafter that fits them, and the prompt's ids `[1, length]`."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    drafter: Drafter | None
    input_ids: Tensor


def prepare(prompt: str, drafting: Drafting, target: str, max_new_tokens: int, dtype: DtypeName) -> Prepared:
    """Loads a pair and encodes the prompt; whatever is wrong with them is said here.

    Raises:
        ConfigurationError: the prompt is no text, or an option needs a drafter and none is named.
        PromptTooLongError: prompt and answer exceed the target's positions.
        UnknownNameError: no such drafter.
        TargetMismatchError: the drafter was made for another target, or for its tokenizer before a change.
    """
    disable_progress_bar()
    check_text(prompt)
    model, tokenizer = load_target(target, dtype=dtype_of(dtype))
    drafter = drafting.load(model.dtype)
    if drafter is not None:
        check_pair(model, tokenizer, drafter)
    input_ids = encode_prompt(tokenizer, prompt)
    check_fits(input_ids.shape[1], max_new_tokens, model.config.max_position_embeddings)
    optimize_on_cpu(*(each for each in (model, drafter) if each is not None))
    return Prepared(model, tokenizer, drafter, input_ids)


def answered(model: PreTrainedModel, input_ids: Tensor, **options: Any) -> Answer:
    """Generates; `options` are `generate`'s."""
    call: Any = model.generate
    before = time.perf_counter()
    ids = call(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **options)
    return Answer(ids[0, input_ids.shape[1] :], time.perf_counter() - before)


def comparison(drafted: Answer, plain: Answer, dtype: torch.dtype) -> str:
    """One line: the same text or where it parts, and both times."""
    times = f"plain {plain.seconds:.2f} s, drafted {drafted.seconds:.2f} s, {plain.seconds / drafted.seconds:.2f}x"
    if torch.equal(drafted.ids, plain.ids):
        return f"[{times}; the same {len(plain.ids)} tokens]"
    length = min(len(drafted.ids), len(plain.ids))
    same = int((drafted.ids[:length] == plain.ids[:length]).int().cumprod(0).sum())
    why = "" if dtype is torch.float32 else f"; {str(dtype).removeprefix('torch.')} rounds near ties either way"
    return f"[{times}; the first {same} tokens are the same{why}]"


def show(stats: DecodeStats, answer: Answer, tokenizer: PreTrainedTokenizerBase) -> None:
    """Prints the answer coloured by where its tokens came from, and the tree of the round that accepted most."""
    console = Console(highlight=False)
    console.print(coloured(stats, answer, tokenizer))
    if not stats.rounds:
        return
    best = max(range(stats.rounds), key=stats.accepted_per_round.__getitem__)
    # The first token comes from reading the prompt; the root of a round is the last token before it.
    before = sum(len(each.verdict.committed_tokens) for each in stats.history[:best])
    root = int(answer.ids[before])
    console.print(draw_round(stats.history[best], root, lambda token: str(tokenizer.decode([token]))))


def coloured(stats: DecodeStats, answer: Answer, tokenizer: PreTrainedTokenizerBase) -> Text:
    """Accepted tokens green, the target's own red, the one that reading the prompt gave among these."""
    styles = [BONUS]
    for each in stats.history:
        accepted = len(each.verdict.accepted_nodes)
        styles += [ACCEPTED] * accepted + [BONUS] * (len(each.verdict.committed_tokens) - accepted)
    tokens = zip(answer.ids.tolist(), styles, strict=True)
    return Text.assemble(*((str(tokenizer.decode([token])), style) for token, style in tokens))


def check_text(prompt: str) -> None:
    """Raises `ConfigurationError` for a prompt with bytes that are not UTF-8, which a shell passes on as they are."""
    try:
        prompt.encode()
    except UnicodeEncodeError as cause:
        raise ConfigurationError(
            f"The prompt is not UTF-8: {prompt[cause.start : cause.end]!r} at character {cause.start}.",
            "Give the prompt in UTF-8.",
        ) from cause


def dtype_of(name: DtypeName) -> torch.dtype | None:
    """The torch dtype of a flag; None for `auto`, which leaves the choice to the target's device."""
    return {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[name]
