"""Plain decoding through the same target forward and the same text: the baseline, and the oracle of the laws."""

from collections.abc import Iterator

import torch

from specblock_zoo.functional.tree import flatten
from specblock_zoo.inference.text import Text
from specblock_zoo.inference.verify import Prompt, Verifier
from specblock_zoo.structures import Verdict

NO_DRAFT = flatten(())


@torch.no_grad()
def decode_plain(verifier: Verifier, text: Text, prompt: Prompt) -> Iterator[int]:
    """One target forward per token until the text ends; yields each token. `text` starts with the prompt.

    Each forward gets an explicit mask, which on CPUs is the quicker kernel, so that a baseline timed with it is fair.
    """
    token, finished = text.choose(verifier.read(prompt).logits[0, -1])
    yield token
    while not finished:
        reading = verifier.judge([token], [NO_DRAFT])
        verifier.commit([NO_DRAFT], [Verdict((), (token,), False)])
        token, finished = text.choose(reading.logits[0, 0])
        yield token
