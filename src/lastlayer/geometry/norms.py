"""How long features and the rows of a classifier are."""

import math

import torch
from torch import Tensor


def quadratic_mean_norm(rows: Tensor) -> Tensor:
    """The quadratic mean of the norms of the rows.

        sqrt((1/N) sum_n |h_n|^2)

    Behind batch norm without a shift it is |gamma| on the training batches. For a classifier it is |W|_F / sqrt(K).

    Args:
        rows: (N, d) features or rows of a classifier.

    Raises:
        TypeError, ValueError: for rows that are not floating point, not (N, d), or empty.

    Paper: Pan and Cao 2023, section 2.
    Tests: tests/geometry/test_norms.py::test_equals_numpy

    Example:
        >>> quadratic_mean_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor(3.5355, dtype=torch.float64)
    """
    if not rows.is_floating_point():
        raise TypeError(f"rows must have a floating dtype, got {rows.dtype}")
    if rows.dim() != 2 or rows.numel() == 0:
        raise ValueError(f"rows must have shape (N, d) and not be empty, got {tuple(rows.shape)}")
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm / math.sqrt(len(rows))
