"""Gradient descent of the sphere model (unit features and classifier rows, a scale), for many scales at once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lastlayer.theory._scalar import check_count, check_positive
from lastlayer.theory._threads import threads_for


def check_loss(loss: str) -> None:
    """Raise unless the loss is one of the two that the sphere model is analysed for."""
    if loss not in ("ce", "bce"):
        raise ValueError(f"loss must be 'ce' or 'bce', got {loss!r}")


@dataclass(frozen=True)
class Collapse:
    """Steps until collapse, one row per start and one column per scale.

    Attributes:
        scales: the scales, [G].
        steps: gradient steps until the stopping rule held, [starts, G]; -1 where it did not within the limit.
        bias_mean: mean bias at the end, [starts, G].
    """

    scales: Tensor
    steps: Tensor
    bias_mean: Tensor

    def reached(self) -> tuple[Tensor, Tensor]:
        """The scales that collapsed from every start and their median steps, as float64, ready for a fit."""
        done = (self.steps >= 0).all(0)
        return self.scales[done], self.steps[:, done].to(torch.float64).median(0).values


def steps_to_collapse(
    loss: str,
    K: int,
    scales: Sequence[float] | Tensor,
    *,
    n: int = 2,
    d: int | None = None,
    tolerance: float = 0.0035,
    lr: float = 0.05,
    max_steps: int = 20_000,
    bias: float | None = 0.0,
    starts: int = 1,
    seed: int = 0,
) -> Collapse:
    r"""Gradient steps on spheres until |w_y.h - 1| <= t and |w_j.h + 1/(K-1)| <= t for all samples and classes.

    Features follow lr times the gradient of their own loss, rows and biases lr times K times the gradient of the
    mean loss, and unit norms are restored after every step. All scales start from the same random points and use the
    same tolerance (the paper's own counts change it at scale 5).

    Args:
        loss: "ce" or "bce".
        K: number of classes, at least 2.
        scales: grid of scales, above 0.
        n: samples per class.
        d: dimension, at least K - 1; K if None.
        tolerance: t of the stopping rule.
        lr: learning rate; above about 4/scale^2 the first steps overshoot and the counts become erratic.
        max_steps: where to give up.
        bias: initial value of the trained biases; None for a model without bias.
        starts: number of random starting points.
        seed: of the starting points.

    Returns:
        Collapse: `.steps` with -1 for a scale that did not collapse in time.

    Paper: 003, Equation 217 and Appendix F, on the unconstrained sphere model instead of a network.

    Example:
        >>> found = steps_to_collapse("ce", 3, [0.5, 1.0, 2.0])
        >>> bool(found.steps[0, 0] > found.steps[0, 1] > 0)    # a smaller scale is slower
        True
    """
    check_loss(loss)
    check_count("K", K)
    check_count("n", n, least=1)
    check_count("starts", starts, least=1)
    check_positive(tolerance=tolerance, lr=lr)
    grid = torch.as_tensor(scales, dtype=torch.float64).flatten()
    if not (grid > 0).all():
        raise ValueError(f"scales must be positive, got {grid.min().item()}")
    dim = K if d is None else d
    if dim < K - 1:
        raise ValueError(f"d must be at least K - 1 = {K - 1}, or no simplex frame exists; got {dim}")

    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(starts, 1, K + n * K, dim, dtype=torch.float64, generator=generator)
    points = F.normalize(points, dim=3).expand(-1, len(grid), -1, -1).flatten(0, 1)  # (starts * G, K + N, d)
    weight, features = points[:, :K], points[:, K:]
    runs = len(points)
    biases = torch.full((runs, 1, K), 0.0 if bias is None else float(bias), dtype=torch.float64)
    label = F.one_hot(torch.arange(K).repeat(n), K).to(torch.float64)  # (N, K)
    ideal = label * (K / (K - 1)) - 1.0 / (K - 1)

    steps = torch.full((runs,), -1, dtype=torch.int64)
    bias_mean = torch.full((runs,), math.nan, dtype=torch.float64)
    active = torch.arange(runs)
    gamma = grid.repeat(starts).view(-1, 1, 1)
    with threads_for(points.numel()):
        for count in range(max_steps + 1):
            cosines = features @ weight.mT  # (runs, N, K)
            done = (cosines - ideal).abs().amax((1, 2)) <= tolerance
            if done.any():
                steps[active[done]] = count
                bias_mean[active[done]] = biases[done].mean((1, 2))
                keep = ~done
                active, gamma, cosines = active[keep], gamma[keep], cosines[keep]
                weight, features, biases = weight[keep], features[keep], biases[keep]
            if len(active) == 0:
                break
            scores = gamma * cosines - biases
            residual = (torch.softmax(scores, 2) if loss == "ce" else torch.sigmoid(scores)) - label
            pull = gamma * residual
            # simultaneous update: both gradients belong to the old point
            features, weight = (
                F.normalize(features - lr * pull @ weight, dim=2),
                F.normalize(weight - (lr / n) * pull.mT @ features, dim=2),
            )
            if bias is not None:
                biases = biases + (lr / n) * residual.sum(1, keepdim=True)
    bias_mean[active] = biases.mean((1, 2))
    return Collapse(grid, steps.view(starts, -1), bias_mean.view(starts, -1))
