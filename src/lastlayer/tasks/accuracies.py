"""Accuracy, with the bias and without, on long-tailed data, and its kin F1 and Matthews' correlation.

Tests: tests/tasks/test_accuracies.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.tasks._inputs import check_bias, check_labelled, check_matrix, check_pair, read_target


@dataclass(frozen=True)
class LongTail:
    """Mean class accuracy by training samples of the class; NaN for a group without classes."""

    many: Tensor
    """Classes with more than 100 training samples."""
    medium: Tensor
    """Classes with 20 to 100."""
    few: Tensor
    """Classes with fewer than 20."""
    mean: Tensor
    """All measured classes."""
    per_class: Tensor
    """(K,) accuracy on the samples of each class; NaN for a class without samples."""


def correct(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) whether the first largest logit is the label's; never where argmax points at a NaN."""
    prediction = logits.argmax(dim=1, keepdim=True)
    return (prediction.squeeze(1) == target) & ~logits.gather(1, prediction).squeeze(1).isnan()


def accuracy(logits: Tensor, target: Tensor) -> Tensor:
    """Share of samples whose largest logit is the label's; among equal logits the first class is predicted.

        A = (1/N) #{n : argmax_j z_n[j] = y_n}

    Nothing waits for the device, so it may be called at every training step.

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype. A label that is no class, such as -100, counts as wrong on a
            GPU and raises on a CPU, where checking it costs nothing.

    Returns:
        float64 scalar in [0, 1], on the logits' device. A row with NaN counts as wrong.

    Raises:
        ValueError: for empty input, shapes that disagree, labels out of range (CPU).
        TypeError: for labels that are not integers or logits that are not floating point.

    Example:
        >>> accuracy(torch.tensor([[1.0, 0.0], [2.0, 2.0]]), torch.tensor([0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    logits = check_matrix(logits, "logits")
    target = read_target(target, logits.shape[0], logits.device)
    if target.device.type == "cpu":
        check_labelled(target, logits.shape[1])
    return correct(logits, target).double().mean()


def f1(logits: Tensor, target: Tensor, *, positive: int = 1) -> Tensor:
    """Harmonic mean of precision and recall of one class, decided by the largest logit.

        F1 = 2 TP / (2 TP + FP + FN)

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.
        positive: the class.

    Returns:
        float64 scalar in [0, 1]; NaN where the class is neither there nor predicted.

    Raises:
        ValueError, TypeError: as `accuracy`.

    Example:
        >>> f1(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0, 0])).item()
        0.6666666666666666
    """
    logits, target = check_pair(logits, target)
    predicted, true = logits.argmax(1) == positive, target == positive
    return 2 * (predicted & true).sum().double() / (predicted.sum() + true.sum())


def matthews(logits: Tensor, target: Tensor) -> Tensor:
    """Correlation of label and prediction over all classes (Matthews; for K > 2 Gorodkin's R_K).

        R = (N sum_k C_kk - sum_k t_k p_k) / sqrt((N^2 - sum_k p_k^2) (N^2 - sum_k t_k^2))

    with C the confusion matrix, t and p the counts of labels and of predictions.

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.

    Returns:
        float64 scalar in [-1, 1]; 0 where all samples have one label or one prediction.

    Raises:
        ValueError, TypeError: as `accuracy`.

    Example:
        >>> matthews(torch.eye(3), torch.tensor([0, 1, 2])).item()
        1.0
    """
    logits, target = check_pair(logits, target)
    N, K = logits.shape
    predicted = logits.argmax(1)
    true_counts = target.bincount(minlength=K).double()
    counts = predicted.bincount(minlength=K).double()
    covariance = N * (predicted == target).sum().double() - true_counts @ counts
    scale = torch.sqrt((N**2 - counts @ counts) * (N**2 - true_counts @ true_counts))
    return torch.where(scale > 0, covariance / scale, torch.zeros_like(scale))


def unbiased_accuracy(logits: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """Accuracy of the scores without their bias: A* of the normalised-space paper.

    There the head computes z_j = scale * cos(w_j, h) - b_j, its bias SUBTRACTED (as `NormalizedHead` does),
    so the bias is added back: A* = accuracy(z + b). For a head that adds its bias, pass minus that bias.

    Args:
        logits: (N, K), bias included.
        bias: (K,) the bias that was subtracted.
        target: (N,) labels of any integer dtype.

    Returns:
        float64 scalar in [0, 1]; ties, NaN and wrong input as in `accuracy`.

    Raises:
        ValueError: as `accuracy`, and for a bias that is not (K,).
        TypeError: as `accuracy`.

    Paper: "Classification vs. Deep Feature Learning in Normalized Spaces", Section 5.

    Example:
        >>> logits, bias, target = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, 0.0]), torch.tensor([0])
        >>> accuracy(logits, target).item(), unbiased_accuracy(logits, bias, target).item()
        (0.0, 1.0)
    """
    logits = check_matrix(logits, "logits")
    check_bias(bias, logits)
    # In half precision the sum would round away differences the head still saw.
    dtype = torch.promote_types(torch.promote_types(logits.dtype, bias.dtype), torch.float32)
    return accuracy(logits.to(dtype) + bias.to(logits.device, dtype), target)


def long_tail(logits: Tensor, target: Tensor, train_counts: Tensor | Sequence[int]) -> LongTail:
    """Mean class accuracy of the classes with many, a medium number of and few training samples.

        a_k = accuracy on the samples with label k
        many: mean of a_k over n_k > 100,    medium: over n_k in 20..100,    few: over n_k < 20

    Args:
        logits: (N, K) on the test set.
        target: (N,) labels of any integer dtype.
        train_counts: (K,) training samples of each class, of the training set and not of `target`.

    Returns:
        LongTail with `many`, `medium`, `few`, `mean`, `per_class`; classes without test samples are left out,
        a group without classes is NaN.

    Raises:
        ValueError: for empty input, labels out of range, shapes that disagree, negative counts.
        TypeError: for labels that are not integers or logits that are not floating point.

    Paper: Liu et al., "Large-Scale Long-Tailed Recognition in an Open World", 2019 (the groups).

    Example:
        >>> logits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> result = long_tail(logits, torch.tensor([0, 1, 2]), [500, 60, 5])
        >>> result.many.item(), result.medium.item(), result.few.item()
        (1.0, 0.0, 1.0)
    """
    logits, target = check_pair(logits, target)
    counts = torch.as_tensor(train_counts, device=logits.device)
    num_classes = logits.shape[1]
    if counts.shape != (num_classes,):
        raise ValueError(f"train_counts must have shape ({num_classes},), got {tuple(counts.shape)}")
    if not bool((counts >= 0).all()):
        k = int((~(counts >= 0)).nonzero()[0])
        raise ValueError(f"train_counts must be numbers of samples, got {counts[k].item()} for class {k}")
    hits = torch.bincount(target[correct(logits, target)], minlength=num_classes)
    per_class = hits.double() / torch.bincount(target, minlength=num_classes)  # 0 / 0: NaN, skipped
    return LongTail(
        many=per_class[counts > 100].nanmean(),
        medium=per_class[(counts >= 20) & (counts <= 100)].nanmean(),
        few=per_class[counts < 20].nanmean(),
        mean=per_class.nanmean(),
        per_class=per_class,
    )
