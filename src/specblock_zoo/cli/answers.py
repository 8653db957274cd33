"""`specblock answers` and `specblock cache_verify`: the ends of the data's way, before and after the cache."""

from specblock_zoo.data.answers import AnswerSettings, write_answers
from specblock_zoo.data.verify_cache import verify_cache


def answers(settings: AnswerSettings) -> None:
    """Lets the target answer prompts, as records that `specblock cache` reads.

    Args:
        settings: which prompts, which target, how to sample, and where to write.

    Raises:
        SpecBlockError: bad input; see `write_answers`.
    """
    count = write_answers(settings)
    print(f"{settings.out}: {count:,} new answers, ready for `specblock cache`")


def cache_verify(cache_dir: str, target: str | None = None, samples: int = 8, device: str = "cpu") -> None:
    """Checks a feature cache against its checksums and against the live target.

    Args:
        cache_dir: the folder `specblock cache` wrote.
        target: the live target; the one the cache names when not given.
        samples: sequences that are computed anew.
        device: where the target runs.

    Raises:
        CorruptCacheError: bytes or states are not what they should be.
        CacheMismatchError: the cache was built with another target.
    """
    found = verify_cache(cache_dir, target, samples, device)
    for layer, error in found.errors.items():
        print(f"layer {layer}: stored states differ by {error:.3%} of their size")
    print(f"{cache_dir}: sound; {found.samples} sequences recomputed, {found.stored_error:.3%} when it was written")
