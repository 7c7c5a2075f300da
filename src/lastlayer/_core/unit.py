"""Rows divided by a power of their norm, for soft logit normalization and the normalized head.

Tests: tests/_core/test_unit.py.
"""

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32


def soft_normalize(x: Tensor, gamma: float = 1.0, tau: Tensor | float = 1.0, dim: int = -1) -> Tensor:
    """x / (tau ||x||^gamma) along an axis, without an epsilon; exactly zero rows give 0 with gradient 0.

    We first divide the row by its largest entry m, so that no square overflows or vanishes. The result,
    (x/m) ||x/m||^-gamma m^(1-gamma) / tau, does not depend on m, so no gradient flows through m.

    Half precision is computed and returned in float32.
    """
    x = at_least_float32(x)
    largest = x.detach().abs().amax(dim, keepdim=True)
    nonzero = largest > 0
    # A division by less than the smallest normal number would overflow; scaled by that number, squares still fit.
    largest = largest.clamp(min=torch.finfo(x.dtype).tiny)
    scaled = x / largest
    norm = torch.where(nonzero, torch.linalg.vector_norm(scaled, dim=dim, keepdim=True), 1.0)
    factor = largest.pow(1 - gamma) / tau * norm.pow(-gamma)
    return scaled * torch.where(nonzero, factor, 0.0)


def unit(x: Tensor, dim: int = -1) -> Tensor:
    """x / ||x||, in float32 or better; zero rows stay zero, with gradient 0."""
    return soft_normalize(x, dim=dim)
