"""Measuring a network on a split: in evaluation mode, without augmentation, in full float32.

Tests: tests/training/engine/test_evaluate.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lastlayer import geometry, losses, measures, tasks
from lastlayer._core.precision import full_precision, without_tf32
from lastlayer.data import Dataset, Split
from lastlayer.heads import Head
from lastlayer.training import facts
from lastlayer.training.build import Network

T = TypeVar("T")

MOST_SNAPSHOTS = 60
SNAPSHOT_SAMPLES = 500
HISTOGRAM_BINS = 80
LARGEST_MATRIX = 200  # classes up to which the cosine matrix is kept
LARGEST_INPUTS = 1000 * 3 * 32**2  # numbers in a batch: a backbone needs some hundred times the memory of its inputs
LARGEST_BATCH = 1000  # samples on a CPU
# numbers in a batch on a CPU: larger outputs get fresh memory from the system, which costs more than the layers
LARGEST_CPU_INPUTS = 100 * 3 * 32**2


@dataclass(frozen=True)
class Outputs:
    """Features and logits of a split, or of its `measured_part` if all logits would not fit in memory."""

    features: Tensor  # (M, d)
    logits: Tensor  # (M, K)
    target: Tensor  # (M,)
    rows: Tensor | None = None  # (M,) which samples these are, if not all of the split
    decided: Tensor | None = None  # (N,) the decision for every sample, if `rows` are not all
    labels: Tensor | None = None  # (N,) the label of every sample, if `rows` are not all
    unknown: Outputs | None = None  # of the samples of unknown classes, if the split has such

    @property
    def decision(self) -> Tensor:
        """The decision for every sample of the split, (N,)."""
        return self.logits.argmax(1) if self.decided is None else self.decided

    @property
    def label(self) -> Tensor:
        """The label of every sample of the split, (N,)."""
        return self.target if self.labels is None else self.labels

    @property
    def accuracy(self) -> float:
        """On every sample of the split."""
        return float((self.decision == self.label).double().mean())


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
    """The split, or an even share of each of its classes if the whole has more than LARGEST_LOGITS logits."""
    rows = facts.measured_rows(len(split), num_classes)
    return split if rows == len(split) else split.select(even_share(split.target, rows))


def even_share(target: Tensor, rows: int) -> Tensor:
    """So many rows in increasing order, an even share of each class."""
    by_class = torch.argsort(target, stable=True)
    even = torch.arange(rows, device=by_class.device) * len(target) // rows
    return by_class[even].sort().values


def outputs(network: Network, split: Split) -> Outputs:
    """Features and logits of every sample of a split, or of its `measured_part`."""
    return finish(read(network, split, None))


def finish(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, and return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


def read(network: Network, split: Split, progress: T) -> Generator[T, None, Outputs]:
    """What `outputs` returns. Yields `progress` before each batch, so that others can use the device in between."""
    part = measured_part(split, network.head.num_classes)
    features, logits = yield from _read(network, part, progress, lambda head, x: (head.features(x), head(x)))
    made = Outputs(features, logits, part.target.to(logits.device))
    if part is split:
        return made
    (decided,) = yield from _read(network, split, progress, lambda head, x: (head(x).argmax(1),))
    rows = even_share(split.target, len(part))
    return dataclasses.replace(made, rows=rows, decided=decided, labels=split.target.to(decided.device))


def read_test(network: Network, dataset: Dataset, progress: T) -> Generator[T, None, Outputs]:
    """What `outputs` returns for the test split, and for the samples of unknown classes if there are any."""
    made = yield from read(network, dataset.test, progress)
    if dataset.unknown is None:
        return made
    unknown = yield from read(network, dataset.unknown, progress)
    return dataclasses.replace(made, unknown=unknown)


def _read(
    network: Network, split: Split, progress: T, made_of: Callable[[Head, Tensor], tuple[Tensor, ...]]
) -> Generator[T, None, tuple[Tensor, ...]]:
    """One pass over a split. `made_of` gets the head and the backbone's output; its results are joined over batches."""
    device, numbers = next(network.parameters()).device, split.inputs.shape[1:].numel()
    size = min(len(split), LARGEST_INPUTS // numbers, facts.LARGEST_LOGITS // network.head.num_classes)
    if device.type == "cpu":
        size = min(size, LARGEST_BATCH, LARGEST_CPU_INPUTS // numbers)
    backbone = _channel_by_channel(network.backbone) if device.type == "cuda" else network.backbone
    wholes: tuple[Tensor, ...] = ()
    for start in range(0, len(split), max(1, size)):
        yield progress
        rows = slice(start, start + max(1, size))
        with evaluation(network):  # for one batch at a time: others must not run in it
            made = made_of(network.head, backbone(network.normalize(split.inputs[rows].to(device))))
            # Each batch is put in its place at once. If batches were kept until the end, they would lie in memory where
            # the batches' inputs were, and the allocator could give none of that to the next batch.
            wholes = wholes or tuple(part.new_empty(len(split), *part.shape[1:]) for part in made)
            for whole, part in zip(wholes, made, strict=True):
                whole[rows] = part
    return wholes


def _channel_by_channel(backbone: nn.Module) -> Callable[[Tensor], Tensor]:
    """The backbone with its weights laid out channel by channel: a GPU is fastest so in float32."""
    weights = {name: parameter.detach().contiguous() for name, parameter in backbone.named_parameters()}
    return lambda inputs: torch.func.functional_call(backbone, weights, (inputs.contiguous(),))


def measure(network: Network, loss: losses.Loss, dataset: Dataset, made: Outputs, *, on_test: bool) -> dict[str, float]:
    """Every measure of a split. The test split also has those of open sets and long tails, if the data have them.

    Args:
        network, loss: as trained.
        dataset: of the split.
        made: of the split; that of the test split by `read_test`.
        on_test: whether it is the test split.
    """
    with evaluation(network):
        weight, bias = network.head.linear()
        logits, unknown = made.logits, None
        if made.unknown is not None:
            unknown = made.unknown.logits
            logits = logits.double()  # in float32 many probabilities near 1 would be equal
        counts = dataset.train_counts.to(made.logits.device)
        tailed = on_test and (dataset.imbalance is not None or tasks.is_skewed(counts))
        values = measures.evaluate(
            features=made.features,
            target=made.target,
            weight=weight,
            bias=bias,
            logits=made.logits,
            probabilities=loss.probabilities(logits),
            posterior=None if loss.sums_to_one else loss.posterior(logits),
            single=loss.single(logits),
            unknown_logits=unknown,
            unknown_probabilities=None if unknown is None else loss.probabilities(unknown.double()),
            unknown_features=None if made.unknown is None else made.unknown.features,
            unknown_target=None if made.unknown is None else made.unknown.target,
            train_counts=counts if tailed else None,
            gamma=network.head.norm_weight(),
        )
    return values if made.rows is None else {**values, **_on_all_samples(made, counts if tailed else None)}


def _on_all_samples(made: Outputs, counts: Tensor | None) -> dict[str, float]:
    """The measures that need no logits, only decisions."""
    found = tasks.per_class(made.decision, made.label, made.logits.shape[1])
    values = {"balanced_accuracy": found.recall.nanmean(), "macro_f1": found.f1.nanmean()}
    if counts is not None:
        groups = tasks.by_frequency(found.recall, counts)
        values |= {"many": groups.many, "medium": groups.medium, "few": groups.few}
    return {"accuracy": made.accuracy, **{name: float(value) for name, value in values.items()}}


def score(loss: losses.Loss, made: Outputs) -> dict[str, float]:
    """What settings are chosen by. `measure` gives the same numbers and many more, which cost more."""
    recall = tasks.per_class(made.decision, made.label, made.logits.shape[1]).recall
    nll = tasks.calibration(loss.probabilities(made.logits), made.target).nll
    return {"accuracy": made.accuracy, "balanced_accuracy": float(recall.nanmean()), "nll": float(nll)}


def evaluation_epochs(epochs: int, evaluations: int) -> set[int]:
    """After which epochs to measure: at the start, at the end, and evenly between. Never, for no evaluations.

    Example:
        >>> sorted(evaluation_epochs(30, 3))
        [0, 10, 20, 30]
    """
    count = min(evaluations, epochs)
    return {round(i * epochs / count) for i in range(count + 1)} if count else set()


def snapshot_epochs(evaluations: set[int]) -> set[int]:
    """After which of the evaluations to take a snapshot: all, or 60 spread evenly from the first to the last.

    Every checkpoint holds all snapshots, so their number must not grow with the number of evaluations.
    """
    ordered = sorted(evaluations)
    count = min(len(ordered), MOST_SNAPSHOTS)
    return {ordered[round(i * (len(ordered) - 1) / max(count - 1, 1))] for i in range(count)}


def snapshot_samples(split: Split, num_classes: int) -> Tensor:
    """Rows of the first measured samples of each class, at most 500: the same in every run on these data."""
    split = measured_part(split, num_classes)
    share = max(1, SNAPSHOT_SAMPLES // num_classes)
    order = torch.argsort(split.target, stable=True)
    ordered = split.target[order]
    starts = torch.searchsorted(ordered, torch.arange(num_classes, device=ordered.device))
    rank = torch.arange(len(order), device=order.device) - starts[ordered]
    return order[rank < share][:SNAPSHOT_SAMPLES]


def snapshot(made: Outputs, chosen: Tensor) -> dict[str, Tensor]:
    """What pictures show of one moment of a training: features of some samples, class cosines, logit histograms.

    Features are in float32. `compact` makes all snapshots but the last smaller.
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
    """A snapshot as it is kept once another follows: half precision is enough for points in a plane."""
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
    kept = {
        "epochs": torch.tensor(epochs),
        "target": taken[-1]["target"],
        "features": last,
        "points": torch.nn.functional.pad(points, (0, 2 - points.shape[2])),
    }
    for name in ("range", "true_logits", "false_logits", "cosines"):
        if all(name in one for one in taken):
            kept[name] = torch.stack([one[name] for one in taken])
    return kept
