"""How each class fares: precision, recall and F1, their means over classes, and which classes are confused."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer._core.labels import read_labels
from lastlayer.tasks.inputs import check_labelled, check_pair


@dataclass(frozen=True)
class PerClass:
    """Precision, recall and F1 of each class, (K,) in float64."""

    precision: Tensor  # share of the samples decided as the class that have its label; NaN if there are none
    recall: Tensor  # share of the samples of the class that are decided as it; NaN for a class without samples
    f1: Tensor  # harmonic mean of the two; NaN for a class without samples that is never decided
    support: Tensor  # int64, samples of the class


@dataclass(frozen=True)
class Confusions:
    """The most frequent wrong decisions, the most frequent first; ties in the order of label and decision."""

    label: Tensor  # (M,) int64
    decision: Tensor  # (M,) int64
    count: Tensor  # (M,) int64


def per_class(decision: Tensor, target: Tensor, num_classes: int) -> PerClass:
    """Precision, recall and F1 of each class.

        precision_k = TP_k / (TP_k + FP_k),  recall_k = TP_k / (TP_k + FN_k),  F1_k = 2 TP_k / (2 TP_k + FP_k + FN_k)

    Args:
        decision: (N,) the class that is decided for each sample.
        target: (N,) labels.
        num_classes: K.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_classes.py::test_equals_sklearn

    Example:
        >>> per_class(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 2).recall
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    target = read_labels(target, len(decision)).to(decision.device)
    for labels in (target, decision):
        check_labelled(labels, num_classes)
    right = target[decision == target].bincount(minlength=num_classes).double()
    support, decided = target.bincount(minlength=num_classes), decision.bincount(minlength=num_classes)
    return PerClass(right / decided, right / support, 2 * right / (decided + support), support)


def confusions(decision: Tensor, target: Tensor, num_classes: int, most: int = 20) -> Confusions:
    """The most frequent wrong decisions. A K x K matrix is never held, so K may be large.

    Args:
        decision: (N,) the class that is decided for each sample.
        target: (N,) labels.
        num_classes: K.
        most: how many pairs to return at most.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_classes.py::test_equals_sklearn

    Example:
        >>> found = confusions(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 1]), 2)
        >>> found.label.tolist(), found.decision.tolist(), found.count.tolist()
        ([0, 1], [1, 0], [2, 1])
    """
    target = read_labels(target, len(decision)).to(decision.device)
    for labels in (target, decision):
        check_labelled(labels, num_classes)
    wrong = decision != target
    pairs, count = torch.unique(target[wrong] * num_classes + decision[wrong], return_counts=True)
    order = count.argsort(descending=True, stable=True)[:most]
    return Confusions(pairs[order] // num_classes, pairs[order] % num_classes, count[order])


def balanced_accuracy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over classes of the accuracy on the samples of the class.

        B = (1/K) sum_k #{n : y_n = k and argmax z_n = k} / #{n : y_n = k}

    Args:
        logits: (N, K).
        target: (N,) labels.

    Degenerate cases: a class without samples is left out of the mean.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_classes.py::test_equals_sklearn

    Example:
        >>> balanced_accuracy(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(0.5000, dtype=torch.float64)
    """
    logits, target = check_pair(logits, target)
    return per_class(logits.argmax(1), target, logits.shape[1]).recall.nanmean()


def macro_f1(logits: Tensor, target: Tensor) -> Tensor:
    """The mean over classes of F1.

    Args:
        logits: (N, K).
        target: (N,) labels.

    Degenerate cases: a class without samples that is never decided is left out of the mean.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_classes.py::test_equals_sklearn

    Example:
        >>> macro_f1(torch.eye(3), torch.tensor([0, 1, 2])).item()
        1.0
    """
    logits, target = check_pair(logits, target)
    return per_class(logits.argmax(1), target, logits.shape[1]).f1.nanmean()


def top_k(logits: Tensor, target: Tensor, k: int = 5) -> Tensor:
    """The share of samples whose label is among the k largest logits.

    A logit that equals the label's counts as larger if its class comes first, as for `accuracy`.

    Args:
        logits: (N, K).
        target: (N,) labels.
        k: how many; from K on the result is 1.

    Raises:
        ValueError: if k is less than 1.

    Degenerate cases: a row with NaN counts as wrong.

    Paper: none, the standard definition.
    Tests: tests/tasks/test_classes.py::test_top_k_equals_sorting

    Example:
        >>> top_k(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([1]), 2).item()
        1.0
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, got {k}")
    logits, target = check_pair(logits, target)
    own = logits.gather(1, target[:, None]).squeeze(1)
    largest = logits.topk(min(k, logits.shape[1]), dim=1).values  # NaN counts as largest
    right = own > largest[:, -1]
    edge = (own == largest[:, -1]).nonzero().squeeze(1)  # here the order among equal logits decides
    part, last, label = logits[edge], own[edge, None], target[edge, None]
    earlier = torch.arange(logits.shape[1], device=logits.device) < label
    right[edge] = ((part > last) | ((part == last) & earlier)).sum(1) < k
    return (right & ~largest[:, 0].isnan()).double().mean()
