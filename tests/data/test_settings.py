import pytest

from specblock_zoo.data.settings import AT_LEAST_ONE, CacheSettings, Extraction
from specblock_zoo.errors import ConfigurationError


def test_the_defaults_are_in_range():
    Extraction(["r"], "t").check()
    CacheSettings(["r"], "t", out="o").check()


@pytest.mark.parametrize("name", AT_LEAST_ONE)
def test_every_bound_is_checked(name):
    with pytest.raises(ConfigurationError, match=f"{name} is 0; expected at least 1"):
        Extraction(["r"], "t", **{name: 0}).check()


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(ConfigurationError, match=f"device is '{device}'"):
        Extraction(["r"], "t", device=device).check()


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigurationError, match="seed is -1; expected at least 0"):
        Extraction(["r"], "t", seed=-1).check()


def test_the_limits_are_those_of_the_arguments():
    limits = Extraction(["r"], "t", max_length=7, max_prompt_tokens=6, max_records=5, max_tokens=4, seed=3).limits
    assert vars(limits) == {"max_length": 7, "max_prompt_tokens": 6, "max_records": 5, "max_tokens": 4, "seed": 3}
