"""Losses from elsewhere: any callable of (logits, target), a class of `torch.nn` losses too, as a `Loss`."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lastlayer.losses.loss import Loss


def as_loss(loss: Any, num_classes: int | None = None) -> Loss:
    """What a user gives as a loss, as a `Loss`.

    Args:
        loss: a `Loss`, which is returned as it is; or any callable of (logits, target), such as a Module of `torch.nn`
            or a function. It is expected to return a scalar.
        num_classes: the number of classes, or None to take it from the logits of each call.

    Raises:
        TypeError: for what cannot be called.

    Example:
        >>> import torch
        >>> as_loss(torch.nn.MultiMarginLoss(margin=0.5))(torch.tensor([[1.0, 0.9]]), torch.tensor([0]))
        tensor(0.2000)
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise TypeError(f"loss must be a lastlayer loss, a loss Module or a function of (logits, target), got {loss!r}")
    return _of_module(loss)(num_classes) if isinstance(loss, nn.Module) else class_of(loss)(num_classes)


@functools.cache
def class_of(found: Callable[..., Any], name: str = "this") -> type[Loss]:
    """The class of losses that a class or a function from elsewhere stands for.

    Its hyperparameters are the arguments of a class's constructor, or of a function after (logits, target).

    Args:
        found: the class or function.
        name: what messages call it.

    Raises:
        ValueError: for a class that is no Module.
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
    """Losses that hold a copy of a Module; its own weights are saved, moved and learnt with it."""

    def init(self: Loss, num_classes: int | None = None) -> None:
        Loss.__init__(self, num_classes)
        self.module = copy.deepcopy(module)

    return _derived(type(module), module, [], init)


def _derived(
    named: Any, call: Callable[..., Tensor], options: list[inspect.Parameter], init: Callable[..., None] | None = None
) -> type[Loss]:
    """A class of losses called as `call` is, under the name of what it is made from."""
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
    }
    if init is not None:

        def forward(self: Any, logits: Tensor, target: Any) -> Tensor:
            self.check_classes(logits)
            value: Tensor = self.module(logits, target)
            return value

        content |= {"__init__": init, "forward": forward}
    return type(name, (Loss,), content)


def _options(found: Callable[..., Any]) -> list[inspect.Parameter]:
    """The named parameters of a callable; none where it does not tell."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
