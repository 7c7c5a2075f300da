"""What needs no training in the paper on normalized spaces: minima and times on the sphere model, its own fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.store import Record
from lastlayer.papers.engine.table import published
from lastlayer.theory import UnconstrainedFeatures, scaling
from lastlayer.theory.minima import normalized_binary_cross_entropy, normalized_cross_entropy

LOSSES = {"CE": "ce", "BCE": "bce"}
CLASSES = 10  # of MNIST, CIFAR-10 and the digits
SHIFTS = (-5.0, 1.0, 20.0)  # of a common bias
SMALL_RATE = 0.5  # of gradient descent below scale 1, where a step moves a cosine by at most rate times scale
LARGE_RATE = {"CE": 0.03, "BCE": 0.02}  # below 4 / scale^2 for every scale of the grid, or the first steps overshoot
SMALLEST = 0.4  # scales up to here are small, as in the fits of Eq. 218


class LogLoss(nn.Module):
    """Logarithm of the mean loss, from the logarithms of its terms.

    It has the minimum where the loss has it. The loss itself is flat to rounding at scale 64 (BCE's minimum is 5e-15
    for ten classes), so that its bias there could not be found to six digits; its logarithm is not.
    """

    def __init__(self, *, binary: bool) -> None:
        super().__init__()
        self.binary = binary

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The logarithm for logits (..., N, K) and labels (N,)."""
        label = F.one_hot(target, logits.shape[-1]).bool()  # (N, K)
        if self.binary:
            terms = torch.where(label, -logits, logits).flatten(-2)  # (..., N K)
        else:
            true = (logits * label).sum(-1, keepdim=True)
            terms = (logits - true).masked_fill(label, -math.inf).logsumexp(-1)  # (..., N)
        return log_softplus(terms).logsumexp(-1) - math.log(len(target))


def log_softplus(x: Tensor) -> Tensor:
    """log log(1 + e^x), which is x - e^x / 2 where e^x is below rounding."""
    low = x < -20
    return torch.where(low, x - 0.5 * x.clamp(max=-20).exp(), F.softplus(x.clamp(min=-20)).log())


def sphere_minima(classes: Sequence[int], scales: Sequence[float], starts: int) -> list[Record]:
    """The numerical minimum of the sphere model against Theorems 1 and 2, from random starts.

    Returns:
        A row for each loss, number of classes and scale: gap to the closed form, relative gap, largest error of a bias
        (BCE), and the largest relative change of the loss under a common shift of the biases.
    """
    rows = []
    for loss in LOSSES:
        for K in classes:
            for scale in scales:
                model = UnconstrainedFeatures(K, 2, K, LogLoss(binary=loss == "BCE"), normalized=True, scale=scale)
                found = model.solve(starts=starts, curvature=False)
                binary = normalized_binary_cross_entropy(K, scale)
                closed = normalized_cross_entropy(K, scale) if loss == "CE" else binary.loss
                shifted = [float(model.objective(found.weight, found.features, found.bias + by)) for by in SHIFTS]
                values = {
                    "minimum.gap": abs(math.exp(found.loss) - closed),
                    "minimum.relative_gap": abs(math.expm1(found.loss - math.log(closed))),
                    "minimum.shift": max(abs(math.expm1(one - found.loss)) for one in shifted),
                }
                if loss == "BCE":
                    values["minimum.bias_error"] = float((found.bias - binary.bias).abs().max())
                rows.append(Record({"loss": loss, "classes": str(K), "gamma": f"{scale:g}"}, 0, 0, values))
    return rows


def sphere_collapse(
    classes: Sequence[int],
    small: Sequence[float],
    large: Mapping[str, Sequence[float]],
    tolerance: float,
    starts: int,
    steps: int,
) -> list[Record]:
    """Steps of gradient descent on spheres until Eq. 217 holds, with one tolerance for all scales.

    Small scales for each number of classes (the growth towards 0 depends on it), large ones for the largest alone.

    Returns:
        A row for each loss, number of classes, scale and start: steps, and steps times the learning rate, which small
        and large scales need not share; infinite where the limit came first.
    """
    rows, most = [], max(classes)
    for loss, name in LOSSES.items():
        for K in classes:
            ranges = [(small, SMALL_RATE), *([(large[loss], LARGE_RATE[loss])] if most == K else [])]
            for scales, lr in ranges:
                found = scaling.steps_to_collapse(
                    name, K, scales, tolerance=tolerance, lr=lr, starts=starts, max_steps=steps
                )
                for seed, counts in enumerate(found.steps.tolist()):
                    for scale, count in zip(scales, counts, strict=True):
                        taken = float(count) if count >= 0 else math.inf
                        labels = {"loss": loss, "classes": str(K), "gamma": f"{scale:g}"}
                        rows.append(Record(labels, seed, 0, {"sphere.steps": taken, "sphere.time": lr * taken}))
    return rows


STARRED = {  # rows of Table 11 that the paper fits, by its two ranges
    ("CE", "small"): (0.01, 0.04, 0.08, 0.1, 0.2, 0.4),
    ("BCE", "small"): (0.01, 0.04, 0.08, 0.1, 0.2, 0.4),
    ("CE", "large"): (6, 7, 8, 9, 9.5),
    ("BCE", "large"): (8, 10, 12, 14, 16),
}


def printed_fits() -> list[Record]:
    """Least squares on the starred counts of Table 11, and the log-log slope of those up to scale 0.4."""
    counts = {
        (one.labels["loss"], float(one.labels["gamma"])): one.value
        for one in published(artifact("normalized_scaling.table11"))
    }
    rows = []
    for (loss, scales), starred in STARRED.items():
        y = [counts[loss, scale] for scale in starred]
        if scales == "small":
            fit = scaling.fit_inverse(starred, y)
            values = {"fit.slope": log_slope(starred, y)}
        else:
            fit = scaling.fit_exponential(starred, y)
            values = {"fit.k": fit.b}
        values |= {"fit.a": fit.a, "fit.c": fit.c, "fit.r2": fit.r2}
        rows.append(Record({"loss": loss, "scales": scales}, 0, 0, values))
    return rows


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the line of least squares through the logarithms.

    Example:
        >>> round(log_slope([1.0, 2.0, 4.0], [8.0, 4.0, 2.0]), 9)
        -1.0
    """
    u, v = torch.tensor(x, dtype=torch.float64).log(), torch.tensor(y, dtype=torch.float64).log()
    return float(((u - u.mean()) @ (v - v.mean())) / (u - u.mean()).square().sum())
