"""What makes the host wait for the device in a round: one read per block, one for the verdict, and nothing else.

Run on a CPU, where a tensor counts as the device's once weights, inputs or other such tensors went into it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from specblock_zoo.inference import decode as decode_module
from specblock_zoo.inference.capture import optimize_for_gpu
from specblock_zoo.inference.modes import form_of
from tests.support.decoding import STATIC_TAKES_BACK, generate, prompt_ids, scripted_drafter, target_of

NEW, LENGTH = 24, 12
READS = {
    *(Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.numpy, Tensor.nonzero, Tensor.masked_select, Tensor.equal),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__),
    *(torch.nonzero, torch.masked_select, torch.equal, torch.allclose, torch.unique),
}


def tensors(value: Any) -> Iterator[Tensor]:
    yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


class Transfers(TorchFunctionMode):
    """Counts reads of device tensors."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        super().__init__()
        self.reads: list[str] = []
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                tensor.on_device = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = list(tensors((args, kwargs or {})))
        on_device = any(getattr(each, "on_device", False) for each in inputs)
        by_mask = func is Tensor.__getitem__ and any(each.dtype == torch.bool for each in inputs[1:])
        if on_device and (func in READS or by_mask):
            self.reads.append(getattr(func, "__name__", str(func)))
        result = func(*args, **(kwargs or {}))
        if on_device:
            for each in tensors(tuple(result) if isinstance(result, tuple) else result):
                each.on_device = True
        return result


STATIC = pytest.mark.skipif(not STATIC_TAKES_BACK, reason="this transformers cannot crop static caches")


@pytest.mark.parametrize("captured", [False, pytest.param(True, marks=STATIC)], ids=["plain", "captured"])
@pytest.mark.parametrize("blocks", [1, 2])
def test_a_greedy_round_reads_each_block_and_the_verdict_once(
    blocks: int, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_module, "transfers_cost", lambda device: True)
    model, ids = target_of("llama"), prompt_ids(LENGTH)
    script = generate(model, ids, 2 * NEW)
    drafter = scripted_drafter(model, script, lambda index: index % 3, num_blocks=blocks, cost_curve="off")
    options: dict[str, Any] = {"assistant_model": drafter}
    if captured:
        optimize_for_gpu(drafter, {"disable": True})
        options |= {"cache_implementation": "static", "max_cache_len": 128}
    form_of(model)
    with Transfers(model, drafter) as transfers:
        text = generate(model, ids, NEW, **options)
    assert torch.equal(text, script[:, : LENGTH + NEW])
    history = drafter.last_stats.history
    assert max(round_.drafter_calls for round_ in history) == blocks
    assert transfers.reads == ["__int__"] + sum(round_.drafter_calls + 1 for round_ in history) * ["tolist"]


def test_reads_of_device_tensors_are_counted_and_others_are_not() -> None:
    layer = torch.nn.Linear(2, 2)
    with Transfers(layer) as transfers, torch.no_grad():
        states = layer(torch.ones(1, 2))
        torch.ones(3).tolist()
        assert transfers.reads == []
        states.topk(1).indices.tolist()
        int(states.argmax())
        bool((states > 0).all())
        states[states > 0]
    assert transfers.reads == ["tolist", "__int__", "__bool__", "__getitem__"]
