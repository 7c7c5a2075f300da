"""The last layer of a classifier: its loss, its head, its features, and what one logit can decide."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastlayer.training.load import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "load":  # brings in models and data: only when it is used
        from lastlayer.training.load import load

        return load
    raise AttributeError(f"module 'lastlayer' has no attribute {name!r}")
