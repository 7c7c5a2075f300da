"""Curvature: the smallest Hessian eigenvalue of any objective, found without its Hessian, and Hessians in closed form.

Tests: tests/theory/test_landscape.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from lastlayer.theory import contrastive
from lastlayer.theory.loss_theory import NoFormula, read
from lastlayer.theory.numbers import bisect, check_count, check_nonnegative, check_positive

__all__ = ["Curvature", "focal_convexity", "logit_hessian", "origin_curvature", "smallest_curvature"]


@dataclass(frozen=True)
class Curvature:
    """The smallest Hessian eigenvalue found."""

    value: float  # above the true smallest one only if the iteration stopped early
    direction: Tensor | tuple[Tensor, ...]  # unit eigenvector, shaped like the point
    residual: float  # ||H v - value v||. An eigenvalue lies within this distance of `value`.
    largest: float  # the largest eigenvalue found. Judge the size of `value` by it.
    iterations: int  # number of Hessian-vector products
    converged: bool  # whether the residual is below the tolerance

    def __float__(self) -> float:
        return self.value


def smallest_curvature(
    objective: Callable[..., Tensor],
    point: Tensor | Sequence[Tensor],
    *,
    max_iterations: int = 120,
    tolerance: float = 1e-9,
    seed: int = 0,
) -> Curvature:
    r"""Smallest eigenvalue of the Hessian of an objective at a point, by Lanczos on Hessian-vector products.

    The Hessian is never formed. The gradient's graph is built once, and each product is one more backward pass. If the
    basis fills an invariant subspace (a degenerate spectrum), it goes on from a new random vector. A linear objective
    has curvature 0.

    Args:
        objective: maps the point to a scalar and is twice differentiable there. It is called as objective(point), or
            as objective(*point) for several tensors.
        point: a tensor, or several.
        max_iterations: largest number of products. With as many as the point has entries, the answer is exact.
        tolerance: stop when the residual is below tolerance * max(1, largest |eigenvalue|). `converged` says that we
            found an eigenpair. It does not say that no eigenvalue is lower.
        seed: seed of the starting vector.

    Raises:
        ValueError: if the objective is not finite at the point.

    Paper: none; used for 001, Theorem 2 and Corollaries 1 and 2.
    Tests: tests/theory/test_landscape.py::test_against_dense_eigenvalues

    Example:
        >>> saddle = smallest_curvature(lambda x: x[0] ** 2 - 3 * x[1] ** 2, torch.zeros(2, dtype=torch.float64))
        >>> round(saddle.value, 9), saddle.direction.abs().round(decimals=9)
        (-6.0, tensor([0., 1.], dtype=torch.float64))
    """
    given = [point] if isinstance(point, Tensor) else point
    leaves = [part.detach().clone().requires_grad_(True) for part in given]

    def flat(tensors: Sequence[Tensor | None]) -> Tensor:
        filled = [torch.zeros_like(p) if t is None else t for t, p in zip(tensors, leaves, strict=True)]
        return torch.cat([t.reshape(-1) for t in filled])

    with torch.enable_grad():
        value = objective(*leaves)
        if not torch.isfinite(value):
            raise ValueError(f"the objective is {value.item()} at the point; its curvature is not defined")
        gradient = flat(torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True))

    def product(vector: Tensor) -> Tensor:
        return flat(torch.autograd.grad(gradient, leaves, vector, retain_graph=True, allow_unused=True))

    if gradient.requires_grad:
        found = _lanczos(product, gradient.detach(), min(max_iterations, gradient.numel()), tolerance, seed)
    else:
        found = Curvature(0.0, torch.eye(1, gradient.numel()).to(gradient)[0], 0.0, 0.0, 0, True)
    pieces = torch.split(cast(Tensor, found.direction), [leaf.numel() for leaf in leaves])
    shaped = tuple(piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True))
    return replace(found, direction=shaped[0] if isinstance(point, Tensor) else shaped)


def _lanczos(product: Callable[[Tensor], Tensor], like: Tensor, limit: int, tolerance: float, seed: int) -> Curvature:
    """Smallest Ritz pair of a symmetric operator. The direction is flat.

    Plain Lanczos loses orthogonality as soon as an eigenvalue converges, so we orthogonalise the basis twice.
    """
    generator = torch.Generator().manual_seed(seed)

    def fresh(basis: Tensor) -> Tensor:
        vector = torch.randn(like.numel(), generator=generator, dtype=torch.float64).to(like)
        for _ in range(2):
            vector = vector - basis.T @ (basis @ vector)
        unit: Tensor = vector / vector.norm()
        return unit

    basis = like.new_empty((limit, like.numel()))
    basis[0] = fresh(basis[:0])
    diagonal: list[float] = []
    below: list[float] = []
    scale = 0.0
    while True:
        count = len(diagonal) + 1
        image = product(basis[count - 1])
        diagonal.append(float(image @ basis[count - 1]))
        for _ in range(2):
            image = image - basis[:count].T @ (basis[:count] @ image)
        length = float(image.norm())
        scale = max(scale, abs(diagonal[-1]), length)
        exhausted = length <= 1e-13 * max(scale, 1e-300)
        below.append(0.0 if exhausted else length)
        if count % 5 == 0 or count == limit or exhausted:
            tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
            off = torch.tensor(below[:-1], dtype=torch.float64)
            tridiagonal += torch.diag(off, 1) + torch.diag(off, -1)
            values, vectors = torch.linalg.eigh(tridiagonal)
            residual = abs(below[-1] * float(vectors[-1, 0]))
            small = residual <= tolerance * max(1.0, float(values.abs().max()))
            # An exhausted subspace has residual 0, but may have missed a part of the spectrum.
            if count == limit or (small and not exhausted):
                vector = basis[:count].T @ vectors[:, 0].to(like)
                vector = vector / vector.norm()
                return Curvature(float(values[0]), vector, residual, float(values[-1]), count, small)
        basis[count] = fresh(basis[:count]) if exhausted else image / length


def origin_curvature(
    loss: str | nn.Module, K: int, n: int, lambda_w: float, lambda_h: float, *, bias: bool = True, lambda_b: float = 0.0
) -> float:
    r"""Smallest Hessian eigenvalue of the unconstrained feature model at W = H = b = 0.

    min(lambda_b, (lambda_w + lambda_h)/2 - sqrt((lambda_w - lambda_h)^2/4 + phi'(0)^2/n)), without the first term if
    there is no bias. The origin is critical for every contrastive loss. It is a strict saddle if and only if
    c = sqrt(n lambda_w lambda_h) < phi'(0). For focal loss with many classes, it can be a spurious local minimum.

    Args:
        loss: ce, ls, focal or another contrastive loss with a twice differentiable profile.
        K, n, lambda_w, lambda_h, bias, lambda_b: as in `minima.unconstrained`. If lambda_b is 0, the direction that
            shifts all logits is flat.

    Raises:
        NoFormula: a ValueError, if the loss is not contrastive or its profile is piecewise linear.

    Paper: 001, Section 3.2; the formula is derived.
    Tests: tests/theory/test_landscape.py::test_origin_curvature

    Example:
        >>> origin_curvature("ce", 10, 5, 5e-3, 5e-3) < 0 <= origin_curvature("ce", 10, 5, 0.1, 0.1)
        True
    """
    check_count("n", n, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    check_nonnegative(lambda_b=lambda_b)
    profile = contrastive.phi(loss, K)
    if not profile.has_curvature:
        raise NoFormula(f"{loss} has no curvature: its profile is piecewise linear")
    slope = profile.derivative(0.0)
    frame = 0.5 * (lambda_w + lambda_h) - math.sqrt(0.25 * (lambda_w - lambda_h) ** 2 + slope**2 / n)
    return min(lambda_b, frame) if bias else frame


def logit_hessian(loss: str | nn.Module, logits: Tensor, target: Tensor) -> Tensor:
    r"""Hessian of cross-entropy (also with label smoothing) or focal loss in the logits, one matrix per sample.

    - ce and ls: diag(p) - p p'
    - focal: eta'(p_k) p_k (e_k - p)(e_k - p)' - eta(p_k) (diag(p) - p p'), where
      eta(p) = gamma p (1-p)^(gamma-1) log p - (1-p)^gamma and
      eta'(p) = gamma (1-p)^(gamma-2) [(1 - gamma p) log p + 2 (1-p)]

    Args:
        loss: ce, ls or focal, by create name or Module; temperature 1.
        logits: [N, K].
        target: labels, [N].

    Returns:
        [N, K, K]. For focal loss with gamma < 2 the factor (1-p)^(gamma-2) is infinite at p = 1.

    Paper: 001, Appendix D.
    Tests: tests/theory/test_landscape.py::test_logit_hessians_against_autograd

    Example:
        >>> logit_hessian("ce", torch.zeros(1, 2), torch.tensor([0]))
        tensor([[[ 0.2500, -0.2500],
                 [-0.2500,  0.2500]]])
    """
    return read(loss).logit_hessian(logits, target)


def softmax_hessian(p: Tensor) -> Tensor:
    """diag(p) - p p' for each row of probabilities: the Hessian of cross-entropy in the logits."""
    return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)  # (N, K, K)


def focal_hessian(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    """The Hessian of focal loss in the logits."""
    p = torch.softmax(logits, dim=1)
    rows = torch.arange(len(target), device=target.device)
    log_p = torch.log_softmax(logits, dim=1)[rows, target.long()]
    p_true = log_p.exp()
    rest = -torch.expm1(log_p)  # 1 - p without cancellation
    eta = gamma * p_true * rest ** (gamma - 1.0) * log_p - rest**gamma
    slope = gamma * rest ** (gamma - 2.0) * ((1.0 - gamma * p_true) * log_p + 2.0 * rest)
    toward = -p.clone()
    toward[rows, target.long()] += 1.0
    outer = toward.unsqueeze(2) * toward.unsqueeze(1)
    return (slope * p_true).view(-1, 1, 1) * outer - eta.view(-1, 1, 1) * softmax_hessian(p)


def focal_convexity(gamma: float | None = None) -> float:
    r"""Probability of the true class from which focal loss is convex in the logits.

    The condition is eta'(p) >= 0, that is (1 - gamma p) log p + 2 (1 - p) >= 0. It is sufficient. If
    log p + 2 (1 - p) >= 0, the condition holds for every gamma.

    Args:
        gamma: focal exponent, above 0. None asks for the value that holds for every gamma.

    Paper: 001, Corollary 2, which rounds to 0.21.
    Tests: tests/theory/test_landscape.py::test_focal_is_convex_above_its_probability

    Example:
        >>> round(focal_convexity(), 6), round(focal_convexity(3.0), 4)
        (0.203188, 0.0855)
    """
    if gamma is not None:
        check_positive(gamma=gamma)
    factor = 0.0 if gamma is None else gamma
    # The expression starts at minus infinity and is positive at 1/2: log(1/2)(1 - gamma/2) + 1 >= 1 - log 2.
    return bisect(lambda p: (1.0 - factor * p) * math.log(p) + 2.0 * (1.0 - p), 1e-300, 0.5)
