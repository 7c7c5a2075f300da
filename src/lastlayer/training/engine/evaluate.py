"""Measuring a network on a split: in evaluation mode, without augmentation, in full float32.

Tests: tests/training/engine/test_evaluate.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer import geometry, losses, measures
from lastlayer._core.precision import full_precision, without_tf32
from lastlayer.data import Dataset, Split
from lastlayer.heads import Head
from lastlayer.training import facts
from lastlayer.training.build import Network

SNAPSHOT_SAMPLES = 500
HISTOGRAM_BINS = 80
LARGEST_MATRIX = 200  # classes up to which the cosine matrix is kept
LARGEST_INPUTS = 1000 * 3 * 32**2  # numbers in a batch: a backbone needs some hundred times the memory of its inputs
LARGEST_BATCH = 1000  # samples on a CPU
# numbers in a batch on a CPU: the system gives larger outputs fresh memory, which costs more than the layers
LARGEST_CPU_INPUTS = 100 * 3 * 32**2


@dataclass(frozen=True)
class Outputs:
    """What a network makes of a split, or of its `measured_part` if all logits would not fit in memory."""

    features: Tensor  # (N, d)
    logits: Tensor  # (N, K)
    target: Tensor  # (N,)
    accuracy: float | None = None  # on the whole split, if the rest is of a part of it


@contextlib.contextmanager
def evaluation(network: Network) -> Iterator[None]:
    """Evaluation mode without gradients, in full float32: bfloat16 and TF32 cannot resolve a collapsed cosine."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad(), full_precision(next(network.parameters())), without_tf32():
            yield
    finally:
        network.train(training)


def measured_part(split: Split, num_classes: int) -> Split:
    """The split, or an even share of each class of it: as many samples as leave LARGEST_LOGITS logits."""
    rows = facts.measured_rows(len(split), num_classes)
    if rows == len(split):
        return split
    by_class = torch.argsort(split.target, stable=True)
    even = torch.arange(rows, device=by_class.device) * len(split) // rows
    return split.select(by_class[even].sort().values)


def outputs(network: Network, split: Split) -> Outputs:
    """Features and logits of every sample of a split, or of its `measured_part`."""
    reader = Reader(network, split)
    while not reader.is_done:
        reader.read_batch()
    return reader.outputs()


class Reader:
    """Reads what `outputs` gives batch by batch, so that others can use the device in between."""

    def __init__(self, network: Network, split: Split) -> None:
        self._part = measured_part(split, network.head.num_classes)
        self._target = split.target
        self._measured = _Reading(network, self._part, lambda head, x: (head.features(x), head(x)))
        self._decided = None
        if self._part is not split:
            self._decided = _Reading(network, split, lambda head, x: (head(x).argmax(1),))

    @property
    def is_done(self) -> bool:
        """Whether every batch was read."""
        return self._measured.is_done and (self._decided is None or self._decided.is_done)

    def read_batch(self) -> None:
        """Read the next batch."""
        if self._decided is None or not self._measured.is_done:
            self._measured.read_batch()
        else:
            self._decided.read_batch()

    def outputs(self) -> Outputs:
        """What was read."""
        features, logits = self._measured.wholes
        accuracy = None
        if self._decided is not None:
            (decided,) = self._decided.wholes
            accuracy = float((decided == self._target.to(decided.device)).double().mean())
        return Outputs(features, logits, self._part.target.to(logits.device), accuracy)


