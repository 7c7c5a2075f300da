"""What to train (`Trial`), how one trial runs (`fit`), and how to load what it trained (`load`)."""

from lastlayer.training.engine.state import DivergedError
from lastlayer.training.facts import Facts, choose, load_data
from lastlayer.training.fit import Progress, finish_fit, fit
from lastlayer.training.load import Loaded, load
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
    "DivergedError",
    "Facts",
    "HeadChoice",
    "Loaded",
    "LossChoice",
    "ModelChoice",
    "Optimiser",
    "Progress",
    "Schedule",
    "Trial",
    "choose",
    "finish_fit",
    "fit",
    "load",
    "load_data",
]
