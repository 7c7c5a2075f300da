"""Closed-form minima: on spheres, under norm budgets, with batch normalisation, of the unconstrained feature model."""

import math
from dataclasses import dataclass

from lastlayer.theory._frames import UnconstrainedMinimum, bias_penalty_threshold, unconstrained
from lastlayer.theory._scalar import check_count, check_nonnegative, check_positive, logaddexp, softplus

__all__ = [
    "BinaryMinimum",
    "PenalizedMinimum",
    "UnconstrainedMinimum",
    "bias_penalty_threshold",
    "bounded_norms",
    "logit_norm",
    "near_optimal_radius",
    "normalized_binary_cross_entropy",
    "normalized_cross_entropy",
    "penalized_norms",
    "regularized_batch_norm",
    "unconstrained",
]


def normalized_cross_entropy(K: int, scale: float) -> float:
    r"""Smallest mean cross-entropy of logits scale * w_j.h - b_j with unit rows: log(1 + (K-1) e^{-scale K/(K-1)}).

    Attained exactly at neural collapse (h = w_k, W W' = K/(K-1) (I - J), equal biases of any value), d >= K-1,
    balanced.

    Args:
        K: number of classes, at least 2.
        scale: the scale gamma, at least 0; 0 gives log K.

    Returns:
        The minimum, accurate to rounding for every scale; 0.0 where it is below the smallest float.

    Paper: 003, Theorem 1.

    Example:
        >>> round(normalized_cross_entropy(10, 8.0), 8)
        0.00124045
    """
    check_count("K", K)
    check_nonnegative(scale=scale)
    return softplus(math.log(K - 1) - scale * K / (K - 1))


@dataclass(frozen=True)
class BinaryMinimum:
    """Minimum of normalised binary cross-entropy.

    Attributes:
        loss: the minimum, summed over classes and averaged over samples.
        bias: the common bias b* that is subtracted from the scores there.
    """

    loss: float
    bias: float


def normalized_binary_cross_entropy(K: int, scale: float) -> BinaryMinimum:
    r"""Smallest mean one-vs-all cross-entropy of scale * w_j.h - b_j with unit rows, and the bias that attains it.

    softplus(b* - scale) + (K-1) softplus(-b* - s), s = scale/(K-1), with
    b* = log{[(K-2) e^{-s} + sqrt((K-2)^2 e^{-2s} + 4 (K-1) e^{scale - s})] / 2}, both computed from logarithms. The
    polynomial form printed in the paper is equal but loses all digits to cancellation already at moderate scales.

    Args:
        K: number of classes, at least 2; K = 2 has b* = 0.
        scale: the scale gamma, at least 0.

    Returns:
        BinaryMinimum: `.loss` and `.bias`. For a large scale the bias grows like (scale (K-2)/(K-1) + log(K-1)) / 2.

    Paper: 003, Theorem 2 (Equations 10 and 11).

    Example:
        >>> found = normalized_binary_cross_entropy(10, 8.0)
        >>> round(found.loss, 6), round(found.bias, 6)
        (0.069778, 4.669825)
    """
    check_count("K", K)
    check_nonnegative(scale=scale)
    step = scale / (K - 1)
    first = math.log(K - 2) - step if K > 2 else -math.inf
    second = 0.5 * (math.log(4.0 * (K - 1)) + scale - step)
    root = 0.5 * logaddexp(2.0 * first, 2.0 * second)
    bias = logaddexp(first, root) - math.log(2.0) if K > 2 else 0.0
    return BinaryMinimum(softplus(bias - scale) + (K - 1) * softplus(-bias - step), bias)


def logit_norm(K: int, tau: float) -> float:
    r"""Infimum of the logit-normalised loss: log(1 + (K-1) e^{-sqrt(K/(K-1))/tau}), at logits proportional to e_y -
    1/K.

    Args:
        K: number of classes, at least 2.
        tau: temperature, above 0.

    Returns:
        The infimum over all non-zero logits; it does not depend on their norm.

    Paper: 000, Section 3 (the value is derived from Equation 2 with gamma = 1).

    Example:
        >>> round(logit_norm(10, 0.2), 6)
        0.045232
    """
    check_count("K", K)
    check_positive(tau=tau)
    return softplus(math.log(K - 1) - math.sqrt(K / (K - 1)) / tau)


