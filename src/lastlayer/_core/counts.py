"""The number of training samples per class in a long-tailed data set."""

import torch
from torch import Tensor


def long_tail_counts(n_max: int, num_classes: int, imbalance: float) -> Tensor:
    """The number of training samples per class, if the class sizes fall exponentially.

        n_k = floor(n_max * imbalance^(-k / (K - 1))),    k = 0..K-1

    Args:
        n_max: number of samples in the largest class.
        num_classes: K.
        imbalance: n_0 / n_{K-1}, at least 1. The public code of LDAM takes the inverse, such as 0.01 for 100.

    Returns:
        (K,) int64, in descending order. With one class it is n_max. A class with less than one sample gets 0.

    Raises:
        ValueError: for n_max < 0, num_classes < 1 or imbalance < 1.

    Paper: Cao et al. 2019; used in Normalized Spaces 2025, table 2.
    Tests: tests/_core/test_counts.py::test_long_tail_totals_as_published

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
