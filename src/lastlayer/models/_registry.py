"""The registry of backbones: one decorator adds a model, `create` builds it, `available` lists it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from lastlayer._core.registry import nearest

Factory = Callable[..., nn.Module]
F = TypeVar("F", bound=Factory)


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a registered backbone.

    Attributes:
        name: the name `create` takes.
        factory: called with `in_shape` and the options.
        summary: one line for people.
        paper: where the architecture comes from.
        in_shape: input shape without the batch at which `parameters` was counted.
        num_classes: classes of the linear head (with bias) included in `parameters`.
        parameters: number of trainable parameters of backbone and linear head.
    """

    name: str
    factory: Factory
    summary: str
    paper: str
    in_shape: tuple[int, ...]
    num_classes: int
    parameters: int

    @property
    def options(self) -> dict[str, Any]:
        """The options the factory takes and their defaults."""
        signature = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in signature if p.name != "in_shape"}


_MODELS: dict[str, ModelInfo] = {}


def register(
    name: str, *, summary: str, paper: str, in_shape: tuple[int, ...], num_classes: int, parameters: int
) -> Callable[[F], F]:
    """Decorator that adds `factory(in_shape, *, options) -> nn.Module` to the registry under `name`."""

    def add(factory: F) -> F:
        if name in _MODELS:
            raise ValueError(f"model {name!r} is registered twice")
        _MODELS[name] = ModelInfo(name, factory, summary, paper, in_shape, num_classes, parameters)
        return factory

    return add


def available() -> tuple[str, ...]:
    """Names of the registered backbones, sorted.

    Example:
        >>> from lastlayer import models
        >>> "resnet20" in models.available()
        True
    """
    return tuple(sorted(_MODELS))


def describe(name: str) -> ModelInfo:
    """What is known of a registered backbone: paper, options, parameter count.

    Raises:
        ValueError: no backbone has that name; the nearest ones are suggested.

    Example:
        >>> from lastlayer import models
        >>> models.describe("resnet20").parameters
        269722
    """
    if name not in _MODELS:
        raise ValueError(
            f"model {name!r} is unknown{nearest(name, _MODELS)}; available: {', '.join(available())}; "
            "or package.module:factory, timm:NAME, hf:NAME"
        )
    return _MODELS[name]


def build(name: str, in_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    """Call a registered factory, naming an option it does not take."""
    info = describe(name)
    for option in options:
        if option not in info.options:
            allowed = ", ".join(info.options) or "none"
            raise ValueError(
                f"model {name!r} has no option {option!r}{nearest(option, info.options)}; options: {allowed}"
            )
    return info.factory(in_shape, **options)


def image_shape(in_shape: tuple[int, ...], model: str, smallest: int = 1) -> tuple[int, int, int]:
    """Check that `in_shape` is (channels, height, width) with sides of at least `smallest`."""
    if len(in_shape) != 3:
        raise ValueError(
            f"{model} takes images, in_shape (channels, height, width), not {tuple(in_shape)}; "
            "for feature vectors use mlp or identity"
        )
    channels, height, width = in_shape
    if min(height, width) < smallest:
        raise ValueError(f"{model} needs images of at least {smallest}x{smallest}, not {height}x{width}")
    return channels, height, width
