"""One trial over several devices: what a training asks of the other processes, by Lightning Fabric.

Tests: tests/training/engine/test_ranks.py, and tests/runners/test_ranks.py with several processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Ranks:
    """The processes that share a trial, each with a device and its part of every batch.

    Every rank holds the whole network and the whole data, and steps along the gradient of the whole batch. So all
    networks stay equal. Batch norm spans all parts of the batch on GPUs, but only the rank's own on a CPU.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank: int = fabric.global_rank
        self.count: int = fabric.world_size

    def part(self, batch_size: int) -> int:
        """Samples of each rank in a batch, or ValueError if it cannot be divided evenly."""
        check_batch(batch_size, self.count)
        return batch_size // self.count

    def average_gradients(self, network: torch.nn.Module) -> None:
        """Replace each gradient by its mean over the ranks, in one exchange."""
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        together = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        start = 0
        for gradient in gradients:
            gradient.copy_(together[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a tensor over the ranks."""
        result = self.fabric.all_reduce(value, reduce_op="mean")
        assert isinstance(result, Tensor)
        return result


def check_batch(batch_size: int, devices: int) -> None:
    """Raise ValueError unless a batch can be divided evenly among devices."""
    if batch_size % devices:
        nearest = batch_size // devices * devices or devices
        raise ValueError(f"batch_size {batch_size} does not divide among {devices} devices: {nearest} would")


def import_fabric() -> type[Fabric]:
    """Lightning Fabric, or an error that names the extra."""
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise ImportError("several devices need Lightning Fabric: pip install 'lastlayer[devices]'") from None
    return Fabric
