"""Heads turn features into logits. The weights of the classifier are stored here and nowhere else."""

import sys

from lastlayer._core.registry import import_all
from lastlayer.heads.batch_norm import BatchNormHead
from lastlayer.heads.head import Head, LinearHead, available, class_of, create, options, register
from lastlayer.heads.large_margin import LargeMarginHead
from lastlayer.heads.normalized import NormalizedHead
from lastlayer.heads.simplex import SimplexHead, simplex_etf

__all__ = [
    "BatchNormHead",
    "Head",
    "LargeMarginHead",
    "LinearHead",
    "NormalizedHead",
    "SimplexHead",
    "available",
    "class_of",
    "create",
    "options",
    "register",
    "simplex_etf",
]

import_all(sys.modules[__name__])  # a file in this folder registers its head, whether or not it is named above
