"""Does this drafter belong to this target? Shapes, layers, vocabulary and the tokenizer it was trained with."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specblock_zoo.errors import TargetMismatchError
from specblock_zoo.inference.refusals import check_fits
from specblock_zoo.models.base import Drafter
from specblock_zoo.targets.identity import tokenizer_sha256


def check_pair(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, drafter: Drafter) -> None:
    """Raises `TargetMismatchError` when drafter and target do not belong together, naming both values.

    The tokenizer is compared where the drafter recorded one: another token table would turn its proposals into nonsense
    that the target rejects, which costs speed and never text.
    """
    check_vocabulary(model, tokenizer, drafter)
    check_fits(model, drafter)
    recorded = drafter.config.tokenizer_hash
    found = tokenizer_sha256(tokenizer)
    if recorded and found != recorded:
        raise TargetMismatchError(
            f"The target's tokenizer hashes to {found[:12]}...; the drafter was trained with {recorded[:12]}... "
            f"(target {drafter.config.target_name}).",
            "Load that target's tokenizer as it was: tokens or chat template differ. "
            "If you know that the tokens agree, set drafter.config.tokenizer_hash = None.",
        )


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, drafter: Drafter) -> None:
    """Raises `TargetMismatchError` for a target whose embedding table was padded or extended differently."""
    expected, found = drafter.config.vocab_size, model.config.vocab_size
    if found != expected:
        raise TargetMismatchError(
            f"The target's vocabulary has {found} rows ({len(tokenizer)} tokens in its tokenizer); "
            f"the drafter was made for {expected}.",
            f"If only padding was added or cut, model.resize_token_embeddings({expected}) undoes it; else use the "
            "drafter of this target.",
        )
