"""A drafter decides how fast the text comes, never what it says."""

from collections.abc import Callable

import pytest
import torch

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.models.specblock import SpecBlockDrafter
from tests.support.decoding import WIDTH, config_for, generate, prompt_ids, random_drafter, scripted_drafter, target_of

pytestmark = pytest.mark.contract

NEW = 20


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_an_oracle_is_accepted_whole(family: str, num_blocks: int) -> None:
    target, ids = target_of(family), prompt_ids(5)
    depth = WIDTH * num_blocks
    new_tokens = 1 + 3 * (depth + 1)
    drafter = scripted_drafter(target, generate(target, ids, new_tokens), num_blocks=num_blocks, max_nodes=40)
    generate(target, ids, new_tokens, assistant_model=drafter)
    assert drafter.last_stats.accepted_per_round == (depth,) * 3
    assert drafter.last_stats.tau == depth + 1
    assert set(drafter.last_stats.alpha_by_depth.values()) == {1.0}


def test_a_drafter_that_is_never_right_costs_no_more_rounds_than_tokens() -> None:
    target, ids = target_of("llama"), prompt_ids(5)
    text = generate(target, ids, NEW)
    drafter = scripted_drafter(target, text, lambda _: -1)
    assert torch.equal(generate(target, ids, NEW, assistant_model=drafter), text)
    assert drafter.last_stats.rounds == drafter.last_stats.committed == NEW - 1
    assert drafter.last_stats.tau == 1.0


def nan_weights(drafter: SpecBlockDrafter) -> None:
    for parameter in drafter.parameters():
        parameter.data.fill_(float("nan"))


def nan_head(drafter: SpecBlockDrafter) -> None:
    drafter.lm_head.weight.data.fill_(float("nan"))


def infinite_head(drafter: SpecBlockDrafter) -> None:
    drafter.lm_head.weight.data.mul_(1e38)


def foreign_tokens(drafter: SpecBlockDrafter) -> None:
    drafter.d2t[::2] = 10_000
    drafter.d2t[1::3] = -10_000


def only_foreign_tokens(drafter: SpecBlockDrafter) -> None:
    drafter.d2t.fill_(10_000)


def one_token(drafter: SpecBlockDrafter) -> None:
    drafter.d2t.copy_(-torch.arange(len(drafter.d2t)))


def enormous_weights(drafter: SpecBlockDrafter) -> None:
    for parameter in drafter.parameters():
        parameter.data.mul_(1e20)


@pytest.mark.parametrize(
    ("name", "value"), [("max_nodes", 0), ("num_blocks", 0), ("beam_width", -1), ("min_path_prob", 2.0)]
)
def test_drafting_options_set_out_of_range_are_refused_before_the_prompt_is_read(name: str, value: float) -> None:
    target = target_of("llama")
    drafter = random_drafter(target)
    setattr(drafter.config, name, value)
    with pytest.raises(ConfigurationError, match=name):
        generate(target, prompt_ids(5), NEW, assistant_model=drafter)
    assert drafter.last_stats is None


HOSTILE = [nan_weights, nan_head, infinite_head, foreign_tokens, only_foreign_tokens, one_token, enormous_weights]


@pytest.mark.parametrize("spoil", HOSTILE)
@pytest.mark.parametrize("merge", [True, False])
def test_a_hostile_drafter_changes_nothing_but_speed(spoil: Callable[[SpecBlockDrafter], None], merge: bool) -> None:
    target, ids = target_of("qwen3"), prompt_ids(5)
    drafter = random_drafter(target, num_blocks=3, merge_duplicates=merge)
    spoil(drafter)
    assert torch.equal(generate(target, ids, NEW, assistant_model=drafter), generate(target, ids, NEW))
    torch.manual_seed(1)
    expected = generate(target, ids, NEW, do_sample=True)
    torch.manual_seed(1)
    assert torch.equal(generate(target, ids, NEW, do_sample=True, assistant_model=drafter), expected)


def test_a_smaller_draft_vocabulary_limits_drafts_not_text() -> None:
    target, ids = target_of("llama"), prompt_ids(5)
    torch.manual_seed(0)
    drafter = SpecBlockDrafter(config_for(target, draft_vocab_size=4)).eval()
    assert torch.equal(generate(target, ids, NEW, assistant_model=drafter), generate(target, ids, NEW))
    tokens = {int(token) for each in drafter.last_stats.history for token in each.tree.tokens}
    assert tokens <= {0, 1, 2, 3}
