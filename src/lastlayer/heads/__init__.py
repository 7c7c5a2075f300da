"""Features to logits. The classifier's weights live here and nowhere else."""

from lastlayer.heads._head import Head
from lastlayer.heads.batch_norm import BatchNormHead
from lastlayer.heads.large_margin import LargeMarginHead
from lastlayer.heads.linear import LinearHead
from lastlayer.heads.normalized import NormalizedHead
from lastlayer.heads.simplex import SimplexHead, simplex_etf

__all__ = [
    "BatchNormHead",
    "Head",
    "LargeMarginHead",
    "LinearHead",
    "NormalizedHead",
    "SimplexHead",
    "simplex_etf",
]
