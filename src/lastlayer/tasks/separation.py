"""How true logits stand against false ones, and how self-normalised they are.

Tests: tests/tasks/test_separation.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lastlayer.tasks._inputs import (
    Logits,
    check_labelled,
    check_matrix,
    check_pair,
    column_blocks,
    read_target,
    refuse_nan,
    row_blocks,
)
from lastlayer.tasks._ranking import as_rows, count_at_least, narrow_blocks


@dataclass(frozen=True)
class LogitSeparation:
    """Whether one threshold tells every true logit from every false one."""

    gap: Tensor
    """Smallest true logit minus largest false logit, over all samples and classes."""
    holds: bool
    """Whether the gap is positive: the principle of logit separation, strict."""
    gap_per_class: Tensor
    """(K,) the same gap within one class's column; NaN where the column has no true or no false logit."""
    violation_rate: Tensor
    """Share of all (true, false) pairs, across samples, whose false logit is at least the true one."""


@dataclass(frozen=True)
class LogPartition:
    """Distribution of log sum exp over the samples."""

    mean: Tensor
    std: Tensor


def logit_separation(logits: Logits, target: Tensor) -> LogitSeparation:
    """The principle of logit separation: its gap, whether it holds, and how many pairs break it.

        gap   = min_n z_n[y_n] - max_{n, j != y_n} z_n[j]
        gap_k = min_{y_n = k} z_n[k] - max_{y_n != k} z_n[k]
        violation_rate = #{(n, m, j) : j != y_m, z_m[j] >= z_n[y_n]} / (N * N (K - 1))

    The pairs are counted exactly, as integers, in about O(NK + N log N); a tie is a violation.

    Args:
        logits: (N, K), or a function without arguments that yields column blocks (N, b) in class order; it is
            called twice, first for the true logits, then to compare all others with them.
        target: (N,) labels of any integer dtype.

    Returns:
        LogitSeparation with `gap`, `holds`, `gap_per_class`, `violation_rate`. With one class there is no
        false logit: the gap is infinite, the principle holds and the violation rate is NaN. Equal infinities
        have gap 0.

    Raises:
        ValueError: for empty input, NaN, labels out of range, shapes that disagree.
        TypeError: for labels that are not integers or logits that are not floating point.

    Paper: Keren, Sabato, Schuller, "The Principle of Logit Separation", Section 3.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [-2.0, -1.0]])  # cross-entropy is content with both rows
        >>> result = logit_separation(logits, torch.tensor([0, 1]))
        >>> result.gap.item(), result.holds, result.violation_rate.item()
        (-2.0, False, 0.25)
        >>> result.gap_per_class
        tensor([ 4., -2.], dtype=torch.float64)
    """
    highest, true, order = [], [], []  # largest false logit of each class; the true logits, and their samples
    num_classes = 0
    for rows in _class_rows(logits):
        labels = read_target(target, rows.shape[1], rows.device)
        refuse_nan(rows, "logits")
        sample = ((labels >= num_classes) & (labels < num_classes + rows.shape[0])).nonzero().squeeze(1)
        own = labels[sample] - num_classes
        order.append(sample)
        true.append(rows[own, sample])
        rows[own, sample] = -torch.inf
        highest.append(rows.amax(dim=1).double())
        num_classes += rows.shape[0]
    check_labelled(labels, num_classes)

    scores, classes, samples = torch.cat(true), labels[torch.cat(order)], labels.numel()
    high = torch.cat(highest)  # (K,)
    low = torch.full_like(high, torch.inf).scatter_reduce_(0, classes, scores.double(), "amin")
    positives = torch.bincount(labels, minlength=num_classes)
    defined = (positives > 0) & (positives < samples)
    per_class = torch.where(defined, _difference(low, high), torch.nan)
    # Of one class no false logit is left, and -inf, a true one included, is not one.
    gap = _difference(low.min(), high.max()) if num_classes > 1 else high.new_tensor(torch.inf)

    thresholds = scores.sort().values  # (N,)
    whole = torch.tensor([0, samples], device=thresholds.device)
    # Every logit is counted, then the pairs of two true logits taken off: simpler than leaving them out.
    reached = 0
    for rows in _class_rows(logits):
        reached += int(count_at_least(rows.view(1, -1), thresholds, whole).sum())
    true_pairs = samples * samples - int(torch.searchsorted(thresholds, thresholds).sum())
    pairs = samples * samples * (num_classes - 1)
    rate = (reached - true_pairs) / pairs if pairs else torch.nan
    return LogitSeparation(
        gap=gap,
        holds=bool(low.min() > high.max()) or num_classes == 1,
        gap_per_class=per_class,
        violation_rate=torch.tensor(rate, dtype=torch.float64, device=gap.device),
    )


