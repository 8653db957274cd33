"""The table of policies."""

import pytest

from specblock_zoo.adaptation.policies import POLICIES, check_policies, drafter_of
from specblock_zoo.adaptation.session import AdaptiveDrafter
from specblock_zoo.errors import UnknownNameError
from tests.support.adapting import eager
from tests.support.drafters import tiny_drafter


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_makes_its_drafter(policy: str) -> None:
    drafter = tiny_drafter()
    made = drafter_of(policy, drafter, eager())
    rule, actions = POLICIES[policy]
    if isinstance(made, AdaptiveDrafter):
        assert (made.settings.bandit.policy, made.settings.bandit.actions) == (rule, actions)
    else:
        assert not actions
        assert made is not drafter


@pytest.mark.parametrize("names", [("none", "oracle"), ()])
def test_unknown_policies_are_named(names: tuple[str, ...]) -> None:
    with pytest.raises(UnknownNameError, match=r"oracle|nothing"):
        check_policies(names)
