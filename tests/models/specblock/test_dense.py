"""The dense reference is causal: nothing later ever reaches an earlier position."""

import torch

from specblock_zoo.models.specblock.dense import dense_blocks
from tests.support.drafters import HIDDEN, VOCAB, tiny_drafter


def test_no_block_sees_the_future() -> None:
    torch.manual_seed(0)
    drafter = tiny_drafter(context_slots=2)
    features, tokens = torch.randn(1, 10, 3 * HIDDEN), torch.randint(VOCAB, (1, 10))
    before = dense_blocks(drafter, features, tokens, (2, 1), same_depth_keys=True)
    changed, others = features.clone(), tokens.clone()
    changed[:, 6:] += 1
    others[:, 9:] = (others[:, 9:] + 1) % VOCAB
    after = dense_blocks(drafter, changed, others, (2, 1), same_depth_keys=True)
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(one.logits[:, :6], two.logits[:, :6])
    assert not torch.allclose(before[0].logits[:, 6], after[0].logits[:, 6])
