"""Multi-layer perceptrons of papers 002 and 004, and the identity for given features."""

import math
from typing import Literal

from torch import nn

from .common import Backbone, register

BatchNorm = Literal["none", "all", "last"]


def perceptron(
    in_shape: tuple[int, ...],
    widths: tuple[int, ...],
    *,
    bias: bool = True,
    batch_norm: BatchNorm = "none",
    final_relu: bool = True,
) -> Backbone:
    """Linear layers of the given widths with ReLU. The features are the last activation. For the options see `mlp`."""
    if not widths or min(widths) < 1:
        raise ValueError(f"an MLP needs at least one hidden layer of positive width, not widths={widths}")
    if batch_norm not in ("none", "all", "last"):
        raise ValueError(f'batch_norm is "none", "all" or "last", not {batch_norm!r}')
    layers: list[nn.Module] = []
    size = math.prod(in_shape)
    for number, width in enumerate(widths, start=1):
        layers.append(nn.Linear(size, width, bias=bias))
        if batch_norm == "all":
            layers.append(nn.BatchNorm1d(width))
        if final_relu or number < len(widths):
            layers.append(nn.ReLU())
        size = width
    if batch_norm == "last":
        layers.append(nn.BatchNorm1d(size))
    return Backbone(size, flatten=nn.Flatten(), layers=nn.Sequential(*layers))


@register(
    "identity",
    summary="the inputs are the features (embeddings)",
    paper="none",
    in_shape=(64,),
    parameters=650,
)
def identity(in_shape: tuple[int, ...]) -> Backbone:
    """Backbone that returns its flattened input, for features made elsewhere.

    Args:
        in_shape: shape of one input.

    Example:
        >>> identity((5,)).num_features
        5
    """
    return Backbone(math.prod(in_shape), flatten=nn.Flatten())


@register(
    "mlp",
    summary="perceptron with depth and width of your choice",
    paper="none",
    in_shape=(1, 8, 8),
    parameters=85002,
)
def mlp(
    in_shape: tuple[int, ...],
    *,
    width: int = 256,
    depth: int = 2,
    bias: bool = True,
    batch_norm: BatchNorm = "none",
    final_relu: bool = True,
) -> Backbone:
    """Perceptron of `depth` hidden layers of equal `width`.

    Args:
        in_shape: shape of one input, which is flattened.
        width: units of each hidden layer.
        depth: number of hidden layers, at least one.
        bias: whether the linear layers have a bias.
        batch_norm: "none", "all" (between each linear layer and its ReLU), or "last" (once, after the last ReLU, where
            Pan and Cao 2023 have it).
        final_relu: whether the last hidden layer ends in ReLU. Without it features take both signs.

    Example:
        >>> mlp((1, 8, 8), width=32).num_features
        32
    """
    return perceptron(in_shape, (width,) * depth, bias=bias, batch_norm=batch_norm, final_relu=final_relu)


@register(
    "mlp500",
    summary="500-500 with batch norm, the MNIST network of Keren et al. 2018",
    paper="Keren, Sabato, Schuller 2018, section 6",
    in_shape=(1, 28, 28),
    parameters=650010,
)
def mlp500(in_shape: tuple[int, ...]) -> Backbone:
    """Two hidden layers of 500 units, each with batch norm and ReLU (Keren et al. 2018, MNIST).

    Example:
        >>> mlp500((1, 28, 28)).num_features
        500
    """
    return perceptron(in_shape, (500, 500), batch_norm="all")


def _register_without_bias(number: str, layers: int, parameters: int) -> None:
    """The perceptrons of Pan and Cao 2023: `layers` linear layers without biases, the head included.

    The paper does not state the width. For its batch norm before the last layer use `BatchNormHead`, which has no
    shift, or `batch_norm="last"` for torch's batch norm with a shift.
    """

    def factory(in_shape: tuple[int, ...], *, width: int = 256, batch_norm: BatchNorm = "none") -> Backbone:
        return perceptron(in_shape, (width,) * (layers - 1), bias=False, batch_norm=batch_norm)

    register(
        f"mlp{layers}",
        summary=f"{number} linear layers with the head, no biases (Pan and Cao 2023)",
        paper="Pan, Cao 2023, section 3",
        in_shape=(16,),
        num_classes=4,
        parameters=parameters,
    )(factory)


_register_without_bias("four", 4, 136196)
_register_without_bias("six", 6, 267268)
