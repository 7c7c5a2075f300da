"""How many training samples each class of a long-tailed data set has."""

import torch
from torch import Tensor


def long_tail_counts(n_max: int, num_classes: int, imbalance: float) -> Tensor:
    """Training samples per class of an exponentially long-tailed data set.

        n_k = floor(n_max * imbalance^(-k / (K - 1))),    k = 0..K-1

    Args:
        n_max: samples of the largest class.
        num_classes: K.
        imbalance: n_0 / n_{K-1}, at least 1. (Public code of LDAM takes its inverse, 0.01 for 100.)

    Returns:
        (K,) int64, descending; one class keeps n_max. A tail shorter than one sample is 0.

    Raises:
        ValueError: for n_max < 0, num_classes < 1 or imbalance < 1.

    Paper: Cao et al., "Learning Imbalanced Datasets with Label-Distribution-Aware Margin Loss", 2019; used by
    "Classification vs. Deep Feature Learning in Normalized Spaces", Table 2.

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
    # A power that is a whole number on paper may come out a rounding error below it and would lose a sample.
    return torch.tensor([int(n * (1 + 1e-12)) for n in exact])
