"""Batches of data that does not fit on the device: gathered by worker processes, copied while the device computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lastlayer.data import Dataset, Split

RESIDENT_SHARE = 0.5  # of the device's free memory that data may take
WORKERS = 2


def fits(dataset: Dataset, device: torch.device) -> bool:
    """Whether all of a data set can live on the device, beside the model; on the CPU it is there already."""
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    splits = (dataset.train, dataset.test, dataset.validation, dataset.unknown)
    elsewhere = [split.inputs for split in splits if split is not None and split.target.device.type != "cuda"]
    return sum(inputs.nbytes for inputs in elsewhere) <= RESIDENT_SHARE * free


class _Rows(TorchDataset[tuple[Tensor, Tensor]]):
    """A split that is asked for whole batches: stacking single samples would cost more than reading them."""

    def __init__(self, split: Split) -> None:
        self.split = split

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.split.inputs[index], self.split.target[index]


def batches(split: Split, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole batches of one epoch, in the order given, on the device."""
    chosen = [order.cpu()[i : i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]
    loader = DataLoader(
        _Rows(split),
        batch_size=None,
        sampler=chosen,
        num_workers=WORKERS,
        pin_memory=device.type == "cuda",
    )
    for inputs, target in loader:
        yield inputs.to(device, non_blocking=True), target.to(device, non_blocking=True)
