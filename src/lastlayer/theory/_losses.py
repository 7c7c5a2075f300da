"""What the closed forms need to know of a loss: its name and the hyperparameters its formula depends on."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from lastlayer import losses

# the name of a loss's function -> its create name; label smoothing is cross_entropy with another target
_NAMES = {losses.entry(name).module.function.__name__: name for name in losses.available() if name != "ls"}


@dataclass(frozen=True)
class Description:
    """A loss by its create name, with the hyperparameters its formula depends on."""

    name: str
    options: dict[str, Any]

    def number(self, key: str) -> float:
        """The hyperparameter as a float."""
        return float(self.options[key])


def name_of(loss: nn.Module) -> str | None:
    """The create name of a loss Module of the library, whatever its hyperparameters; None for another Module."""
    return _name(loss) if isinstance(loss, losses.Loss) else None


def _name(loss: losses.Loss) -> str:
    """A loss of the user's own making has the name of its function, of which no formula knows."""
    function = type(loss).function.__name__
    return _NAMES.get(function, function)


def describe(loss: str | nn.Module | Description) -> Description:
    """Name and hyperparameters of a create name or a loss Module of the library.

    Raises:
        ValueError: for class weights or an unknown name.
        TypeError: for a Module that is no loss of the library.
    """
    if isinstance(loss, Description):
        return loss
    if isinstance(loss, str):
        loss = losses.create(loss)
    if not isinstance(loss, losses.Loss):
        raise TypeError(f"loss must be a create name or a loss Module of lastlayer.losses, got {type(loss).__name__}")
    options = loss.hyperparameters()
    for key in ("weight", "class_weight"):
        if options.get(key) is not None:
            raise ValueError("the closed forms hold without class weights; make the loss with weight=None")
    return Description(_name(loss), options)
