"""The unconstrained feature model as the solver and the certificate see it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.theory._losses import Description

Parts = tuple[Tensor, Tensor, Tensor]  # W (..., K, d), H (..., N, d), b (..., K)


def unit(rows: Tensor) -> Tensor:
    """Rows of norm 1; the model starts from random rows and never reaches zero."""
    normed: Tensor = rows / rows.norm(dim=-1, keepdim=True)
    return normed


@dataclass(frozen=True)
class Problem:
    """The model that a point belongs to."""

    objective: Callable[[Tensor, Tensor, Tensor], Tensor]
    mean_loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    described: Description | None
    counts: tuple[int, ...]
    dim: int
    target: Tensor
    lambda_w: float
    lambda_h: float
    lambda_b: float
    normalized: bool
    scale: float
    bias: bool
    smooth: bool

    @property
    def balanced(self) -> bool:
        """Whether all classes have the same number of samples."""
        return len(set(self.counts)) == 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Number of entries of W, H and b."""
        return len(self.counts) * self.dim, len(self.target) * self.dim, len(self.counts)

    def split(self, flat: Tensor) -> Parts:
        """W, H and b from their flat form, with any leading dimensions."""
        weight, features, bias = torch.split(flat, list(self.sizes), dim=-1)
        lead = flat.shape[:-1]
        return weight.reshape(*lead, -1, self.dim), features.reshape(*lead, -1, self.dim), bias

    def join(self, weight: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """The flat form of W, H and b."""
        return torch.cat([weight.flatten(-2), features.flatten(-2), bias], dim=-1)
