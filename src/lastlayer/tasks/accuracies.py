"""Accuracy, also without the bias and on long-tailed data, F1, and Matthews' correlation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.tasks.inputs import check_bias, check_labelled, check_matrix, check_pair, read_target

SKEW = 3.0  # classes count as skewed if the largest has more than this many times the samples of the smallest


@dataclass(frozen=True)
class LongTail:
    """Mean accuracy over groups of classes with many or few training samples."""

    many: Tensor  # classes with more than 100 training samples
    medium: Tensor  # classes with 20 to 100
    few: Tensor  # classes with fewer than 20
    mean: Tensor  # all classes with samples
    per_class: Tensor  # (K,) accuracy on the samples of each class; NaN for a class without samples


def correct(logits: Tensor, target: Tensor) -> Tensor:
    """(N,) whether the first of the largest logits is the label's. False if argmax points at a NaN."""
    prediction = logits.argmax(dim=1, keepdim=True)
    return (prediction.squeeze(1) == target) & ~logits.gather(1, prediction).squeeze(1).isnan()


def accuracy(logits: Tensor, target: Tensor) -> Tensor:
    """The share of samples whose largest logit is that of the label. Among equal logits the first class counts.

        A = (1/N) #{n : argmax_j z_n[j] = y_n}

    The CPU never waits for the GPU, so you may call it in every training step.

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype. A label out of range, such as -100, counts as wrong on a GPU. On a CPU
            it raises, since the check costs nothing there.

    Degenerate cases: a row with NaN counts as wrong.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_accuracies.py::test_accuracy_counts_and_prefers_the_first_of_ties

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
    """The harmonic mean of precision and recall for one class. The largest logit decides.

        F1 = 2 TP / (2 TP + FP + FN)

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.
        positive: the class to detect.

    Degenerate cases: NaN if no sample has the class and none is predicted as it.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_accuracies.py::test_f1_and_matthews_agree_with_sklearn

    Example:
        >>> f1(torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 0, 0])).item()
        0.6666666666666666
    """
    logits, target = check_pair(logits, target)
    predicted, true = logits.argmax(1) == positive, target == positive
    return 2 * (predicted & true).sum().double() / (predicted.sum() + true.sum())


def matthews(logits: Tensor, target: Tensor) -> Tensor:
    """Matthews' correlation between label and prediction, in [-1, 1]. For more than two classes it is Gorodkin's R_K.

        R = (N sum_k C_kk - sum_k t_k p_k) / sqrt((N^2 - sum_k p_k^2) (N^2 - sum_k t_k^2))

    where C is the confusion matrix, t the counts of labels and p the counts of predictions.

    Args:
        logits: (N, K).
        target: (N,) labels of any integer dtype.

    Degenerate cases: 0 if all samples have the same label or the same prediction.

    Paper: Gorodkin 2004.
    Tests: tests/tasks/test_accuracies.py::test_f1_and_matthews_agree_with_sklearn

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
    """The accuracy of the scores without their bias.

        A* = accuracy(z + b)

    In the paper, as in `NormalizedHead`, the head subtracts its bias: z_j = scale * cos(w_j, h) - b_j. So here the bias
    is added back. If your head adds its bias, pass minus that bias.

    Args:
        logits: (N, K), bias included.
        bias: (K,) the bias that was subtracted. Another shape raises ValueError.
        target: (N,) labels of any integer dtype.

    Degenerate cases: ties, NaN and wrong input are treated as in `accuracy`.

    Paper: Normalized Spaces 2025, section 5.
    Tests: tests/tasks/test_accuracies.py::test_subtracted_bias_is_added_back

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
    """The mean accuracy over classes with many, with a medium number, and with few training samples.

        a_k = accuracy on the samples with label k
        many: mean of a_k over n_k > 100,    medium: over n_k in 20..100,    few: over n_k < 20

    Args:
        logits: (N, K) on the test set.
        target: (N,) labels of any integer dtype.
        train_counts: (K,) number of samples of each class in the training set, not in `target`. None is negative.

    Degenerate cases: classes without test samples are left out. A group without classes is NaN.

    Paper: Liu et al. 2019, for the groups.
    Tests: tests/tasks/test_accuracies.py::test_long_tail_groups

    Example:
        >>> logits = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        >>> result = long_tail(logits, torch.tensor([0, 1, 2]), [500, 60, 5])
        >>> result.many.item(), result.medium.item(), result.few.item()
        (1.0, 0.0, 1.0)
    """
    logits, target = check_pair(logits, target)
    num_classes = logits.shape[1]
    hits = torch.bincount(target[correct(logits, target)], minlength=num_classes)
    # 0 / 0 is NaN, which the means skip
    return by_frequency(hits.double() / torch.bincount(target, minlength=num_classes), train_counts)


def by_frequency(per_class: Tensor, train_counts: Tensor | Sequence[int]) -> LongTail:
    """The means of `long_tail`, from the accuracy of each class.

    Args:
        per_class: (K,) accuracies; NaN for a class without test samples.
        train_counts: (K,) number of samples of each class in the training set. None is negative.

    Paper: Liu et al. 2019, for the groups.
    Tests: tests/tasks/test_accuracies.py::test_long_tail_groups

    Example:
        >>> by_frequency(torch.tensor([1.0, 0.5]), [101, 19]).few.item()
        0.5
    """
    counts = torch.as_tensor(train_counts, device=per_class.device)
    num_classes = len(per_class)
    if counts.shape != (num_classes,):
        raise ValueError(f"train_counts must have shape ({num_classes},), got {tuple(counts.shape)}")
    if not bool((counts >= 0).all()):
        k = int((~(counts >= 0)).nonzero()[0])
        raise ValueError(f"train_counts must be numbers of samples, got {counts[k].item()} for class {k}")
    return LongTail(
        many=per_class[counts > 100].nanmean(),
        medium=per_class[(counts >= 20) & (counts <= 100)].nanmean(),
        few=per_class[counts < 20].nanmean(),
        mean=per_class.nanmean(),
        per_class=per_class,
    )


def is_skewed(train_counts: Tensor | Sequence[float]) -> bool:
    """Whether the largest class has more than three times the training samples of the smallest.

        max_k n_k > 3 min_k n_k

    Args:
        train_counts: (K,) number of samples of each class in the training set, or its share.

    Paper: none, a rule of this library.
    Tests: tests/tasks/test_accuracies.py::test_classes_are_skewed_beyond_a_factor_of_three

    Example:
        >>> is_skewed([30, 10]), is_skewed([31, 10])
        (False, True)
    """
    counts = torch.as_tensor(train_counts)
    return bool(counts.max() > SKEW * counts.min())
