"""Closed-form minima: on spheres, under norm budgets, with batch normalisation, of the unconstrained feature model."""

import math
from dataclasses import dataclass

from torch import nn

from lastlayer.theory import contrastive
from lastlayer.theory._binary import binary_cross_entropy_minimum, shared_offset
from lastlayer.theory._losses import Description, describe
from lastlayer.theory._scalar import (
    check_classes,
    check_nonnegative,
    check_positive,
    logaddexp,
    softplus,
)


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
    check_classes("K", K)
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
    check_classes("K", K)
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
    check_classes("K", K)
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
    check_classes("C", C)
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
    check_classes("C", C)
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
    check_classes("C", C)
    check_positive(lam=lam)
    return penalized_norms(C, math.sqrt(C) * lam).loss


@dataclass(frozen=True)
class UnconstrainedMinimum:
    """Global minimum of the unconstrained feature model on balanced classes.

    Attributes:
        loss: the minimum f*, penalties included.
        rho: minus the gap between the true and the false logit, <= 0.
        w_norm2: squared norm of every classifier row.
        h_norm2: squared norm of every feature.
        z_true: logit of the true class, bias included.
        z_false: logit of every other class, bias included.
        bias: the common bias (added to the logits) that goes with it.
        common: eigenvalue of W H_i along the vector of ones; 0 for a simplex frame, z_true for an orthogonal frame.
    """

    loss: float
    rho: float
    w_norm2: float
    h_norm2: float
    z_true: float
    z_false: float
    bias: float
    common: float


