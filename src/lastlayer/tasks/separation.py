"""How well true logits are separated from false ones, and how self-normalised the logits are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lastlayer.tasks._ranking import as_rows, count_at_least, narrow_blocks
from lastlayer.tasks.inputs import (
    Logits,
    check_labelled,
    check_matrix,
    check_pair,
    column_blocks,
    read_target,
    refuse_nan,
    row_blocks,
)


@dataclass(frozen=True)
class LogitSeparation:
    """Whether one threshold separates all true logits from all false ones."""

    gap: Tensor  # smallest true logit minus largest false logit, over all samples and classes
    holds: bool  # whether the gap is positive, so that the principle of logit separation holds strictly
    gap_per_class: Tensor  # (K,) the gap within each class's column; NaN if it has no true or no false logit
    violation_rate: Tensor  # share of pairs of a true and a false logit, across samples, with false >= true


@dataclass(frozen=True)
class LogPartition:
    """Mean and standard deviation of log sum exp over the samples."""

    mean: Tensor
    std: Tensor


def logit_separation(logits: Logits, target: Tensor) -> LogitSeparation:
    """The principle of logit separation: the gap, whether the principle holds, and how many pairs violate it.

        gap   = min_n z_n[y_n] - max_{n, j != y_n} z_n[j]
        gap_k = min_{y_n = k} z_n[k] - max_{y_n != k} z_n[k]
        violation_rate = #{(n, m, j) : j != y_m, z_m[j] >= z_n[y_n]} / (N * N (K - 1))

    The pairs are counted exactly, as integers, in about O(NK + N log N) steps. A tie is a violation.

    Args:
        logits: (N, K), or a function without arguments that yields column blocks (N, b) in the order of classes. It is
            called twice, first for the true logits, then to compare all others with them.
        target: (N,) labels of any integer dtype.

    Degenerate cases: with one class there is no false logit. Then the gap is infinite, the principle holds, and the
    violation rate is NaN. Equal infinities have gap 0. NaN raises ValueError.

    Paper: Keren et al. 2018, sections 2 and 3.
    Tests: tests/tasks/test_separation.py::test_separation_equals_all_pairs

    Example:
        >>> logits = torch.tensor([[2.0, 1.0], [-2.0, -1.0]])  # each row by itself is right
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
    # With one class there is no false logit. Then -inf is not a logit, even if a true logit is -inf too.
    gap = _difference(low.min(), high.max()) if num_classes > 1 else high.new_tensor(torch.inf)

    thresholds = scores.sort().values  # (N,)
    whole = torch.tensor([0, samples], device=thresholds.device)
    # Count all logits, then subtract the pairs of two true logits. That is simpler than leaving them out.
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
    """How far the true logit is above the others, relative to a power of the norm of the logits.

        D = sum_n sum_{i != y_n} (f_y - f_i) / |f|^gamma = sum_n (K f_y - sum_i f_i) / |f|^gamma

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.
        gamma: power of the norm. With 0 the norm has no effect. With 1 the scale of the logits has no effect.
        reduction: "sum" over samples, as in the paper, "mean" over samples, or "none", which gives (N,) values.

    Degenerate cases: a row of zeros contributes 0. Rows with NaN or infinite logits give NaN.

    Paper: SLN 2025, section 3.
    Tests: tests/tasks/test_separation.py::test_logit_difference_is_the_double_sum

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
    """The mean and the standard deviation over samples of the log-partition: how self-normalised the logits are.

        log Z = log sum_j exp(z_j)

    If a model is self-normalised, both are near 0, so that a single logit is a log-probability.

    Args:
        logits: (N, K).

    Degenerate cases: `std` divides by N, so for one sample it is 0. A row with +inf, or with nothing but -inf, has an
    infinite log Z, which makes `std` NaN. NaN gives NaN.

    Paper: Keren et al. 2018, section 4.1.
    Tests: tests/tasks/test_separation.py::test_log_partition_is_mean_and_deviation

    Example:
        >>> result = log_partition(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
        >>> result.mean, result.std
        (tensor(0.6931, dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    logits = check_matrix(logits, "logits")
    # Filled in place: small results that stay between large blocks would prevent the reuse of that memory.
    value = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for rows in row_blocks(logits):
        value[rows] = logits[rows].double().logsumexp(dim=1)
    return LogPartition(mean=value.mean(), std=value.std(correction=0))


def _class_rows(logits: Logits) -> Iterator[Tensor]:
    """Copies of the logits as (b, N) rows, one per class. Only a few at a time, to limit the memory."""
    for block in column_blocks(logits):
        yield from map(as_rows, narrow_blocks(block))


def _difference(low: Tensor, high: Tensor) -> Tensor:
    return torch.where(low == high, 0.0, low - high)  # inf - inf would be NaN
