import numpy as np
import pytest
import torch

from specblock_zoo.data.collate import collate
from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.layout import LAST_HIDDEN
from tests.support.cached import make_cache


@pytest.fixture
def rows(tmp_path):
    make_cache(tmp_path)
    cache = FeatureCache(tmp_path)
    return [cache[i] for i in (2, 0, 4)]


def test_the_batch_has_the_schema_that_training_reads(rows):
    batch = collate(rows)
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "input_ids": ((3, 7), torch.int64),
        "attention_mask": ((3, 7), torch.bool),
        "loss_mask": ((3, 7), torch.bool),
        "features": ((3, 7, 96), torch.bfloat16),
        "last_hidden": ((3, 7, 32), torch.bfloat16),
    }


def test_every_row_is_its_sequence_and_then_zeros(rows):
    batch = collate(rows)
    for row, example in enumerate(rows):
        end = len(example)
        assert batch["attention_mask"][row].tolist() == [True] * end + [False] * (7 - end)
        bits = batch["features"][row].view(torch.uint16).numpy()
        np.testing.assert_array_equal(bits[:end], np.concatenate(example.taps, axis=-1))
        np.testing.assert_array_equal(
            batch["last_hidden"][row, :end].view(torch.uint16).numpy(), example.teacher[LAST_HIDDEN]
        )
        np.testing.assert_array_equal(batch["input_ids"][row, :end].numpy(), example.input_ids)
        np.testing.assert_array_equal(batch["loss_mask"][row, :end].numpy(), example.loss_mask)
        assert all(not value[row, end:].any() for value in batch.values())


def test_a_batch_owns_its_memory_and_may_be_written(rows):
    batch = collate(rows)
    batch["features"].zero_()
    assert rows[0].taps[0].any()
