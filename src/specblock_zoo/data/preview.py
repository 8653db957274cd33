"""Show what will be trained on before a long run starts: one sample with its mask, and the supervised share."""

import warnings
from itertools import pairwise

import numpy as np
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from specblock_zoo.data.examples import Counts, Example

SUPERVISED, CONTEXT = "bold green", "dim"
FEW = 0.05


def draw_example(example: Example, tokenizer: PreTrainedTokenizerBase, most_tokens: int = 200) -> Text:
    """The decoded sequence, supervised tokens in green; of a long one the part around the first supervised token."""
    first = int(example.loss_mask.argmax())
    start = max(0, min(first - most_tokens // 4, len(example) - most_tokens))
    shown = slice(start, start + most_tokens)
    ids, mask = example.input_ids[shown], example.loss_mask[shown]
    text = Text("... " if start else "")
    edges = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(ids)]
    for begin, end in pairwise(edges):
        # Pieces of like kind are decoded whole: a character may be spread over several tokens.
        text.append(str(tokenizer.decode(ids[begin:end].tolist())), style=SUPERVISED if mask[begin] else CONTEXT)
    return text.append(" ..." if shown.stop < len(example) else "")


def check_share(counts: Counts) -> None:
    """Warns where less than 5 % of the tokens are supervised: nearly always a template or a mask gone wrong."""
    share = counts.supervised_tokens / max(1, counts.tokens)
    if share < FEW:
        warnings.warn(
            f"Only {share:.1%} of {counts.tokens:,} tokens are supervised; under {FEW:.0%} the chat template or the "
            "records are usually not what they should be. Look at the sample above.",
            UserWarning,
            stacklevel=2,
        )
