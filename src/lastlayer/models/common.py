"""What all backbones share: the registry, the check of an input's shape, and how stages and convolutions are made.

Tests: tests/models/test_common.py.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from lastlayer._core.registry import Registry, options_of

Factory = Callable[..., nn.Module]
F = TypeVar("F", bound=Factory)


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a registered backbone."""

    name: str  # for `create`
    factory: Factory  # called with `in_shape` and the options
    summary: str  # one line for people
    paper: str  # where the architecture comes from
    parameters: int  # number of trainable parameters of the backbone and a linear head with bias
    in_shape: tuple[int, ...] = (3, 32, 32)  # shape of one input for which they were counted
    num_classes: int = 10  # number of classes for which they were counted

    @property
    def options(self) -> dict[str, Any]:
        """The options that the factory takes, with their defaults."""
        return options_of(self.factory, without=("in_shape",))


_MODELS: Registry[ModelInfo] = Registry("model", "package.module:factory, timm:NAME, hf:NAME")


def register(name: str, **facts: Any) -> Callable[[F], F]:
    """Decorator that registers `factory(in_shape, *, options) -> nn.Module` with what `ModelInfo` holds of it."""
    return _MODELS.adding(name, lambda factory: ModelInfo(name, factory, **facts))


def available() -> tuple[str, ...]:
    """The names of the registered backbones, sorted.

    Example:
        >>> from lastlayer import models
        >>> "resnet20" in models.available()
        True
    """
    return tuple(_MODELS.names())


def describe(name: str) -> ModelInfo:
    """What is known of a registered backbone: its paper, its options, its number of parameters.

    Raises:
        ValueError: if no backbone has that name. The message suggests the nearest one.

    Example:
        >>> from lastlayer import models
        >>> models.describe("resnet20").parameters
        269722
    """
    return _MODELS.get(name)


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


class Backbone(nn.Sequential):
    """Named stages, one after the other, from inputs to features (N, num_features)."""

    def __init__(self, num_features: int, **stages: nn.Module) -> None:
        super().__init__(OrderedDict(stages))
        self.num_features = num_features


class GlobalPool(nn.Module):
    """The mean of each map, (N, maps, H, W) to (N, maps)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def conv_norm(channels: int, maps: int, kernel: int, stride: int = 1) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution that keeps the size, or divides it by the stride, and batch norm, whose shift replaces a bias."""
    convolution = nn.Conv2d(channels, maps, kernel, stride=stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(maps)


def he_normal(model: Backbone) -> Backbone:
    """Draw convolutions from N(0, 2 / (k^2 out)) (He et al. 2015, backward form). Batch norm starts at 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    return model
