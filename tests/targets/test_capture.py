from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from specblock_zoo.errors import ConfigurationError
from specblock_zoo.inference.versions import CACHE_NAME
from specblock_zoo.structures import FINAL_NORM
from specblock_zoo.targets.capture import capture, forward_with_taps
from specblock_zoo.targets.registry import FAMILIES

TAPS = (1, 2, 3)
MODELS = {name: family.tiny_model() for name, family in FAMILIES.items()}
families = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


def outputs_of_layers(model, ids):
    """Every layer's output by plain forward hooks: the slow twin."""
    seen = []
    layers = model.get_decoder().layers
    handles = [layer.register_forward_hook(lambda module, args, output: seen.append(output)) for layer in layers]
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@families
@pytest.mark.parametrize("taps", [(1, 2, 3), (5, 0), (6,), (3, 6, 1)])
def test_features_are_the_outputs_of_the_named_layers_in_the_named_order(model, taps):
    ids = torch.arange(4, 16).view(2, 6)
    layers = outputs_of_layers(model, ids)
    outputs, target = forward_with_taps(model, taps, want_last_hidden=True, input_ids=ids)
    assert torch.equal(target.features, torch.cat([layers[tap] for tap in taps], dim=-1))
    assert torch.equal(target.last_hidden, model.get_decoder()(ids).last_hidden_state)
    assert torch.equal(outputs.logits, model(ids).logits)


@families
def test_last_hidden_is_left_out_unless_wanted(model):
    _, target = forward_with_taps(model, TAPS, input_ids=torch.arange(4, 8)[None])
    assert target.last_hidden is None


@families
def test_the_last_state_alone_can_be_the_features_and_is_not_copied(model):
    ids = torch.arange(4, 16).view(2, 6)
    outputs, target = forward_with_taps(model, (FINAL_NORM,), want_last_hidden=True, input_ids=ids)
    assert torch.equal(target.features, model.get_decoder()(ids).last_hidden_state)
    assert target.features.data_ptr() == target.last_hidden.data_ptr()
    assert torch.equal(outputs.logits, model(ids).logits)


@families
def test_forward_arguments_pass_through_untouched(model):
    """A tree-masked, cached step with one logits row gives the same as plain forwards over the paths."""
    prefix, first, second = torch.tensor([[4, 5, 6]]), 7, 8
    cache = DynamicCache(config=model.config)
    _, before = forward_with_taps(model, TAPS, input_ids=prefix, **{CACHE_NAME: cache})
    mask = torch.zeros(1, 1, 2, 5)
    mask[0, 0, 1, 3] = torch.finfo(torch.float32).min
    outputs, step = forward_with_taps(
        model,
        TAPS,
        input_ids=torch.tensor([[first, second]]),
        **{CACHE_NAME: cache},
        attention_mask=mask,
        position_ids=torch.tensor([[3, 3]]),
        logits_to_keep=1,
    )
    whole, target = forward_with_taps(model, TAPS, input_ids=torch.tensor([[4, 5, 6, second]]))
    assert outputs.logits.shape[1] == 1
    assert step.features.shape[1] == 2
    torch.testing.assert_close(outputs.logits[0, 0], whole.logits[0, -1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(step.features[0, 1], target.features[0, 3], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(before.features[0], target.features[0, :3], atol=1e-5, rtol=1e-5)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=4),
    left=st.booleans(),
    name=st.sampled_from(sorted(MODELS)),
    seed=st.integers(0, 2**16),
)
def test_padded_batches_of_any_size_and_side_equal_batch_one(lengths, left, name, seed):
    model = MODELS[name]
    width = max(lengths)
    ids = torch.randint(3, 96, (len(lengths), width), generator=torch.Generator().manual_seed(seed))
    starts = [width - length if left else 0 for length in lengths]
    mask = torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        mask[row, start : start + length] = True
    batch = capture(model, TAPS, ids, mask)
    for row in range(len(lengths)):
        alone = capture(model, TAPS, ids[row][mask[row]][None], torch.ones(1, lengths[row], dtype=torch.bool))
        torch.testing.assert_close(batch.features[row][mask[row]], alone.features[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(batch.last_hidden[row][mask[row]], alone.last_hidden[0], atol=1e-4, rtol=1e-4)


@families
def test_capture_never_runs_the_head(model):
    def refuse(module, args):
        raise AssertionError("the head ran")

    handle = model.lm_head.register_forward_pre_hook(refuse)
    try:
        capture(model, TAPS, torch.arange(4, 8)[None], torch.ones(1, 4, dtype=torch.bool))
    finally:
        handle.remove()


@families
@pytest.mark.parametrize("taps", [(1, 6), (FINAL_NORM,)])
def test_threads_sharing_a_target_do_not_mix_their_states(model, taps):
    prompts = [torch.randint(3, 96, (1, 5 + i), generator=torch.Generator().manual_seed(i)) for i in range(6)]
    alone = [forward_with_taps(model, taps, input_ids=ids)[1].features for ids in prompts]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            together = list(pool.map(lambda ids: forward_with_taps(model, taps, input_ids=ids)[1].features, prompts))
            assert all(map(torch.equal, together, alone))


@families
def test_a_failed_forward_leaves_no_hook_behind(model):
    norm = model.get_decoder().norm
    with pytest.raises(IndexError):
        forward_with_taps(model, (6,), input_ids=torch.tensor([[10_000]]))
    assert not norm._forward_pre_hooks


@families
@pytest.mark.parametrize("taps", [(), (1, FINAL_NORM)])
def test_the_last_state_beside_layers_is_refused(model, taps):
    with pytest.raises(ConfigurationError, match="7 layers"):
        forward_with_taps(model, taps, input_ids=torch.tensor([[4]]))


@families
def test_a_tap_beyond_the_last_layer_is_refused(model):
    with pytest.raises(ConfigurationError, match=r"\(1, 7\).*7 layers"):
        forward_with_taps(model, (1, 7), input_ids=torch.tensor([[4]]))