def unconstrained(
    loss: str | nn.Module | Description,
    K: int,
    n: int,
    lambda_w: float,
    lambda_h: float,
    *,
    bias: bool = True,
    lambda_b: float = 0.0,
) -> UnconstrainedMinimum:
    r"""Global minimum of (1/N) sum L(W h + b, y) + lambda_w/2 ||W||^2 + lambda_h/2 ||H||^2 + lambda_b/2 ||b||^2.

    Balanced: N = nK; with c = sqrt(n lambda_w lambda_h):

    - contrastive losses (ce, ls, focal, soft-margin, max-margin, batch-ce): t* = argmin phi(t) + c|t|, rho = t*/(K-1),
      f* = phi(t*) + c|t*|, W H_i = -rho (I - J), b = 0 (or any common value where lambda_b = 0), d >= K-1;
    - mse, kappa = 1: s = max(beta - cK/2, 0). Without bias W H_i = s I, an orthogonal frame, f* = (s - beta)^2 +
      cKs, d >= K; with a free bias W H_i = s (I - J), b = beta/K, f* = (K-1)/K (s - beta)^2 + c (K-1) s;
    - bce: W H_i = a (I - J) + common J. With a free bias common = 0 and sigmoid(z_false) = c, sigmoid(-z_true) =
      (K-1) c for c < 1/K. A penalised bias binds when lambda_b |b| reaches c, and from there on the offset moves
      into the features: sigmoid(z_false) = 2c, sigmoid(-z_true) = (K-2) c, |b| = c/lambda_b and common < 0, which
      needs d >= K. `bias_penalty_threshold` has the condition.

    Norms: W W' = sqrt(n lambda_h/lambda_w) |W H_i|, H_i' H_i = sqrt(lambda_w/(n lambda_h)) |W H_i|.

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        K: number of classes, at least 2.
        n: samples per class.
        lambda_w: penalty of the classifier, above 0.
        lambda_h: penalty of the features, above 0.
        bias: whether the model has a bias.
        lambda_b: its penalty, at least 0.

    Returns:
        UnconstrainedMinimum. If the penalties are too strong (c >= phi'(0) = 1/K for cross-entropy) the minimum is at
        W = H = 0. For mse, rho = -s.

    Raises:
        ValueError: where no closed form is known: another loss, mse with kappa != 1 or a penalised bias, bce with
            label smoothing or class weights.

    Paper: 001, Theorem 1, with W W' for W'W and c = sqrt(n lambda_w lambda_h) throughout; mse and bce are derived.

    Example:
        >>> found = unconstrained("ce", 10, 10, 5e-3, 5e-3)
        >>> round(found.loss, 6), round(found.rho, 6)
        (0.721792, -3.993521)
    """
    check_classes("K", K)
    check_classes("n", n, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    check_nonnegative(lambda_b=lambda_b)
    described = describe(loss)
    c = math.sqrt(n * lambda_w * lambda_h)
    w_scale, h_scale = math.sqrt(n * lambda_h / lambda_w), math.sqrt(lambda_w / (n * lambda_h))

    if described.name in contrastive.CONTRASTIVE:
        found = contrastive.minimisers(described, K, c)
        value, gap, common, offset = found.value, -found.t / (K - 1), 0.0, 0.0
    elif described.name == "mse":
        value, gap, common, offset = _mean_squared(described, K, c, bias, lambda_b)
    elif described.name == "bce":
        if described.number("label_smoothing") != 0 or described.options["pos_weight"] is not None:
            raise ValueError("bce has a closed form only without label_smoothing and pos_weight")
        solved = binary_cross_entropy_minimum(K, c, lambda_b if bias else math.inf)
        value, gap, common, offset = solved.loss, solved.gap, solved.common, solved.bias
    else:
        raise ValueError(
            f"loss {described.name!r} has no closed form in the unconstrained feature model; those with one are "
            f"{', '.join((*contrastive.CONTRASTIVE, 'mse', 'bce'))}; UnconstrainedFeatures solves it numerically"
        )
    size = gap * (K - 1) / K + abs(common) / K
    z_false = (common - gap) / K + offset
    return UnconstrainedMinimum(
        loss=value,
        rho=-gap,
        w_norm2=w_scale * size,
        h_norm2=h_scale * size,
        z_true=z_false + gap,
        z_false=z_false,
        bias=offset,
        common=common,
    )


def _mean_squared(
    described: Description, K: int, c: float, bias: bool, lambda_b: float
) -> tuple[float, float, float, float]:
    kappa, beta = described.number("kappa"), described.number("beta")
    if kappa != 1.0:
        raise ValueError(f"mse has a closed form only for kappa = 1, got kappa = {kappa}")
    if bias and lambda_b > 0:
        raise ValueError(f"mse has a closed form only for a free bias or none, got lambda_b = {lambda_b}")
    s = max(beta - c * K / 2.0, 0.0)
    if bias:
        return (K - 1) / K * (s - beta) ** 2 + c * (K - 1) * s, s, 0.0, beta / K
    return (s - beta) ** 2 + c * K * s, s, s, 0.0


def bias_penalty_threshold(K: int, n: int, lambda_w: float, lambda_h: float) -> float:
    r"""The lambda_b above which the minimum of bce is no longer a pure simplex frame: c / |m|.

    m = (1/K) [log((1 - (K-2)c) / ((K-2)c)) - (K-1) log((1 - 2c) / (2c))], c = sqrt(n lambda_w lambda_h) < 1/K.

    Why: in Z = W H the objective is convex, the penalties of W and H being c times the nuclear norm, so the minimum
    has the symmetry of the classes: Z = a (I - J) + common J and one bias b. The offset of all logits, common/K + b,
    can be paid in two currencies: c|common| through the features, K lambda_b b^2/2 through the bias. The second is
    cheaper at the margin as long as lambda_b |b| < c. Stationarity in a gives sigmoid(-z_true) + sigmoid(z_false) =
    cK, and in the offset (K-1) sigmoid(z_false) - sigmoid(-z_true) = -K lambda_b b; where both currencies cost the
    same, lambda_b b = -c, these read sigmoid(z_false) = 2c and sigmoid(-z_true) = (K-2)c, and m is the offset that
    these two logits need.

    Args:
        K: number of classes.
        n: samples per class.
        lambda_w: penalty of the classifier, above 0.
        lambda_h: penalty of the features, above 0.

    Returns:
        The threshold; infinity where the penalty never binds (K = 2, whose offset is 0, or m >= 0). For c >= 1/K, where
        the frame itself has vanished, sigmoid(m) = 1/K + c.

    Example:
        >>> round(bias_penalty_threshold(10, 10, 5e-3, 5e-3), 6)
        0.005478
    """
    check_classes("K", K)
    check_classes("n", n, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    c = math.sqrt(n * lambda_w * lambda_h)
    offset = shared_offset(K, c)
    return c / -offset if offset < 0 else math.inf