class _Reading:
    """One pass over a split: what is read off the backbone's output, batches one below the other."""

    def __init__(self, network: Network, split: Split, read: Callable[[Head, Tensor], tuple[Tensor, ...]]) -> None:
        self.wholes: tuple[Tensor, ...] = ()
        self._network, self._split, self._read, self._start = network, split, read, 0
        self._device = next(network.parameters()).device
        numbers = split.inputs.shape[1:].numel()
        size = min(len(split), LARGEST_INPUTS // numbers, facts.LARGEST_LOGITS // network.head.num_classes)
        if self._device.type == "cpu":
            size = min(size, LARGEST_BATCH, LARGEST_CPU_INPUTS // numbers)
        self._size = max(1, size)
        self._backbone = _channel_by_channel(network.backbone) if self._device.type == "cuda" else network.backbone

    @property
    def is_done(self) -> bool:
        return self._start >= len(self._split)

    def read_batch(self) -> None:
        network, rows = self._network, slice(self._start, self._start + self._size)
        with evaluation(network):  # for one batch at a time: others must not run in it
            inputs = network.normalize(self._split.inputs[rows].to(self._device))
            made = self._read(network.head, self._backbone(inputs))
            # Each batch is put in its place at once. If batches were kept until the end, they would lie in memory where
            # the batches' inputs were, and the allocator could give none of that to the next batch.
            self.wholes = self.wholes or tuple(part.new_empty(len(self._split), *part.shape[1:]) for part in made)
            for whole, part in zip(self.wholes, made, strict=True):
                whole[rows] = part
        self._start += self._size


def _channel_by_channel(backbone: nn.Module) -> Callable[[Tensor], Tensor]:
    """The backbone with its weights laid out channel by channel, as a GPU convolves fastest in float32."""
    weights = {name: parameter.detach().contiguous() for name, parameter in backbone.named_parameters()}
    return lambda inputs: torch.func.functional_call(backbone, weights, (inputs.contiguous(),))


def measure(network: Network, loss: losses.Loss, dataset: Dataset, made: Outputs, *, on_test: bool) -> dict[str, float]:
    """Every measure of a split. On the test split also those of open sets and long tails, if the data have them."""
    with evaluation(network):
        weight, bias = network.head.linear()
        logits, unknown = made.logits, None
        if on_test and dataset.unknown is not None:
            unknown = outputs(network, dataset.unknown).logits
            logits = logits.double()  # in float32 many probabilities near 1 would be equal
        tailed = on_test and dataset.imbalance is not None
        counts = dataset.train_counts.to(made.logits.device) if tailed else None
        values = measures.evaluate(
            features=made.features,
            target=made.target,
            weight=weight,
            bias=bias,
            logits=made.logits,
            probabilities=loss.probabilities(logits),
            unknown_logits=unknown,
            unknown_probabilities=None if unknown is None else loss.probabilities(unknown.double()),
            train_counts=counts,
        )
    return values if made.accuracy is None else {**values, "accuracy": made.accuracy}


def snapshot_samples(split: Split, num_classes: int) -> Tensor:
    """Rows of at most 500 of the measured samples, the first of each class: the same in every run on these data."""
    split = measured_part(split, num_classes)
    share = max(1, SNAPSHOT_SAMPLES // num_classes)
    order = torch.argsort(split.target, stable=True)
    ordered = split.target[order]
    starts = torch.searchsorted(ordered, torch.arange(num_classes, device=ordered.device))
    rank = torch.arange(len(order), device=order.device) - starts[ordered]
    return order[rank < share][:SNAPSHOT_SAMPLES]


def snapshot(made: Outputs, chosen: Tensor) -> dict[str, Tensor]:
    """What pictures need of one moment of a training: features of some samples, class cosines, logit histograms.

    Features are in float32, which the last snapshot keeps. `compact` makes the others smaller.
    """
    num_classes = made.logits.shape[1]
    true = torch.zeros_like(made.logits, dtype=torch.bool).scatter_(1, made.target.unsqueeze(1), True)
    low, high = float(made.logits.min()), float(made.logits.max())
    high = high if high > low else low + 1.0
    histogram = {
        name: torch.histc(made.logits[mask].float(), HISTOGRAM_BINS, low, high)
        for name, mask in (("true", true), ("false", ~true))
    }
    kept = {
        "features": made.features[chosen].float(),
        "target": made.target[chosen],
        "range": torch.tensor([low, high]),
        "true_logits": histogram["true"],
        "false_logits": histogram["false"],
    }
    if num_classes <= LARGEST_MATRIX and int((made.target.bincount(minlength=num_classes) > 0).sum()) == num_classes:
        kept["cosines"] = geometry.cosine_collapse(made.features, made.target).inter.float()
    return {name: tensor.cpu() for name, tensor in kept.items()}


def compact(taken: dict[str, Tensor]) -> dict[str, Tensor]:
    """A snapshot as it is kept once another follows: points in a plane need no more than half precision."""
    return {**taken, "features": taken["features"].half()}


def finished_snapshots(epochs: list[int], taken: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """All snapshots of a run as a few tensors.

    Features become points in a plane, which is spanned by the two main axes of the last snapshot's features.

    Args:
        epochs: one per snapshot.
        taken: the snapshots, the last one with its features in float32.

    Returns:
        epochs (E,), target (S,), features (S, d) at the end, points (E, S, 2), range (E, 2), true_logits and
        false_logits (E, bins), and cosines (E, K, K) unless there are too many classes.
    """
    last = taken[-1]["features"]
    centre = last.mean(0)
    _, _, axes = torch.linalg.svd(last - centre, full_matrices=False)
    plane = axes[:2].T  # (d, 2), or (d, 1) if d or S is 1
    points = torch.stack([(compact(one)["features"].float() - centre) @ plane for one in taken])
    if points.shape[2] == 1:
        points = torch.cat([points, torch.zeros_like(points)], 2)
    kept = {
        "epochs": torch.tensor(epochs),
        "target": taken[-1]["target"],
        "features": last,
        "points": points,
    }
    for name in ("range", "true_logits", "false_logits", "cosines"):
        if all(name in one for one in taken):
            kept[name] = torch.stack([one[name] for one in taken])
    return kept
