import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specblock_zoo.data.dataset import FeatureDataset, split_by_id
from specblock_zoo.data.feature_cache import FeatureCache
from specblock_zoo.data.layout import LAST_HIDDEN
from specblock_zoo.errors import ConfigurationError, NoSupervisedTokensError
from tests.support.cached import make_cache

IDS = [f"record/{i}" for i in range(2000)]


def test_the_split_has_about_the_asked_share():
    train, val = split_by_id(IDS, 0.1)
    assert len(val) == pytest.approx(200, abs=50)
    assert sorted(train + val) == list(range(2000))


@given(st.permutations(IDS[:60]), st.integers(40, 60))
def test_a_record_stays_on_its_side_whatever_the_others_are(ids, count):
    full = {IDS[i] for i in split_by_id(IDS[:60], 0.3)[1]}
    part = ids[:count]
    assert {part[i] for i in split_by_id(part, 0.3)[1]} == full & set(part)


def test_the_sequences_of_one_record_stay_together():
    ids = [f"record/{i}{part}" for i in range(300) for part in ("", "#part1", "#part2")]
    val = {ids[i] for i in split_by_id(ids, 0.2)[1]}
    assert val == {name for i in range(300) for name in ids[3 * i : 3 * i + 3] if ids[3 * i] in val}


def test_a_larger_share_keeps_the_validation_records_of_a_smaller_one():
    assert set(split_by_id(IDS, 0.05)[1]) < set(split_by_id(IDS, 0.1)[1])


def test_a_share_too_small_to_reach_a_record_still_validates_on_one():
    assert [len(part) for part in split_by_id(IDS[:4], 1e-6)] == [3, 1]
    assert split_by_id(IDS[:4], 0.0)[1] == []


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ConfigurationError, match=str(share)):
        split_by_id(IDS, share)


def test_nothing_left_to_train_on_is_refused():
    with pytest.raises(ConfigurationError, match="All 1 records"):
        split_by_id(IDS[:1], 0.5)


def test_max_length_cuts_every_column_and_drops_what_loses_its_answer(tmp_path):
    examples, _ = make_cache(tmp_path, lengths=(9, 3, 8, 6))
    cache = FeatureCache(tmp_path)
    dataset = FeatureDataset(cache, range(4), max_length=5)
    assert dataset.indices == [i for i in range(4) if examples[i].loss_mask[:5].any() or len(examples[i]) <= 5]
    for i, index in enumerate(dataset.indices):
        whole, cut = cache[index], dataset[i]
        assert len(cut) == dataset.lengths[i] == min(5, len(whole))
        np.testing.assert_array_equal(cut.input_ids, whole.input_ids[:5])
        np.testing.assert_array_equal(cut.teacher[LAST_HIDDEN], whole.teacher[LAST_HIDDEN][:5])
        assert [tap.shape for tap in cut.taps] == [cut.teacher[LAST_HIDDEN].shape] * 3


def test_a_limit_below_one_is_refused(tmp_path):
    make_cache(tmp_path)
    with pytest.raises(ConfigurationError, match="max_length is 0; expected at least 1"):
        FeatureDataset(FeatureCache(tmp_path), [0], max_length=0)


def test_a_limit_that_leaves_nothing_is_refused(tmp_path):
    examples, _ = make_cache(tmp_path, lengths=(9, 9, 9, 9, 9, 9))
    unsupervised = [i for i, example in enumerate(examples) if not example.loss_mask[:1].any()]
    with pytest.raises(NoSupervisedTokensError, match="max_length 1"):
        FeatureDataset(FeatureCache(tmp_path), unsupervised, max_length=1)
