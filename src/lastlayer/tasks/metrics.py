"""Single-logit and open-set measures over batches and ranks: torchmetrics Metrics whose states are sums.

An exact ranking needs every score. A histogram of scores is enough for a close result, and histograms can be added. So
the result does not depend on batches, their order, ranks or interruptions. A bin is the first `bits` bits of a float32,
read as an integer that keeps the order. So bins are finer near zero, and no range must be set. Scores in one bin count
as tied. How much this can change a result is computed from the counts.

Further tests: tests/distributed/test_metrics_tasks.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from lastlayer._core.memory import free_memory
from lastlayer.tasks._ranking import check_recalls, true_positives_needed
from lastlayer.tasks.accuracies import correct
from lastlayer.tasks.inputs import check_matrix, read_target

_CLASSES_AT_ONCE = 16  # classes for which `compute` makes float64 copies at a time


class StreamedSingleLogit(NamedTuple):
    """As `SingleLogit`, and how far each value can be from the exact one."""

    auprc: Tensor
    precision_at: dict[float, Tensor]
    auprc_per_class: Tensor
    auprc_error: Tensor
    precision_error: dict[float, Tensor]


class StreamedOpenSet(NamedTuple):
    """As `OpenSet`, and how far each value can be from the exact one. The accuracy is exact."""

    auroc: Tensor
    oscr: Tensor
    accuracy: Tensor
    auroc_error: Tensor
    oscr_error: Tensor


class _Histograms(Metric):
    """The bins that both metrics share. Faults in the input are counted on the device and raised in `compute`."""

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    rounded: Tensor
    nan: Tensor
    mislabelled: Tensor

    def __init__(self, num_classes: int, bits: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, got {num_classes}")
        if not 2 <= bits <= 24:
            raise ValueError(f"bits must lie in 2..24, got {bits}: a histogram has 2^bits bins")
        self.num_classes, self.bits = num_classes, bits
        self._add_count("rounded")
        self._add_count("nan")
        self._add_count("mislabelled")

    def _add_count(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.int64), dist_reduce_fx="sum", persistent=True)

    @property
    def update_called(self) -> bool:
        """Whether there are samples, including those from a state_dict or a merge."""
        return bool(super().update_called or any(getattr(self, name).any() for name in self._defaults))

    def set_dtype(self, dst_type: str | torch.dtype) -> "_Histograms":
        """Does nothing: counts are integers in every dtype."""
        return self

    def _check(self, logits: Tensor) -> Tensor:
        logits = check_matrix(logits, "logits", empty=True)
        if logits.shape[1] != self.num_classes:
            raise ValueError(f"logits must have {self.num_classes} columns (num_classes), got {logits.shape[1]}")
        self.nan += logits.isnan().sum()
        return logits

    def _labels(self, target: Tensor, logits: Tensor) -> Tensor:
        target = read_target(target, logits.shape[0], logits.device)
        self.mislabelled += ((target < 0) | (target >= self.num_classes)).sum()
        return target.clamp(0, self.num_classes - 1)

    def _bins(self, scores: Tensor) -> Tensor:
        bins, rounded = score_bins(scores, self.bits)
        self.rounded += rounded
        return bins

    def _refuse_faults(self) -> bool:
        """Raise for faults in the samples seen. Returns whether scores were rounded."""
        if int(self.nan):
            raise ValueError(f"logits given to update contain {int(self.nan)} NaN, which has no place in a ranking")
        if int(self.mislabelled):
            raise ValueError(
                f"target given to update held {int(self.mislabelled)} labels outside 0..{self.num_classes - 1}"
            )
        return bool(self.rounded)


class SingleLogitMetrics(_Histograms):
    """`single_logit` over batches and ranks, from one histogram per class.

    The states are integer sums of fixed size. So the result is the same to the last bit however the samples are split
    into batches or ranks, in whatever order they are merged, and after resuming from a `state_dict`. The first `bits`
    bits of a score in float32 choose its bin: the sign, 8 bits of exponent, and the rest mantissa. Scores in one bin
    count as tied. So there are two cases:

    - If no score shares its bin with another value, the result is exactly that of `single_logit`. This is always so for
      bfloat16 logits with bits=16 and for float16 logits with bits=20.
    - Otherwise the error is at most `auprc_error` and `precision_error`, which are computed from the counts.

    Memory: 2^(bits+4) bytes per class (1 MiB for bits=16), and as much again for the zeros that torchmetrics keeps. If
    less memory than that is free, MemoryError is raised. If you have all logits at once, `single_logit` needs less
    memory, because it works on blocks of classes.

    Args:
        num_classes: K.
        recalls: as in `single_logit`.
        bits: bits per bin, 2 to 24.
        kwargs: options of torchmetrics.Metric.

    `update(logits, target)` takes (N, K) logits and (N,) labels; N may be 0. The CPU does not wait for the GPU.
    `compute()` returns StreamedSingleLogit: `auprc`, `precision_at` and `auprc_per_class` as in `single_logit`, with
    `auprc_error` and `precision_error`. Before the first update all but the errors are NaN. If update has seen NaN
    logits or labels out of range, compute raises ValueError.

    Paper: Keren et al. 2018, section 6.
    Tests: tests/tasks/test_metrics.py::test_single_logit_error_is_within_its_bound

    Example:
        >>> metric = SingleLogitMetrics(num_classes=2)
        >>> metric.update(torch.tensor([[3.0, -1.0], [1.0, 0.0]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[2.0, 4.0]]), torch.tensor([1]))
        >>> metric.compute().auprc_per_class
        tensor([0.8333, 1.0000], dtype=torch.float64)
    """

    positive: Tensor
    everything: Tensor

    def __init__(self, num_classes: int, recalls: Sequence[float] = (0.9, 0.99), bits: int = 16, **kwargs: Any) -> None:
        super().__init__(num_classes, bits, **kwargs)
        self.recalls = check_recalls(recalls)
        needed, free = 2 * num_classes << (bits + 4), free_memory(torch.get_default_device())
        if needed > free:  # the system would probably end the process instead of refusing the memory
            raise MemoryError(
                f"histograms of {num_classes:,} classes with {bits} bits take {needed:,} bytes, but {free:,} are free: "
                "give fewer bits, or call single_logit with a function that yields blocks of classes"
            )
        self._add_count("positive", num_classes, 1 << bits)
        self._add_count("everything", num_classes, 1 << bits)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch of (N, K) logits with (N,) labels of any integer dtype."""
        logits = self._check(logits)
        target = self._labels(target, logits)
        offset = torch.arange(self.num_classes, device=logits.device) << self.bits
        bins = self._bins(logits) + offset  # (N, K)
        one = torch.ones((), dtype=torch.int64, device=logits.device)
        own = bins.gather(1, target[:, None]).view(-1)
        self.everything.view(-1).scatter_add_(0, bins.view(-1), one.expand(bins.numel()))
        self.positive.view(-1).scatter_add_(0, own, one.expand(own.numel()))

    def compute(self) -> StreamedSingleLogit:
        """The measures over all samples seen."""
        rounded = self._refuse_faults()
        # Filled in place: small results that stay between large blocks would prevent the reuse of that memory.
        bounds = torch.empty(3 + 2 * len(self.recalls), self.num_classes, dtype=torch.float64, device=self.device)
        for start in range(0, self.num_classes, _CLASSES_AT_ONCE):
            block = slice(start, start + _CLASSES_AT_ONCE)
            counts = self.positive[block], self.everything[block]
            bounds[:3, block] = torch.stack(average_precision_bounds(*counts))
            for i, recall in enumerate(self.recalls):
                bounds[3 + 2 * i : 5 + 2 * i, block] = torch.stack(precision_at_recall_bounds(*counts, recall=recall))
        means = bounds.nanmean(dim=1)
        auprc, low, high = means[:3]
        error = torch.maximum(high - auprc, auprc - low)
        precision, precision_error = {}, {}
        for recall, (low, high) in zip(self.recalls, means[3:].view(-1, 2), strict=True):
            precision[recall], precision_error[recall] = low, high - low if rounded else torch.zeros_like(low)
        return StreamedSingleLogit(
            auprc=auprc,
            precision_at=precision,
            auprc_per_class=bounds[0],
            auprc_error=error if rounded else torch.zeros_like(error),
            precision_error=precision_error,
        )


