"""The batches of a training: the order of the samples, and what is done to them before the network sees them.

Data lie on the device if they fit there. If not, worker processes gather each batch while the device computes.

Tests: tests/training/engine/test_feed.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from lastlayer import data
from lastlayer.losses import Target
from lastlayer.training.engine.state import State

RESIDENT_SHARE = 0.5  # of the device's free memory that data may take
WORKERS = 2


class Batch(NamedTuple):
    """What a step trains on."""

    inputs: Tensor  # normalised and augmented, (N, ...)
    target: Target  # what the loss takes: the labels, or two labels per sample and the share of the first
    labels: Tensor  # (N,)


class Feed:
    """The batches of a trial.

    Args:
        dataset: what `load_data(trial.data)` gives.
        state: of the trial. The feed reads its position and draws from its generator.
    """

    def __init__(self, dataset: data.Dataset, state: State) -> None:
        device, ranks = state.device, state.ranks
        self.resident = fits(dataset, device)
        self.dataset = dataset.to(device) if self.resident else dataset
        self.order = torch.arange(len(dataset.train), device=device)
        self._wanted = state.trial.augmentation
        self._batch_size, self._steps = state.batch_size, state.steps_per_epoch
        self._part = state.batch_size if ranks is None else ranks.part(state.batch_size)  # samples of this rank
        self._first = 0 if ranks is None else ranks.rank * self._part
        self._offsets = torch.arange(self._part, device=device) + self._first
        self._stream: Iterator[tuple[Tensor, Tensor]] = iter(())

    def begin_epoch(self, generator: torch.Generator) -> None:
        """Draw the order of the samples."""
        torch.randperm(len(self.order), generator=generator, device=self.order.device, out=self.order)
        if not self.resident:
            starts = torch.arange(self._steps, device=self.order.device) * self._batch_size
            self._stream_from(self.order[(starts.unsqueeze(1) + self._offsets).flatten()])

    def offer_one(self) -> None:
        """If data are streamed, prepare one batch, so that a step can be tried before the first epoch begins."""
        if not self.resident:
            self._stream_from(self.order[: self._part])

    def _stream_from(self, order: Tensor) -> None:
        self._stream = streamed(self.dataset.train, order, self._part, self.order.device)

    def draw(self, state: State) -> Batch:
        """The next batch: chosen, augmented, normalised and mixed."""
        chosen, labels = self._choose(state.cursor)
        wanted, generator = self._wanted, state.generator
        if chosen.dim() == 4:
            chosen = data.augment(
                chosen, padding=wanted.crop, flip=0.5 * wanted.flip, degrees=wanted.rotation, generator=generator
            )
        inputs = state.network.normalize(chosen)
        if not (wanted.mixup or wanted.cutmix):
            return Batch(inputs, labels, labels)
        mixed, target = data.mix(
            inputs, labels, mixup_alpha=wanted.mixup, cutmix_alpha=wanted.cutmix,
            probability=wanted.mix_probability, generator=generator,
        )  # fmt: skip
        return Batch(mixed, target, labels)

    def _choose(self, cursor: Tensor) -> tuple[Tensor, Tensor]:
        if not self.resident:
            return next(self._stream)
        if cursor.device.type == "cpu":  # there, arithmetic on tensors costs more than a small layer
            start = int(cursor) % self._steps * self._batch_size + self._first
            index = self.order[start : start + self._part]
        else:
            index = self.order[cursor % self._steps * self._batch_size + self._offsets]
        return self.dataset.train.inputs[index], self.dataset.train.target[index]


def fits(dataset: data.Dataset, device: torch.device) -> bool:
    """Whether a whole data set fits on the device beside the model. It always does on the CPU, where it lies."""
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0]
    splits = (dataset.train, dataset.test, dataset.validation, dataset.unknown)
    elsewhere = [split.inputs for split in splits if split is not None and split.target.device.type != "cuda"]
    return sum(inputs.nbytes for inputs in elsewhere) <= RESIDENT_SHARE * free


class _Rows(TorchDataset[tuple[Tensor, Tensor]]):
    """A split indexed by whole batches: stacking single samples would cost more than reading them."""

    def __init__(self, split: data.Split) -> None:
        self.split = split

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.split.inputs[index], self.split.target[index]


def streamed(
    split: data.Split, order: Tensor, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """The whole batches of one epoch, in the order given, on the device."""
    chosen = [order.cpu()[i : i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]
    pinned = device.type == "cuda"
    loader = DataLoader(_Rows(split), batch_size=None, sampler=chosen, num_workers=WORKERS, pin_memory=pinned)
    for inputs, target in loader:
        yield inputs.to(device, non_blocking=True), target.to(device, non_blocking=True)
