"""Minimising the unconstrained feature model from many random starts: coordinates, batched objective, gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.theory import _lbfgs
from lastlayer.theory._problem import Parts, Problem, unit
from lastlayer.theory._threads import side_by_side

Metric = tuple[float, float, float]


@dataclass(frozen=True)
class Found:
    """Where every start ended."""

    parts: Parts  # with a leading dimension of starts
    values: Tensor  # (S,)
    gradient_norms: Tensor  # (S,)
    iterations: Tensor  # (S,)


def search(problem: Problem, starts: int, *, seed: int, spread: float, tolerance: float, max_iterations: int) -> Found:
    """Minimise from random starts until the gradient norm is below the tolerance."""
    metric, size = _metric(problem), sum(problem.sizes)
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(starts, size, generator=generator, dtype=torch.float64)
    weight, features, bias = problem.split(points)
    if problem.normalized:
        weight, features = unit(weight), unit(features)
    else:
        typical = spread / math.sqrt(problem.dim)
        weight, features = weight * typical, features * typical
    points = problem.join(weight / metric[0], features / metric[1], 0.0 * bias)
    evaluate = _evaluator(problem, metric)

    def norm(x: Tensor, gradients: Tensor) -> Tensor:
        return _gradient_norm(problem, metric, x, gradients)

    # a longer memory saves iterations; starts that together outgrow the cache wait for it, so they go in groups
    memory = 20 if size < 20_000 else 6
    group = min(starts, max(1, 2_000_000 // (2 * memory * size)))

    def minimise(some: Tensor) -> _lbfgs.Minimum:
        if not torch.isfinite(evaluate(some)[0]).all():
            raise ValueError("the loss is not finite at a random start")
        return _lbfgs.minimise(
            evaluate, some, norm=norm, tolerance=tolerance, max_iterations=max_iterations, memory=memory
        )

    found = _lbfgs.join(side_by_side(minimise, torch.split(points, group), group * size))
    weight, features, bias = problem.split(found.points)
    weight, features, bias = weight * metric[0], features * metric[1], bias * metric[2]
    if problem.normalized:
        weight, features = unit(weight), unit(features)
    norms = norm(found.points, found.gradients)
    return Found((weight, features, bias), found.values, norms, found.iterations)


def _metric(problem: Problem) -> Metric:
    """W, H and b over the coordinates the solver works in, chosen so that all have curvatures of the same order.

    The penalties become isotropic (Euclidean), or a sample and a class weigh by their number (spheres).
    """
    K = len(problem.counts)
    if problem.normalized:
        return math.sqrt(K), math.sqrt(len(problem.target)), math.sqrt(K)
    bias_curvature = 0.25 / K**2
    if problem.described is not None and problem.described.name == "mse":
        # Near W H = beta the features curve by 2 beta/(K c) in their coordinates, and the bias by 2 in its own: this
        # makes them equal. The losses of probabilities flatten as those become certain, squared error never does.
        c = math.sqrt(len(problem.target) / K * problem.lambda_w * problem.lambda_h)
        bias_curvature = K * c / max(problem.described.number("beta"), 1.0)
    bias_curvature += problem.lambda_b
    return problem.lambda_w**-0.5, problem.lambda_h**-0.5, bias_curvature**-0.5


def _evaluator(problem: Problem, metric: Metric) -> _lbfgs.Evaluate:
    """Objective and gradient of many points at once in the solver's coordinates."""
    to_w, to_h, to_b = metric
    factors = (0.0, 0.0) if problem.normalized else (problem.lambda_w * to_w**2, problem.lambda_h * to_h**2)
    penalty = torch.cat(
        [
            torch.full((size,), factor, dtype=torch.float64)
            for size, factor in zip(problem.sizes, (*factors, problem.lambda_b * to_b**2), strict=True)
        ]
    )

    def single(flat: Tensor) -> Tensor:
        weight, features, bias = problem.split(flat)
        if problem.normalized:
            return problem.mean_loss(unit(weight), unit(features), bias * to_b)
        # every loss sees W and H through their product alone, so both factors may go to the smaller of the two
        return problem.mean_loss(weight * (to_w * to_h), features, bias * to_b)

    many: Callable[[Tensor], Tensor] = torch.func.vmap(single)
    try:
        with torch.no_grad():
            many(torch.ones(2, sum(problem.sizes), dtype=torch.float64))
    except RuntimeError:  # a loss that reads values as it goes cannot be vectorised

        def many(x: Tensor) -> Tensor:
            return torch.stack([single(row) for row in x])

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        values = many(x)
        (gradients,) = torch.autograd.grad(values.sum(), x)
        # the quadratic part by hand: through autograd it would cost as much as the loss
        x, pull = x.detach(), penalty * x.detach()
        return values.detach() + 0.5 * torch.linalg.vecdot(pull, x), gradients + pull

    return evaluate


def _gradient_norm(problem: Problem, metric: Metric, x: Tensor, gradient: Tensor) -> Tensor:
    """Norm of the gradient in the variables themselves; on spheres of the tangent gradient at the unit rows."""
    by_weight, by_features, by_bias = problem.split(gradient)
    if problem.normalized:
        # the gradient of f(w/||w||) is the tangent gradient at the unit row, divided by ||w||
        weight, features, _ = problem.split(x)
        rows = [by_weight.norm(dim=-1) * weight.norm(dim=-1), by_features.norm(dim=-1) * features.norm(dim=-1)]
        squares = [row.square().sum(-1) for row in rows]
    else:
        squares = [
            torch.linalg.vector_norm(part, dim=(-2, -1)).square() / factor**2
            for part, factor in ((by_weight, metric[0]), (by_features, metric[1]))
        ]
    total: Tensor = squares[0] + squares[1] + by_bias.square().sum(-1) / metric[2] ** 2
    return total.sqrt()
