"""Turns losses from elsewhere into a `Loss`: any callable of (logits, target), such as a loss of `torch.nn`."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lastlayer.losses.loss import Loss


def as_loss(loss: Any, num_classes: int | None = None) -> Loss:
    """Turn what a user gives as a loss into a `Loss`.

    Args:
        loss: a `Loss`, which is returned unchanged, or any callable of (logits, target) that returns a scalar, such as
            a function or a Module of `torch.nn`. What a Module learns stays its own.
        num_classes: the number of classes. None takes it from the logits of each call.

    Example:
        >>> import torch
        >>> as_loss(torch.nn.MultiMarginLoss(margin=0.5))(torch.tensor([[1.0, 0.9]]), torch.tensor([0]))
        tensor(0.2000)
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise TypeError(f"loss must be a lastlayer loss, a loss Module or a function of (logits, target), got {loss!r}")
    if not isinstance(loss, nn.Module):
        return class_of(loss)(num_classes)
    made = _of_module(loss)(num_classes)
    made.module = loss
    return made


@functools.cache
def class_of(found: Callable[..., Any], name: str = "this") -> type[Loss]:
    """The `Loss` class for a class or a function from elsewhere.

    Its hyperparameters are the arguments of the class's constructor, or of the function after (logits, target).
    ValueError for a class that is not derived from Module.
    """
    if isinstance(found, nn.Module):
        return _of_module(found)
    if not isinstance(found, type):
        return _derived(found, found, _options(found)[2:])
    if issubclass(found, Loss):
        return found
    if not issubclass(found, nn.Module):
        raise ValueError(f"{name} is no loss: a class must be derived from lastlayer.losses.Loss or nn.Module")

    def call(logits: Tensor, target: Any, **options: Any) -> Tensor:
        value: Tensor = found(**options)(logits, target)
        return value

    def init(self: Loss, num_classes: int | None = None, **options: Any) -> None:
        Loss.__init__(self, num_classes, **options)
        self.module = found(**self.hyperparameters())

    return _derived(found, call, _options(found), init)


def _of_module(module: nn.Module) -> type[Loss]:
    """A `Loss` class whose losses hold a copy of a Module. Its weights are saved, moved and trained with the loss."""

    def init(self: Loss, num_classes: int | None = None) -> None:
        Loss.__init__(self, num_classes)
        self.module = copy.deepcopy(module)

    return _derived(type(module), module, [], init)


def _derived(
    named: Any, call: Callable[..., Tensor], options: list[inspect.Parameter], init: Callable[..., None] | None = None
) -> type[Loss]:
    """A `Loss` class that calls `call` and has the name of `named`."""
    inputs = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("logits", "target")]

    def function(logits: Tensor, target: Any, **given: Any) -> Tensor:
        return call(logits, target, **given)

    keywords = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    function.__signature__ = inspect.Signature([*inputs, *keywords])  # type: ignore[attr-defined]
    name = getattr(named, "__name__", type(named).__name__)
    content: dict[str, Any] = {
        "__module__": getattr(named, "__module__", __name__),
        "__qualname__": getattr(named, "__qualname__", name),
        "__doc__": getattr(named, "__doc__", None),
        "function": staticmethod(function),
        "in_pieces": False,
    }
    if init is not None:

        def forward(self: Any, logits: Tensor, target: Any) -> Tensor:
            self.check_classes(logits)
            value: Tensor = self.module(logits, target)
            return value

        content |= {"__init__": init, "forward": forward}
    return type(name, (Loss,), content)


def _options(found: Callable[..., Any]) -> list[inspect.Parameter]:
    """The named parameters of a callable. An empty list if it has no signature that can be read."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