def bounded_norms(C: int, alpha_beta: float) -> float:
    r"""Smallest mean cross-entropy under norm budgets: log(1 + (C-1) e^{-C alpha beta/(C-1)}).

    The quadratic mean of the feature norms is at most alpha, ||W||_F at most sqrt(C) beta, and there is no bias.

    Args:
        C: number of classes, at least 2.
        alpha_beta: product of the two budgets, at least 0.

    Returns:
        The minimum m; the same number as `normalized_cross_entropy` at this scale.

    Paper: 004, Theorem 2.1.

    Example:
        >>> round(bounded_norms(4, 2.0), 6)
        0.189339
    """
    check_count("C", C)
    check_nonnegative(alpha_beta=alpha_beta)
    return normalized_cross_entropy(C, alpha_beta)


@dataclass(frozen=True)
class PenalizedMinimum:
    """Minimum of the cross-entropy under norm budgets when the product of the budgets is charged for.

    Attributes:
        loss: the minimum f*.
        norm: the product g* of the budgets that attains it.
        curvature: second derivative of f at g*.
    """

    loss: float
    norm: float
    curvature: float


def penalized_norms(C: int, lam: float) -> PenalizedMinimum:
    r"""Minimum over g >= 0 of f(g) = log(1 + (C-1) e^{-C g/(C-1)}) + lam g.

    For lam < 1: g* = (C-1)/C log((C - (C-1) lam)/lam) and
    f* = -log(1 - (C-1) lam/C) + lam g*; for lam >= 1: g* = 0 and f* = log C. The sign of the first logarithm is printed
    wrongly in the paper.

    Args:
        C: number of classes, at least 2.
        lam: price of the norm, above 0.

    Returns:
        PenalizedMinimum: `.loss`, `.norm` and `.curvature` (C lam/(C-1) (1 - (C-1) lam/C); at lam >= 1 that of f at 0).

    Paper: 004, Proposition C.2, with the sign corrected.

    Example:
        >>> found = penalized_norms(4, 0.1)
        >>> round(found.loss, 6), round(found.norm, 6)
        (0.34878, 2.708188)
    """
    check_count("C", C)
    check_positive(lam=lam)
    lam_at_zero = min(lam, 1.0)
    share = (C - 1) * lam_at_zero / C  # the probability left to the false classes
    norm = (C - 1) / C * math.log((C - (C - 1) * lam) / lam) if lam < 1 else 0.0
    loss = -math.log1p(-share) + lam * norm
    return PenalizedMinimum(loss, norm, C / (C - 1) * lam_at_zero * (1.0 - share))


def near_optimal_radius(C: int, lam: float, epsilon: float) -> float:
    r"""How far g can be from g* when f(g) <= f* + epsilon, to leading order: sqrt(2 epsilon / f''(g*)).

    f''(g*) = C lam/(C-1) (1 - (C-1) lam/C), so this is sqrt(2 (C-1) epsilon / (C lam (1 - (C-1) lam/C))); the radius
    printed in the paper is too small from C = 4 on.

    Args:
        C: number of classes, at least 2.
        lam: price of the norm, in (0, 1).
        epsilon: excess over the minimum, at least 0.

    Returns:
        The radius; exact in the limit of a small epsilon, a little too small to the right of g* otherwise.

    Paper: 004, Proposition C.2, corrected.

    Example:
        >>> f"{near_optimal_radius(10, 0.1, 1e-8):.3e}"
        '4.447e-04'
    """
    check_nonnegative(epsilon=epsilon)
    if not 0.0 < lam < 1.0:
        raise ValueError(f"lam must lie strictly between 0 and 1, got {lam}; from 1 on the minimum is at g = 0")
    return math.sqrt(2.0 * epsilon / penalized_norms(C, lam).curvature)


def regularized_batch_norm(C: int, lam: float) -> float:
    r"""Smallest cross-entropy plus (lam/2)(||gamma||^2 + ||W||_F^2) behind bias-free batch normalisation, no last bias.

    -log(1 - (C-1) lam/sqrt C) + (C-1) lam/sqrt C log(sqrt C/lam - (C-1)) for lam < 1/sqrt C, and log C from there
    on: the minimum of `penalized_norms` at the price sqrt(C) lam, since the penalty is at least lam ||gamma||
    ||W||_F. At the optimum ||gamma||^2 = ||W||_F^2.

    Args:
        C: number of classes, at least 2.
        lam: weight decay, above 0.

    Returns:
        m_reg.

    Paper: 004, Theorem 2.2, with the sign of the first logarithm corrected.

    Example:
        >>> round(regularized_batch_norm(4, 0.05), 6)    # the printed sign gives 0.193, below what can be reached
        0.34878
    """
    check_count("C", C)
    check_positive(lam=lam)
    return penalized_norms(C, math.sqrt(C) * lam).loss
