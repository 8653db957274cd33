"""`specblock generate`: answer one prompt, streamed, with or without a drafter."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveInt, restricted_number_type
from transformers import TextStreamer
from transformers.utils.logging import disable_progress_bar

from specblock_zoo.bench.tasks import check_fits, encode_prompt
from specblock_zoo.errors import ConfigurationError
from specblock_zoo.hub.pairing import check_pair
from specblock_zoo.hub.zoo import load_drafter
from specblock_zoo.targets.local import load_target

DtypeName = Literal["auto", "float32", "bfloat16"]
DEFAULT_TARGET = "smollm2-135m"
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


def generate(
    prompt: str,
    target: str = DEFAULT_TARGET,
    drafter: str | None = None,
    max_new_tokens: PositiveInt = 128,
    sampling: Sampling = GREEDY,
    dtype: DtypeName = "auto",
) -> None:
    """Answers a prompt with a target, streaming; a drafter makes it faster and leaves the text as it is.

    Args:
        prompt: the user's message; goes through the target's chat template where it has one.
        target: name of an embedded target, a model folder or a Hub repository.
        drafter: name in the zoo (the tag may be left out) or a folder; without one the target decodes alone.
        max_new_tokens: at most that many tokens of answer.
        sampling: temperature and seed.
        dtype: of both models; auto takes bfloat16 where the device multiplies it natively, else float32.

    Raises:
        ConfigurationError: the prompt is no text.
        PromptTooLongError: prompt and answer exceed the target's positions.
        UnknownNameError: no such drafter.
        TargetMismatchError: the drafter was made for another target, or for its tokenizer before a change.
    """
    disable_progress_bar()
    check_text(prompt)
    model, tokenizer = load_target(target, dtype=dtype_of(dtype))
    assistant = load_drafter(drafter, dtype=model.dtype) if drafter is not None else None
    if assistant is not None:
        check_pair(model, tokenizer, assistant)
    input_ids = encode_prompt(tokenizer, prompt)
    check_fits(input_ids.shape[1], max_new_tokens, model.config.max_position_embeddings)
    torch.manual_seed(sampling.seed)
    answer: Any = model.generate
    answer(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        assistant_model=assistant,
        max_new_tokens=max_new_tokens,
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        **sampling.arguments,
    )
    stats = assistant.last_stats if assistant is not None else None
    if stats is not None and stats.rounds:
        print(f"[{stats.committed} tokens in {stats.rounds} rounds, tau {stats.tau:.2f}]", file=sys.stderr)


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