class OpenSetMetrics(_Histograms):
    """`open_set` over batches and ranks, from three histograms: known and right, known and wrong, unknown.

    The states are integer sums of fixed size with the same bins as in `SingleLogitMetrics`. If no score shares its bin
    with another value, the result equals that of `open_set`. This is always so for bfloat16 and float16 logits with the
    default bits=20. Otherwise the error is at most `auroc_error` and `oscr_error`. Memory: 3 * 2^(bits+3) bytes
    (24 MiB), and as much again for the zeros that torchmetrics keeps.

    Args:
        num_classes: K, the number of known classes.
        bits: bits per bin, 2 to 24.
        kwargs: options of torchmetrics.Metric.

    `update(logits, target)` adds known samples and `update(logits)` unknown ones. The CPU does not wait for the GPU.
    `compute()` returns StreamedOpenSet: `auroc`, `oscr`, `accuracy`, `auroc_error`, `oscr_error`. A value is NaN if the
    known or unknown samples that it needs are missing. If update has seen NaN logits or labels out of range, compute
    raises ValueError.

    Paper: as in `open_set`; Dhamija et al. 2018.
    Tests: tests/tasks/test_metrics.py::test_open_set_error_is_within_its_bound

    Example:
        >>> metric = OpenSetMetrics(num_classes=2)
        >>> metric.update(torch.tensor([[4.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[1.0, 2.0]]))
        >>> result = metric.compute()
        >>> result.auroc.item(), result.oscr.item(), result.accuracy.item()
        (0.75, 0.5, 0.5)
    """

    right: Tensor
    wrong: Tensor
    unknown: Tensor

    def __init__(self, num_classes: int, bits: int = 20, **kwargs: Any) -> None:
        super().__init__(num_classes, bits, **kwargs)
        for name in ("right", "wrong", "unknown"):
            self._add_count(name, 1 << bits)

    def update(self, logits: Tensor, target: Tensor | None = None) -> None:
        """Add (N, K) logits: those of known samples with their (N,) labels, or those of unknown samples without."""
        logits = self._check(logits)
        bins = self._bins(logits.amax(dim=1))
        if target is None:
            self.unknown.scatter_add_(0, bins, torch.ones_like(bins))
            return
        right = correct(logits, self._labels(target, logits)).long()
        self.right.scatter_add_(0, bins, right)
        self.wrong.scatter_add_(0, bins, 1 - right)

    def compute(self) -> StreamedOpenSet:
        """The measures over all samples seen."""
        rounded = self._refuse_faults()
        known = (self.right + self.wrong).sum()
        won, spread = binned_pairs_won(self.right + self.wrong, self.unknown)
        won_right, spread_right = binned_pairs_won(self.right, self.unknown)
        return StreamedOpenSet(
            auroc=won / known,
            oscr=won_right / known,
            accuracy=self.right.sum().double() / known,
            auroc_error=spread / known if rounded else torch.zeros_like(spread),
            oscr_error=spread_right / known if rounded else torch.zeros_like(spread_right),
        )


