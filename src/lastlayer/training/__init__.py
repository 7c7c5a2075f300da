"""What to train (`Trial`) and how one trial runs (`fit`)."""

from lastlayer.training.trial import (
    Augmentation,
    DataChoice,
    HeadChoice,
    LossChoice,
    ModelChoice,
    Optimiser,
    Schedule,
    Trial,
)

__all__ = [
    "Augmentation",
    "DataChoice",
    "HeadChoice",
    "LossChoice",
    "ModelChoice",
    "Optimiser",
    "Schedule",
    "Trial",
]
