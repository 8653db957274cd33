"""One of several processes that hold a target in shards (FSDP2) and compare its features with the whole one's.

Usage: torchrun --nproc-per-node 2 -m tests.support.sharded
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from specblock_zoo.targets.capture import forward_with_taps
from specblock_zoo.targets.registry import FAMILIES, family_of


def main() -> None:
    """Raises unless every process gets the whole target's features while it holds about half of the numbers."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole, sharded = FAMILIES["qwen3"].tiny_model(), FAMILIES["qwen3"].tiny_model()
    for layer in family_of(sharded.config).decoder_layers(sharded):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    tokens = torch.randint(96, (2, 9), generator=torch.Generator().manual_seed(dist.get_rank()))
    with torch.no_grad():
        (_, expected), (_, found) = (
            forward_with_taps(model, (1, 2, 3), want_last_hidden=True, input_ids=tokens) for model in (whole, sharded)
        )
    torch.testing.assert_close(found.features, expected.features, rtol=0, atol=0)
    torch.testing.assert_close(found.last_hidden, expected.last_hidden, rtol=0, atol=0)
    held = sum(p.to_local().numel() for p in sharded.parameters() if isinstance(p, DTensor))
    total = sum(p.numel() for p in whole.parameters())
    assert held <= 0.6 * total, (held, total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
