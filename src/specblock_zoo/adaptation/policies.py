"""The policies an adaptation is judged against: literal table, name -> rule and the updates it may choose from."""

from collections.abc import Mapping
from dataclasses import replace

from specblock_zoo.adaptation.events import Action
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.adaptation.settings import AdaptationConfig
from specblock_zoo.adaptation.updater import serving_copy
from specblock_zoo.errors import UnknownNameError
from specblock_zoo.models.base import Drafter
from specblock_zoo.models.specblock import SpecBlockDrafter

PLAIN, NONE = "plain", "none"
BOTH = (Action.HEAD, Action.FULL)
POLICIES: Mapping[str, tuple[str, tuple[Action, ...]]] = {
    PLAIN: (PLAIN, ()),
    NONE: (NONE, ()),
    "always": ("always", BOTH),
    "full": ("bandit", (Action.FULL,)),
    "head": ("bandit", (Action.HEAD,)),
    "bandit": ("bandit", BOTH),
}
"""`plain` has no drafter, `none` one that never changes; `always` updates whenever a buffer is full (online speculative
decoding); `full` and `head` are the bandit with one update to choose from."""


def check_policies(names: tuple[str, ...]) -> None:
    """Raises `UnknownNameError` for a name that is not in the table."""
    unknown = sorted(set(names) - set(POLICIES))
    if unknown or not names:
        raise UnknownNameError(
            f"No policy is called {', '.join(unknown) or 'nothing'}; there are {', '.join(POLICIES)}.",
            "Correct the list of policies.",
        )


def drafter_of(policy: str, drafter: SpecBlockDrafter, settings: AdaptationConfig) -> Drafter | None:
    """What serves under a policy, made from a plain drafter that stays as it is; None: the target alone."""
    rule, actions = POLICIES[policy]
    if rule == PLAIN:
        return None
    if rule == NONE:
        return serving_copy(drafter, settings.prepack)
    bandit = replace(settings.bandit, policy=rule, actions=actions)  # type: ignore[arg-type]  # the table's words
    return AdaptiveDrafter(drafter, replace(settings, bandit=bandit))
