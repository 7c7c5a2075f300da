"""Every loss of the library: a function, a Module named CamelCase + "Loss", and a name for `create`.

They replace `torch.nn.functional.cross_entropy` and `torch.nn.CrossEntropyLoss` without other changes to your code.
They take the same targets, class weights, ignored labels and reductions. They work under autocast, `torch.compile`,
`torch.func` and DDP.
"""

import sys

from lastlayer._core.registry import import_all
from lastlayer.losses.arc_margin import ArcMarginLoss, arc_margin
from lastlayer.losses.batch_cross_entropy import BatchCrossEntropyLoss, batch_cross_entropy
from lastlayer.losses.batch_max_margin import BatchMaxMarginLoss, batch_max_margin
from lastlayer.losses.binary_cross_entropy import BinaryCrossEntropyLoss, binary_cross_entropy
from lastlayer.losses.cross_entropy import CrossEntropyLoss, cross_entropy
from lastlayer.losses.distillation import (
    DistillationLoss,
    FeatureNormDistillationLoss,
    distillation,
    feature_norm_distillation,
)
from lastlayer.losses.focal import FocalLoss, focal
from lastlayer.losses.large_margin import LargeMarginLoss, large_margin
from lastlayer.losses.logit_adjusted import LogitAdjustedLoss, logit_adjusted
from lastlayer.losses.loss import Entry, Loss, NeededHead, available, create, create_for, entry, name_of, register
from lastlayer.losses.max_margin import MaxMarginLoss, max_margin
from lastlayer.losses.mse import MseLoss, mse
from lastlayer.losses.nce import NceLoss, nce
from lastlayer.losses.self_norm import SelfNormLoss, self_norm
from lastlayer.losses.soft_logit_norm import (
    LogitNormLoss,
    SoftLogitNormLoss,
    default_tau,
    logit_norm,
    soft_logit_norm,
)
from lastlayer.losses.soft_margin import SoftMarginLoss, soft_margin
from lastlayer.losses.target import Target, check_labels
from lastlayer.losses.wrap import as_loss

__all__ = [
    "ArcMarginLoss",
    "BatchCrossEntropyLoss",
    "BatchMaxMarginLoss",
    "BinaryCrossEntropyLoss",
    "CrossEntropyLoss",
    "DistillationLoss",
    "Entry",
    "FeatureNormDistillationLoss",
    "FocalLoss",
    "LargeMarginLoss",
    "LogitAdjustedLoss",
    "LogitNormLoss",
    "Loss",
    "MaxMarginLoss",
    "MseLoss",
    "NceLoss",
    "NeededHead",
    "SelfNormLoss",
    "SoftLogitNormLoss",
    "SoftMarginLoss",
    "Target",
    "arc_margin",
    "as_loss",
    "available",
    "batch_cross_entropy",
    "batch_max_margin",
    "binary_cross_entropy",
    "check_labels",
    "create",
    "create_for",
    "cross_entropy",
    "default_tau",
    "distillation",
    "entry",
    "feature_norm_distillation",
    "focal",
    "large_margin",
    "logit_adjusted",
    "logit_norm",
    "max_margin",
    "mse",
    "name_of",
    "nce",
    "register",
    "self_norm",
    "soft_logit_norm",
    "soft_margin",
]

import_all(sys.modules[__name__])  # a file in this folder registers its loss, whether or not it is named above
