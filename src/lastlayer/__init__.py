"""The last layer of a classifier: its loss, its head, its features, and what one logit can decide."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastlayer import geometry as geometry
    from lastlayer import heads as heads
    from lastlayer import linear_loss as linear_loss
    from lastlayer import losses as losses
    from lastlayer import tasks as tasks
    from lastlayer import theory as theory
    from lastlayer.training.load import load as load

__version__ = "0.1.0"

_PARTS = ("geometry", "heads", "linear_loss", "losses", "tasks", "theory")


def __getattr__(name: str) -> Any:
    if name == "load":  # brings in models and data: only when it is used
        from lastlayer.training.load import load

        return load
    if name in _PARTS:  # after `import lastlayer` alone
        return import_module(f"lastlayer.{name}")
    raise AttributeError(f"module 'lastlayer' has no attribute {name!r}")
