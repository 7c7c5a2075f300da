"""Decides for a class by linear scores: the scores of the classifier, or those of the nearest class mean."""

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

FLOAT32_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class AffineScores:
    """Scores table z + offset for a feature z relative to the global mean. Their argmax is the decision."""

    table: Tensor  # (K, d) float64
    offset: Tensor  # (K,) float64

    @classmethod
    def nearest_mean(cls, centred: Tensor) -> "AffineScores":
        """Decides for the class with the nearest mean: z.m - |m|^2 / 2 is largest where |z - m|^2 is smallest."""
        table = centred.detach()
        return cls(table, -table.square().sum(dim=1) / 2)

    @classmethod
    def classifier(cls, weight: Tensor, bias: Tensor | None, center: Tensor) -> "AffineScores":
        """Decides like weight h + bias, where h = center + z."""
        offset = weight @ center if bias is None else weight @ center + bias
        return cls(weight.detach(), (offset - offset.mean()).detach())

    @cached_property
    def single(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Table and offset in float32, the largest norm of a row, and the largest size of an offset."""
        norm = torch.linalg.vector_norm(self.table, dim=1).max()
        return self.table.float(), self.offset.float(), norm, self.offset.abs().max()

    def argmax(self, rows: Tensor) -> Tensor:
        """The decision for each float64 row, (n,)."""
        return torch.addmm(self.offset, rows, self.table.T).argmax(dim=1)

    def argmax_single(self, rows: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The decision for each float32 row, and the positions of the rows that are too close to decide in float32."""
        table, offset, table_norm, offset_size = self.single
        scores = F.linear(rows, table, offset)  # (n, K)
        best, decision = scores.max(dim=1)
        second = scores.scatter_(1, decision[:, None], -torch.inf).amax(dim=1)
        slack = 32 * FLOAT32_ROUNDING * (norm * table_norm + offset_size)
        # Written with "not", so that NaN from an overflow of float32 counts as too close.
        return decision, (~(best - second > slack)).nonzero().flatten()