def score_bins(scores: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The bin of every score, and the number of scores that could share their bin with other values.

    Args:
        scores: any shape, any floating dtype; float64 is rounded to float32.
        bits: 2 to 32.

    Returns:
        int64 bins in 0..2^bits-1 in the order of the scores, and an int64 scalar.
    """
    single = scores.float() + 0.0  # turns -0.0 into 0.0: they are equal but have different bits
    pattern = single.view(torch.int32)
    # Read as integers, negative floats are in reverse order.
    ordered = pattern ^ ((pattern >> 31) & 0x7FFFFFFF)
    shared = (pattern & ((1 << (32 - bits)) - 1)) != 0
    if scores.dtype == torch.float64:
        shared |= single.double() != scores
    return (ordered >> (32 - bits)).long() + (1 << (bits - 1)), shared.sum()


def _descending(counts: Tensor) -> tuple[Tensor, Tensor]:
    """The counts from the highest bin down, and their running sum."""
    counts = counts.flip(1)
    return counts, counts.cumsum(1)


def average_precision_bounds(positive: Tensor, everything: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Average precision with the scores of a bin as ties, and its smallest and largest possible value.

    Take the i-th of the p positives in a bin. In the worst case all negatives of the bin are above it. In the best case
    none is, and the positives are tied. The worst case is a sum of a concave function of i, and the trapezium rule is a
    lower bound of it.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.

    Returns:
        Three (K,) float64: value, lower bound, upper bound. NaN for a class without positives.
    """
    count, true = _descending(positive)
    _, reached = _descending(everything)
    above, false = (true - count).double(), (reached - true).double()
    false_above = false - (everything - positive).flip(1)

    def mean(precision: Tensor) -> Tensor:
        return torch.where(count > 0, count * precision, 0.0).sum(1) / true[:, -1]

    at_end = true.double() / reached
    first_at_worst = (above + 1) / (above + 1 + false)
    return mean(at_end), mean((first_at_worst + at_end) / 2), mean(true.double() / (true + false_above))


def precision_at_recall_bounds(positive: Tensor, everything: Tensor, recall: float) -> tuple[Tensor, Tensor]:
    """Best precision at a recall with the scores of a bin as ties, which is its lower bound, and its upper bound.

    Args:
        positive: (K, bins) counts of positives.
        everything: (K, bins) counts of all samples.
        recall: in (0, 1].

    Returns:
        Two (K,) float64. NaN for a class without positives.
    """
    _, true = _descending(positive)
    _, reached = _descending(everything)
    false_above = (reached - true) - (everything - positive).flip(1)
    allowed = true >= true_positives_needed(true[:, -1:], recall)
    empty = true[:, -1] == 0

    def best(precision: Tensor) -> Tensor:
        return torch.where(allowed, precision, 0.0).amax(1).masked_fill(empty, torch.nan)

    return best(true.double() / reached), best(true.double() / (true + false_above))


def binned_pairs_won(scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The number of pairs with score > other divided by the number of others, and how far off it can be.

    Both arguments are counts (bins,). A tie counts half. The caller divides by the number of scores.
    """
    total = others.sum()
    below = others.cumsum(0) - others
    tied = (scores * others).sum().double()
    return ((scores * below).sum() + 0.5 * tied) / total, 0.5 * tied / total
