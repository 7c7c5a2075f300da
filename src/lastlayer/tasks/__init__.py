"""Measures of logits: classification, single logits, open sets, long tails and calibration.

Every measure is a pure function of tensors. Scores are compared in their own dtype and counts are integers. Values are
float64 scalars on the device of the input, without gradients. Labels may have any integer dtype.

Every function raises TypeError if labels are not integers or scores are not floating point. It raises ValueError for
empty input, for shapes that do not fit together, and for labels out of range. Rankings also refuse NaN.
"""

from typing import TYPE_CHECKING, Any

from lastlayer._core.labels import long_tail_counts
from lastlayer.tasks.accuracies import (
    LongTail,
    accuracy,
    by_frequency,
    f1,
    is_skewed,
    long_tail,
    matthews,
    unbiased_accuracy,
)
from lastlayer.tasks.classes import (
    Confusions,
    PerClass,
    balanced_accuracy,
    confusions,
    macro_f1,
    per_class,
    top_k,
)
from lastlayer.tasks.conditions import (
    CriticalConditions,
    Scores,
    collapse_gap,
    collapsed,
    critical_conditions,
    scores,
)
from lastlayer.tasks.confidence import Calibration, calibration, single_calibration
from lastlayer.tasks.openset import OpenSet, open_set
from lastlayer.tasks.separation import (
    LogitSeparation,
    LogPartition,
    log_partition,
    logit_difference,
    logit_separation,
)
from lastlayer.tasks.single import SingleLogit, single_logit

if TYPE_CHECKING:
    from lastlayer.tasks.metrics import OpenSetMetrics, SingleLogitMetrics

__all__ = [
    "Calibration",
    "Confusions",
    "CriticalConditions",
    "LogPartition",
    "LogitSeparation",
    "LongTail",
    "OpenSet",
    "OpenSetMetrics",
    "PerClass",
    "Scores",
    "SingleLogit",
    "SingleLogitMetrics",
    "accuracy",
    "balanced_accuracy",
    "by_frequency",
    "calibration",
    "collapse_gap",
    "collapsed",
    "confusions",
    "critical_conditions",
    "f1",
    "is_skewed",
    "log_partition",
    "logit_difference",
    "logit_separation",
    "long_tail",
    "long_tail_counts",
    "macro_f1",
    "matthews",
    "open_set",
    "per_class",
    "scores",
    "single_calibration",
    "single_logit",
    "top_k",
    "unbiased_accuracy",
]


def __getattr__(name: str) -> Any:
    # The metric classes need torchmetrics, which is slow to import. The functions do not need it.
    if name in ("OpenSetMetrics", "SingleLogitMetrics"):
        from lastlayer.tasks import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
