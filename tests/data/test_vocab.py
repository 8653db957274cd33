import numpy as np
import torch

from specblock_zoo.data.examples import Example
from specblock_zoo.data.vocab import choose_vocabulary, count_supervised, take_vocabulary
from tests.support.tiny_pair import VOCAB_SIZE, tiny_drafter


def example(ids, supervised):
    return Example("a", np.array(ids, dtype=np.int32), np.array(supervised, dtype=np.bool_))


EXAMPLES = [example([7, 7, 5, 5], [0, 0, 1, 1]), example([7, 9, 5], [0, 1, 1])]


def test_only_supervised_tokens_are_counted():
    counts = count_supervised(EXAMPLES, 12)
    assert counts.nonzero().squeeze(-1).tolist() == [5, 9]
    assert (counts[5], counts[9]) == (3, 1)


def test_coverage_is_the_share_of_supervised_tokens_inside():
    vocab = choose_vocabulary(EXAMPLES, 12, 1)
    assert vocab.t2d.nonzero().tolist() == [[5]]
    assert vocab.coverage == 0.75


def test_tokens_to_keep_always_are_kept():
    assert choose_vocabulary(EXAMPLES, 12, 2, always=[2]).t2d.nonzero().squeeze(-1).tolist() == [2, 5]


def test_a_target_smaller_than_the_draft_vocabulary_is_taken_whole():
    vocab = choose_vocabulary(EXAMPLES, 12, 8192)
    assert vocab.t2d.all()
    assert torch.equal(vocab.d2t, torch.zeros(12, dtype=torch.int64))
    assert vocab.coverage == 1.0


def test_the_vocabulary_of_a_drafter_in_several_files_is_found(tmp_path):
    drafter = tiny_drafter()
    drafter.save_pretrained(tmp_path, max_shard_size="8KB")
    assert not (tmp_path / "model.safetensors").exists()
    vocab = take_vocabulary(tmp_path, EXAMPLES, VOCAB_SIZE)
    assert torch.equal(vocab.t2d, drafter.t2d)
    assert torch.equal(vocab.d2t, drafter.d2t)