def logit_difference(
    logits: Tensor, target: Tensor, *, gamma: float, reduction: Literal["sum", "mean", "none"] = "sum"
) -> Tensor:
    """How far the true logit stands above the others, relative to the logits' norm.

        D = sum_n sum_{i != y_n} (f_y - f_i) / |f|^gamma = sum_n (K f_y - sum_i f_i) / |f|^gamma.

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.
        gamma: power of the norm; 0 leaves the norm out, 1 makes the value free of scale.
        reduction: "sum" over samples, as in the paper; "mean" over samples; "none".

    Returns:
        float64 scalar, or (N,) for "none". A row of zeros contributes 0; NaN and infinite rows give NaN.

    Raises:
        ValueError: for empty input, labels out of range, shapes that disagree, an unknown reduction.
        TypeError: for labels that are not integers or logits that are not floating point.

    Paper: "Soft Logit Normalization", Section 3.

    Example:
        >>> logit_difference(torch.tensor([[3.0, 4.0]]), torch.tensor([1]), gamma=1.0)
        tensor(0.2000, dtype=torch.float64)
    """
    if reduction not in ("sum", "mean", "none"):
        raise ValueError(f'reduction must be "sum", "mean" or "none", got {reduction!r}')
    logits, target = check_pair(logits, target)
    value = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for rows in row_blocks(logits):
        part = logits[rows].double()
        true = part.gather(1, target[rows, None]).squeeze(1)
        norm = torch.linalg.vector_norm(part, dim=1)
        value[rows] = torch.where(norm == 0, 0.0, (part.shape[1] * true - part.sum(dim=1)) / norm**gamma)
    if reduction == "none":
        return value
    return value.sum() if reduction == "sum" else value.mean()


def log_partition(logits: Tensor) -> LogPartition:
    """Mean and spread over samples of log Z = log sum_j exp(z_j): how self-normalised the logits are.

    A model trained to be self-normalised has both near 0, so that a logit alone is a log-probability.

    Args:
        logits: (N, K).

    Returns:
        LogPartition with `mean` and `std` (divided by N, so 0 for one sample), float64. Rows with +inf or of
        -inf alone have an infinite log Z, which makes `std` NaN; NaN carries through.

    Raises:
        ValueError: for empty input or another shape.
        TypeError: for logits that are not floating point.

    Paper: Keren, Sabato, Schuller, "The Principle of Logit Separation", Section 4 (self-normalisation).

    Example:
        >>> result = log_partition(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
        >>> result.mean, result.std
        (tensor(0.6931, dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    logits = check_matrix(logits, "logits")
    # Filled in place: small results kept between the large blocks would keep their memory from being used again.
    value = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for rows in row_blocks(logits):
        value[rows] = logits[rows].double().logsumexp(dim=1)
    return LogPartition(mean=value.mean(), std=value.std(correction=0))


def _class_rows(logits: Logits) -> Iterator[Tensor]:
    """Copies of the logits as (b, N) rows, a class each, few enough at a time to bound the memory."""
    for block in column_blocks(logits):
        yield from map(as_rows, narrow_blocks(block))


def _difference(low: Tensor, high: Tensor) -> Tensor:
    return torch.where(low == high, 0.0, low - high)  # inf - inf would be NaN
