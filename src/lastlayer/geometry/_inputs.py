"""Checks and prepares the inputs of every measure of geometry: features, labels, classes and the classifier."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer._core.labels import read_labels
from lastlayer._core.precision import check_floating

SQUARABLE = 1e140
"""Squares of numbers between this and its inverse can be summed without leaving the range of float64."""


@dataclass(frozen=True)
class Samples:
    """Features with their labels. The classes that are present are numbered 0..K-1."""

    features: Tensor  # (N, d)
    label: Tensor  # (N,) int64, position of the sample's class in `classes`
    classes: Tensor  # (K,) int64, the labels present, ascending
    count: Tensor  # (K,) float64

    @property
    def differentiable(self) -> bool:
        return self.features.requires_grad and torch.is_grad_enabled()


def check_features(features: Tensor, name: str = "features") -> None:
    """Raise unless `features` is a real floating-point matrix with at least one column."""
    check_floating(features, name)
    if features.ndim != 2 or features.shape[1] == 0:
        raise ValueError(
            f"{name} must have shape (N, d) with d >= 1, got {tuple(features.shape)}; make each sample one row first"
        )


def prepare(features: Tensor, target: Tensor) -> Samples:
    """Check the arguments and number the classes that are present. For this the CPU waits once for a GPU."""
    check_features(features)
    target = read_labels(target, features.shape[0])
    if features.shape[0] == 0:
        raise ValueError("features is empty: the geometry of no samples is not defined, give at least one row")
    target = target.to(features.device)
    classes, label, count = torch.unique(target, return_inverse=True, return_counts=True)
    if int(classes[0]) < 0:
        raise ValueError(
            f"target holds the negative label {int(classes[0])}; leave out samples that have no class before measuring"
        )
    return Samples(features, label, classes, count.to(torch.float64))


def check_finite(class_means: Tensor, samples: Samples) -> None:
    """Raise if a feature was NaN or infinite, or if its square would overflow or vanish.

    We look at the class means. Only float64 features are read once more, because their squares may leave the range.
    """
    if bool(torch.isfinite(class_means).all()):
        if samples.features.dtype == torch.float64:
            size = float(torch.stack(torch.aminmax(samples.features.detach())).abs().max())
            if size > SQUARABLE or 0 < size < 1 / SQUARABLE:
                raise ValueError(
                    f"features are as large as {size:.1e}, and their squares leave the range of float64; "
                    "divide them by a constant first"
                )
        return
    bad = (~torch.isfinite(samples.features).all(dim=1)).nonzero().flatten()
    if len(bad) == 0:
        raise ValueError("features are finite but their sums overflow float64; divide them by a constant first")
    raise ValueError(
        f"features hold NaN or infinite values in {len(bad)} of {len(samples.features)} rows, first in row "
        f"{int(bad[0])} (label {int(samples.classes[samples.label[bad[0]]])}); remove those rows or repair the model"
    )


def select_classifier(weight: Tensor, bias: Tensor | None, samples: Samples) -> tuple[Tensor, Tensor | None]:
    """The rows of the classifier that belong to the classes present, in float64."""
    check_classifier(weight, bias, samples.features.shape[1])
    largest = int(samples.classes[-1])
    if largest >= weight.shape[0]:
        raise ValueError(
            f"target holds label {largest} but weight has only {weight.shape[0]} rows (labels 0..{weight.shape[0] - 1})"
        )
    rows = weight.to(samples.features.device)[samples.classes].to(torch.float64)
    if bias is None:
        return rows, None
    return rows, bias.to(samples.features.device)[samples.classes].to(torch.float64)


def check_classifier(weight: Tensor, bias: Tensor | None, dim: int) -> None:
    """Raise unless weight is (C, dim), bias (C,) or None, and both finite."""
    check_features(weight, "weight")
    if weight.shape[1] != dim:
        raise ValueError(f"weight has {weight.shape[1]} columns but the features have {dim}: they must be equal")
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weight holds NaN or infinite values")
    if bias is None:
        return
    check_floating(bias, "bias")
    if bias.shape != (weight.shape[0],):
        raise ValueError(
            f"bias must have one entry for each of the {weight.shape[0]} rows of weight, got shape {tuple(bias.shape)}"
        )
    if not bool(torch.isfinite(bias).all()):
        raise ValueError("bias holds NaN or infinite values")
