"""What is known of a point of the unconstrained feature model: critical or not, global or not, how it may be left."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.geometry import Geometry, measure
from lastlayer.theory import minima
from lastlayer.theory._losses import Description
from lastlayer.theory._problem import Problem
from lastlayer.theory.landscape import Curvature, smallest_curvature

CONVEX = (
    "ce",
    "ls",
    "mse",
    "bce",
    "soft-margin",
    "max-margin",
    "nce",
    "batch-ce",
    "batch-max-margin",
    "logit-adjusted",
)

GLOBAL_TOLERANCE = 1e-8  # of the gap to a closed form, relative to 1 + |value|
BOUND_TOLERANCE = 1e-7  # of the gap to a lower bound, which is only as tight as the point is critical
CRITICAL_TOLERANCE = 1e-6  # of a gradient norm
NEGATIVE = -1e-8  # curvature below this is negative


@dataclass(frozen=True)
class Certificate:
    """What is known about a point.

    Attributes:
        kind: "global minimum" (within 1e-8 of the closed form, or 1e-7 of a lower bound), "strict saddle" (a
            direction of negative curvature), "spurious" (critical, no negative curvature found, and above the global
            minimum), "local minimum" (critical without negative curvature where no global value is known), "critical
            point" (curvature not computed), "not critical", or "not smooth" (a piecewise loss, whose gradient norm and
            curvature say nothing: only the gap counts). On spheres with a large scale the minimum itself is below 1e-8,
            and points far from collapse are that close to it: then only `geometry` tells them apart.
        value: the objective.
        gradient_norm: norm of its gradient, on spheres of the tangent gradient.
        closed_form: the global minimum in closed form, or None.
        gap: value minus closed form; without one, value minus `lower_bound`; None without either, or where the bound
            is vacuous.
        lower_bound: for a loss convex in the logits, a value that no W, H, b of any dimension can go below (from the
            dual of the nuclear norm; 0, which is vacuous, where that says no more), or None.
        curvature: smallest Hessian eigenvalue with its direction, or None.
        escape: unit direction (dW, dH, db) along which a strict saddle falls, or None.
        geometry: every measure of lastlayer.geometry at this point.
        starts: how many starts ended at this value.
    """

    kind: str
    value: float
    gradient_norm: float
    closed_form: float | None
    gap: float | None
    lower_bound: float | None
    curvature: Curvature | None
    escape: tuple[Tensor, Tensor, Tensor] | None
    geometry: Geometry
    starts: int


def closed_form(problem: Problem) -> float | None:
    """The global minimum where a formula exists and applies: balanced classes and enough dimensions."""
    described = problem.described
    if described is None or not problem.balanced:
        return None
    K, n = len(problem.counts), problem.counts[0]
    if problem.dim < K - 1:
        return None
    if problem.normalized:
        return _spherical(described, K, problem)
    try:
        found = minima.unconstrained(
            described,
            K,
            n,
            problem.lambda_w,
            problem.lambda_h,
            bias=problem.bias,
            lambda_b=problem.lambda_b,
        )
    except ValueError:
        return None
    needed = K if found.common != 0.0 else K - 1
    return found.loss if problem.dim >= needed else None


def _spherical(described: Description, K: int, problem: Problem) -> float | None:
    if described.name == "ce" and described.number("label_smoothing") == 0:
        return minima.normalized_cross_entropy(K, problem.scale / described.number("temperature"))
    if described.name == "batch-ce":
        return minima.normalized_cross_entropy(K, problem.scale)
    plain = described.name == "bce" and described.number("label_smoothing") == 0
    if plain and described.options["pos_weight"] is None and problem.bias and problem.lambda_b == 0:
        return minima.normalized_binary_cross_entropy(K, problem.scale).loss
    return None


def lower_bound(problem: Problem, parts: tuple[Tensor, Tensor, Tensor]) -> float | None:
    """A value below which the objective cannot fall, from the tangent of a convex loss at these logits.

    With G the gradient of the mean loss in Z = H W', every Z' has L(Z' + b') >= L + <G, Z' - Z> + g.(b' - b), and
    the penalties are at least l ||Z'||_*, l = sqrt(lambda_w lambda_h). <G, Z'> >= -||G|| ||Z'||_*, so the best Z'
    costs nothing if ||G|| <= l, and otherwise at most (||G|| - l) ||Z'||_* with ||Z'||_* <= value/l at the minimum
    of a non-negative loss. With a free bias the bound is exact up to ||g||, which vanishes at a critical point. Where
    the tangent says less than that, 0 is the bound.
    """
    if problem.normalized or problem.described is None or problem.described.name not in CONVEX:
        return None
    if problem.described.options.get("samples") is not None:
        return None
    weight, features, bias = (part.detach() for part in parts)
    logits = (features @ weight.mT).requires_grad_(True)
    offset = bias.clone().requires_grad_(True)
    # the loss as a function of free logits: the identity in place of the classifier
    with torch.enable_grad():
        value = problem.mean_loss(torch.eye(len(bias), dtype=logits.dtype), logits, offset)
    tangent, pull = torch.autograd.grad(value, [logits, offset], allow_unused=True)
    total = float(problem.objective(weight, features, bias))
    price = math.sqrt(problem.lambda_w * problem.lambda_h)
    excess = max(0.0, float(torch.linalg.matrix_norm(tangent, 2)) / price - 1.0)
    bound = float(value.detach()) - float((tangent * logits.detach()).sum()) - excess * total
    if pull is not None and problem.bias:
        bound -= float(pull @ bias)
        if problem.lambda_b > 0:
            bound -= float(pull @ pull) / (2.0 * problem.lambda_b)
    return max(bound, 0.0)


def certify(problem: Problem, parts: tuple[Tensor, Tensor, Tensor], *, curvature: bool, starts: int = 1) -> Certificate:
    """Classify the point W, H, b."""
    leaves = [part.detach().clone().requires_grad_(True) for part in parts]
    with torch.enable_grad():
        total = problem.objective(*leaves)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients if g is not None))
    value = float(total.detach())

    formula, bound = closed_form(problem), lower_bound(problem, parts)
    # a lower bound of 0 holds everywhere and says nothing about this point
    reference = formula if formula is not None else bound or None
    gap = None if reference is None else value - reference
    found = smallest_curvature(problem.objective, parts) if curvature and problem.smooth else None

    tolerance = GLOBAL_TOLERANCE if formula is not None else BOUND_TOLERANCE
    # a value well below the formula would show that the formula is not the minimum here
    if gap is not None and abs(gap) <= tolerance * (1.0 + abs(value)):
        kind = "global minimum"
    elif not problem.smooth:
        kind = "not smooth"
    elif norm > CRITICAL_TOLERANCE:
        kind = "not critical"
    elif found is None:
        kind = "critical point"
    elif found.value < NEGATIVE:
        kind = "strict saddle"
    else:
        kind = "local minimum" if formula is None else "spurious"
    escape = None
    if kind == "strict saddle" and found is not None and isinstance(found.direction, tuple):
        dw, dh, db = found.direction
        escape = (dw, dh, db)
    weight, features, bias = (part.detach() for part in parts)
    sign = -1.0 if problem.normalized else 1.0
    geometry = measure(features, problem.target, weight, sign * bias)
    return Certificate(kind, value, norm, formula, gap, bound, found, escape, geometry, starts)
