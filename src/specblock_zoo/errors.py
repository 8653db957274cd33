"""One exception per user mistake. Each says what is wrong, names both values, and carries the remedy as `hint`."""

from collections.abc import Mapping


class SpecBlockError(Exception):
    """Base of every error this package raises on purpose; the CLI prints it and exits with code 2.

    Args:
        problem: what is wrong, with both values (found and expected).
        hint: what to do next, one sentence.
    """

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem} {self.hint}"


class TargetMismatchError(SpecBlockError, ValueError):
    """A drafter, cache or record was made for another target (hidden size, vocabulary, tap layers, name)."""


class CacheMismatchError(SpecBlockError, ValueError):
    """A feature cache does not fit the run: another target, other tap layers, another draft vocabulary."""


class CorruptCacheError(SpecBlockError, ValueError):
    """A feature-cache shard is truncated, missing or not what its manifest says."""


class EmptyDataError(SpecBlockError, ValueError):
    """A data file holds no record."""


class BadRecordError(SpecBlockError, ValueError):
    """A record cannot be read; the message names file and line."""


class NoSupervisedTokensError(SpecBlockError, ValueError):
    """No token of the data would enter the loss."""


class PromptTooLongError(SpecBlockError, ValueError):
    """A prompt does not fit the target's positions or the configured limit."""


class WeightsMismatchError(SpecBlockError, ValueError):
    """A weight file has missing, extra or wrongly shaped tensors."""


class VocabularyMismatchError(SpecBlockError, ValueError):
    """The two copies of a draft-vocabulary map disagree with each other or with the weights."""


class MissingPackageError(SpecBlockError, ImportError):
    """An optional package is needed and absent."""


class UnsupportedOptionError(SpecBlockError, ValueError):
    """A generation option cannot be honoured without changing the text."""


class UnknownNameError(SpecBlockError, ValueError):
    """A name is not in a registry; the message lists the nearest names."""


class UnboundDrafterError(SpecBlockError, RuntimeError):
    """A drafter was asked to draft before it met its target (its token embeddings are the target's)."""


class AccessError(SpecBlockError, RuntimeError):
    """A repository may not be read or written: gated, private, or the token lacks the right."""


class HubError(SpecBlockError, RuntimeError):
    """The Hub cannot be reached, or an exchange with it ended half-way."""


class PublishError(SpecBlockError, ValueError):
    """A folder is not fit to be published; nothing was sent."""


class ConfigurationError(SpecBlockError, ValueError):
    """A configuration value is out of range or contradicts another one."""


def check_values(owner: object, rules: Mapping[str, tuple[bool, str]], hint: str = "Correct the value.") -> None:
    """Raises `ConfigurationError` for the first attribute of `owner` that is not as it should be, naming both values.

    Args:
        rules: attribute -> (whether it is in order, what is expected).
    """
    for name, (holds, expected) in rules.items():
        if not holds:
            raise ConfigurationError(
                f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; expected {expected}.", hint
            )
