"""What an estimator does to the rows and weights it is given, before they are tensors.

Tests: tests/sklearn/test_inputs.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import compute_class_weight

from lastlayer._core.memory import free_memory

Array = NDArray[Any]


class Moments:
    """Weighted mean and squared deviations of each feature, over all rows so far.

    Example:
        >>> moments = Moments().merged(np.array([[0.0], [4.0]]), np.array([3.0, 1.0]))
        >>> moments.mean, moments.squares / moments.weight
        (array([1.]), array([3.]))
    """

    def __init__(self, weight: Any = 0.0, mean: Any = 0.0, squares: Any = 0.0) -> None:
        self.weight = weight
        self.mean = mean  # (d,)
        self.squares = squares  # (d,), weighted sum of squared differences from the mean

    def merged(self, X: Any, weight: Array) -> Moments:
        """The moments with more rows (N, d), of which some weight is positive. A sparse X stays sparse."""
        added = float(weight.sum())
        mean = (weight @ X) / added
        if issparse(X):
            centred = X.astype(np.float64)
            centred.sum_duplicates()
            stored = centred.copy()
            stored.data = np.ones_like(stored.data)
            centred.data -= mean[centred.indices]
            squares = weight @ centred.power(2) + (added - weight @ stored) * mean**2
        else:
            centred = X - mean
            squares = weight @ np.square(centred, out=centred)
        total = self.weight + added
        shift = mean - self.mean
        between = shift**2 * (self.weight * added / total)
        return Moments(total, self.mean + shift * (added / total), self.squares + squares + between)

    def standardized(self, X: Array) -> Array:
        """Rows with mean 0 and deviation 1, in float64. A feature that is constant up to rounding keeps its scale."""
        deviation = np.sqrt(self.squares / self.weight)
        varies = deviation > 100 * np.finfo(np.float64).eps * np.abs(self.mean)
        result: Array = X - self.mean
        result /= np.where(varies, deviation, 1.0)
        return result


def check_weight(given: Any, rows: int) -> Array:
    """The weights of the samples, ones if none are given.

    Raises:
        ValueError: for another shape, numbers that are negative or not finite, and if all are zero.
    """
    if given is None:
        return np.ones(rows)
    weight = np.asarray(given, dtype=np.float64)
    weight = np.full(rows, weight) if weight.ndim == 0 else weight
    if weight.shape != (rows,):
        raise ValueError(f"sample_weight must have shape ({rows},), one per row of X, got {weight.shape}")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(f"sample_weight must be finite and >= 0, got {weight.min()} to {weight.max()}")
    if not weight.any():
        raise ValueError("sample_weight is zero for every sample: give those that count a positive weight")
    return weight


def with_class_weight(choice: Any, classes: Array, labels: Array, weight: Array) -> Array:
    """The weights of the samples times those of their classes.

    Args:
        choice: None; a weight per class, 1 for those left out; or "balanced", which gives every class the same total.
        classes: the labels as the user knows them.
        labels: (N,) indices into `classes`.
        weight: (N,).
    """
    if choice is None:
        return weight
    if isinstance(choice, str) and choice == "balanced":
        totals = np.bincount(labels, weight, len(classes))
        per_class = weight.sum() / (len(classes) * np.where(totals > 0, totals, 1.0))
    else:
        per_class = compute_class_weight(choice, classes=classes, y=classes[labels])
    weighted: Array = weight * per_class[labels]
    if not weighted.any():
        raise ValueError(f"class_weight={choice!r} is zero for every sample: give a class a positive weight")
    return weighted


def check_room(entries: int, what: str, advice: str) -> None:
    """Raise ValueError if so many float64 numbers do not fit in memory."""
    needed, free = 8 * entries, free_memory()
    if needed > free:
        raise ValueError(f"{what} would take {needed:,} bytes, but {free:,} are free: {advice}")
