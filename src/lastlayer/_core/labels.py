"""Class labels: which dtypes hold them, how to read and check them, and how many of each class a long tail has.

Tests: tests/_core/test_labels.py.
"""

import torch
from torch import Tensor

INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
)


def read_labels(labels: Tensor, samples: int, *, name: str = "target", instead: str = "") -> Tensor:
    """Check that a tensor holds one class label per sample, (samples,), in any integer dtype, and return it as int64.

    The range of the labels is not checked: on a GPU, reading them would make the host wait (`check_classes`).
    `name` and `instead` are for messages: what the labels are called, and what to add if they are not integers.
    """
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a tensor of class labels, got {type(labels).__name__}")
    if labels.dtype not in INTEGERS:
        raise TypeError(f"{name} must hold class labels in an integer dtype, got {labels.dtype}{instead}")
    if labels.shape != (samples,):
        raise ValueError(f"{name} must have shape ({samples},), one label per row, got {tuple(labels.shape)}")
    return labels.to(torch.int64)


def outside(labels: Tensor, num_classes: int) -> int | None:
    """The lowest label if it is negative, else the highest if it is no class, else None. The CPU waits for a GPU."""
    if labels.numel() == 0:
        return None
    low, high = (int(value) for value in torch.aminmax(labels))
    return low if low < 0 else high if high >= num_classes else None


def check_classes(labels: Tensor, num_classes: int, *, name: str = "target", instead: str = "") -> None:
    """Raise ValueError unless every label is a class, 0 to num_classes - 1. The CPU waits for a GPU.

    `name` and `instead` are for the message: what the labels are called, and what else is allowed or to be done.
    """
    if (found := outside(labels, num_classes)) is not None:
        raise ValueError(
            f"{name} has the label {found}, but there are {num_classes} classes: labels must lie in "
            f"0..{num_classes - 1}{instead}"
        )


def long_tail_counts(n_max: int, num_classes: int, imbalance: float) -> Tensor:
    """The number of training samples per class, if the class sizes fall exponentially.

        n_k = floor(n_max * imbalance^(-k / (K - 1))),    k = 0..K-1

    Args:
        n_max: number of samples in the largest class, at least 0.
        num_classes: K, at least 1.
        imbalance: n_0 / n_{K-1}, at least 1. The public code of LDAM takes the inverse, such as 0.01 for 100.

    Returns:
        (K,) int64, in descending order. With one class it is n_max. A class with less than one sample gets 0.

    Paper: Cao et al. 2019; used in Normalized Spaces 2025, table 2.
    Tests: tests/_core/test_labels.py::test_long_tail_totals_as_published

    Example:
        >>> long_tail_counts(5000, 10, 100).tolist()
        [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
        >>> long_tail_counts(500, 100, 100).sum().item()
        10847
    """
    if n_max < 0 or num_classes < 1:
        raise ValueError(f"n_max must be >= 0 and num_classes >= 1, got {n_max} and {num_classes}")
    if not imbalance >= 1:
        raise ValueError(f"imbalance, n_0 / n_(K-1), must be >= 1, got {imbalance}; for LDAM's factor pass 1 / factor")
    exact = [n_max * imbalance ** (-k / max(num_classes - 1, 1)) for k in range(num_classes)]
    # A power that should be a whole number may be slightly too small after rounding. floor would then lose a sample.
    return torch.tensor([int(n * (1 + 1e-12)) for n in exact])
