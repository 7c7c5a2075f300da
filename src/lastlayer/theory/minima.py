"""Closed-form minima: on spheres, under norm budgets, with batch normalization, and of the unconstrained feature model.

Tests: tests/theory/test_minima.py.
"""

import math
from dataclasses import dataclass

import numpy as np
from torch import nn

from lastlayer.theory import contrastive
from lastlayer.theory.loss_theory import LossTheory, read
from lastlayer.theory.numbers import (
    bisect,
    check_count,
    check_nonnegative,
    check_positive,
    check_share,
    log1pexp,
    logit,
    sigmoid,
)


def normalized_cross_entropy(K: int, scale: float) -> float:
    r"""Smallest mean cross-entropy of logits scale * w_j.h - b_j with unit rows: log(1 + (K-1) e^{-scale K/(K-1)}).

    It is attained exactly at neural collapse: h = w_k, W W' = K/(K-1) (I - J), and equal biases of any value. Classes
    are balanced and d >= K-1. The result is accurate to rounding for every scale. Below the smallest float it is 0.0.

    Args:
        K: number of classes, at least 2.
        scale: the scale gamma, at least 0; 0 gives log K.

    Paper: 003, Theorem 1.
    Tests: tests/theory/test_minima.py::test_normalized_minima_in_sixty_digits

    Example:
        >>> round(normalized_cross_entropy(10, 8.0), 8)
        0.00124045
    """
    check_count("K", K)
    check_nonnegative(scale=scale)
    return log1pexp(math.log(K - 1) - scale * K / (K - 1))


@dataclass(frozen=True)
class BinaryMinimum:
    """Minimum of normalized binary cross-entropy."""

    loss: float  # the minimum, summed over classes and averaged over samples
    bias: float  # the common bias b* there, which is subtracted from the scores


def normalized_binary_cross_entropy(K: int, scale: float) -> BinaryMinimum:
    r"""Smallest mean one-vs-all cross-entropy of scale * w_j.h - b_j with unit rows, and the bias that attains it.

    With s = scale/(K-1), the minimum is softplus(b* - scale) + (K-1) softplus(-b* - s), where
    b* = log{[(K-2) e^{-s} + sqrt((K-2)^2 e^{-2s} + 4 (K-1) e^{scale - s})] / 2}. We compute both from logarithms. The
    polynomial that the paper prints is equal, but already at moderate scales cancellation takes all its digits.

    Args:
        K: number of classes, at least 2; K = 2 has b* = 0.
        scale: the scale gamma, at least 0.

    Paper: 003, Theorem 2 (Equations 10 and 11).
    Tests: tests/theory/test_minima.py::test_normalized_minima_in_sixty_digits

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
    root = 0.5 * np.logaddexp(2.0 * first, 2.0 * second)
    bias = float(np.logaddexp(first, root)) - math.log(2.0) if K > 2 else 0.0
    return BinaryMinimum(log1pexp(bias - scale) + (K - 1) * log1pexp(-bias - step), bias)


def logit_norm(K: int, tau: float) -> float:
    r"""Infimum of the logit-normalized loss over all non-zero logits: log(1 + (K-1) e^{-sqrt(K/(K-1))/tau}).

    It is attained at logits proportional to e_y - 1/K, whatever their norm.

    Args:
        K: number of classes, at least 2.
        tau: temperature, above 0.

    Paper: 000, Section 3. The value is derived from Equation 2 with gamma = 1.
    Tests: tests/theory/test_minima.py::test_logit_norm_infimum

    Example:
        >>> round(logit_norm(10, 0.2), 6)
        0.045232
    """
    check_count("K", K)
    check_positive(tau=tau)
    return log1pexp(math.log(K - 1) - math.sqrt(K / (K - 1)) / tau)


def bounded_norms(C: int, alpha_beta: float) -> float:
    r"""Smallest mean cross-entropy under norm budgets: log(1 + (C-1) e^{-C alpha beta/(C-1)}).

    The quadratic mean of the feature norms is at most alpha, ||W||_F is at most sqrt(C) beta, and there is no bias.

    Args:
        C: number of classes, at least 2.
        alpha_beta: product of the two budgets, at least 0.

    Paper: 004, Theorem 2.1.
    Tests: tests/theory/test_bounds.py::test_bounds_hold_on_perturbed_frames

    Example:
        >>> round(bounded_norms(4, 2.0), 6)
        0.189339
    """
    check_count("C", C)
    check_nonnegative(alpha_beta=alpha_beta)
    return normalized_cross_entropy(C, alpha_beta)


@dataclass(frozen=True)
class PenalizedMinimum:
    """Minimum of the cross-entropy under norm budgets, plus a price for the product of the budgets."""

    loss: float  # the minimum f*
    norm: float  # the product g* of the budgets that attains it
    curvature: float  # second derivative of f at g*


def penalized_norms(C: int, lam: float) -> PenalizedMinimum:
    r"""Minimum over g >= 0 of f(g) = log(1 + (C-1) e^{-C g/(C-1)}) + lam g.

    If lam < 1: g* = (C-1)/C log((C - (C-1) lam)/lam), f* = -log(1 - (C-1) lam/C) + lam g* and
    f''(g*) = C lam/(C-1) (1 - (C-1) lam/C). If lam >= 1: g* = 0, f* = log C and the curvature is f''(0). The paper
    prints the first logarithm of f* with the wrong sign.

    Args:
        C: number of classes, at least 2.
        lam: price of the norm, above 0.

    Paper: 004, Proposition C.2, with the sign corrected.
    Tests: tests/theory/test_minima.py::test_penalised_norms

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
    r"""How far g can be from g* if f(g) <= f* + epsilon, to leading order: sqrt(2 epsilon / f''(g*)).

    `penalized_norms` has f''(g*). The radius is exact in the limit of a small epsilon; otherwise it is a little too
    small to the right of g*. The radius that the paper prints is too small from C = 4 on.

    Args:
        C: number of classes, at least 2.
        lam: price of the norm, in (0, 1).
        epsilon: excess over the minimum, at least 0.

    Paper: 004, Proposition C.2, corrected.
    Tests: tests/theory/test_minima.py::test_printed_radius_is_too_small

    Example:
        >>> f"{near_optimal_radius(10, 0.1, 1e-8):.3e}"
        '4.447e-04'
    """
    check_nonnegative(epsilon=epsilon)
    check_share(lam=lam)  # from lam = 1 on, the minimum is at g = 0
    return math.sqrt(2.0 * epsilon / penalized_norms(C, lam).curvature)


def regularized_batch_norm(C: int, lam: float) -> float:
    r"""Smallest cross-entropy plus (lam/2)(||gamma||^2 + ||W||_F^2) behind batch normalization, without any bias.

    -log(1 - (C-1) lam/sqrt C) + (C-1) lam/sqrt C log(sqrt C/lam - (C-1)) if lam < 1/sqrt C, else log C. This is the
    minimum of `penalized_norms` at the price sqrt(C) lam, since at the optimum ||gamma||^2 = ||W||_F^2.

    Args:
        C: number of classes, at least 2.
        lam: weight decay, above 0.

    Paper: 004, Theorem 2.2, with the sign of the first logarithm corrected.
    Tests: tests/theory/test_minima.py::test_batch_norm_minimum_is_reached_through_batch_normalisation

    Example:
        >>> round(regularized_batch_norm(4, 0.05), 6)    # the printed sign gives 0.193, below what can be reached
        0.34878
    """
    check_count("C", C)
    check_positive(lam=lam)
    return penalized_norms(C, math.sqrt(C) * lam).loss


@dataclass(frozen=True)
class Frame:
    """A symmetric point of the unconstrained feature model: W H_i = gap (I - J) + common J, and one bias for all."""

    loss: float  # the objective at this point, penalties included
    gap: float  # true minus false logit, >= 0
    common: float  # eigenvalue of W H_i along the vector of ones; 0 for a simplex frame
    bias: float  # the bias of every class, which is added to the logits

    @classmethod
    def of_binary_cross_entropy(cls, K: int, c: float, lambda_b: float) -> "Frame":
        """Minimise softplus(-z_true) + (K-1) softplus(z_false) + c [(K-1) gap + |common|] + K lambda_b bias^2/2.

        An infinite lambda_b means that there is no bias.
        """
        shared = _shared_offset(K, c)
        common_is_cheaper = shared < 0 and (lambda_b == math.inf or lambda_b * -shared > c)
        if c < 1.0 / K:
            # f = sigmoid(z_false) decides everything. It is c with a free bias and grows with lambda_b, up to 2c.
            if common_is_cheaper:
                f = 2.0 * c
            elif lambda_b == math.inf:
                # An offset of zero is optimal: a + f = cK along z_true = (K-1)/K gap, z_false = -gap/K.
                high = 2.0 * K * (1.0 + abs(logit(c * K / 2.0)))
                gap = bisect(lambda g: c * K - sigmoid(-g * (K - 1) / K) - sigmoid(-g / K), 0.0, high)
                f = sigmoid(-gap / K)
            elif lambda_b == 0 or K == 2:
                f = c
            else:
                f = bisect(lambda f: f - c + lambda_b * _mean_logit(K, c, f), 0.0, min(2.0 * c, c * K))
            z_true, z_false = -logit(c * K - f), logit(f)
            gap, offset = z_true - z_false, (z_true + (K - 1) * z_false) / K
        else:
            gap = 0.0
            if lambda_b == 0:
                offset = -math.log(K - 1)
            elif common_is_cheaper:
                offset = shared
            elif lambda_b == math.inf:
                offset = 0.0
            else:
                offset = bisect(lambda m: sigmoid(m) - 1.0 / K + lambda_b * m, -math.log(K - 1) - 1.0, 1.0)
        if lambda_b == math.inf:
            bias = 0.0
        elif lambda_b * abs(offset) > c:
            bias = math.copysign(c / lambda_b, offset)
        else:
            bias = offset
        common = K * (offset - bias)
        z_true, z_false = offset + gap * (K - 1) / K, offset - gap / K
        penalty = c * ((K - 1) * gap + abs(common)) + (K * lambda_b * bias**2 / 2.0 if bias != 0.0 else 0.0)
        return cls(log1pexp(-z_true) + (K - 1) * log1pexp(z_false) + penalty, gap, common, bias)


@dataclass(frozen=True)
class UnconstrainedMinimum:
    """Global minimum of the unconstrained feature model on balanced classes."""

    loss: float  # the minimum f*, penalties included
    rho: float  # minus the gap between the true and the false logit, <= 0
    w_norm2: float  # squared norm of each classifier row
    h_norm2: float  # squared norm of each feature
    z_true: float  # logit of the true class, bias included
    z_false: float  # logit of each other class, bias included
    bias: float  # the common bias that goes with it, which is added to the logits
    common: float  # eigenvalue of W H_i along the vector of ones; 0 for a simplex frame, z_true for an orthogonal frame


def unconstrained(
    loss: str | nn.Module, K: int, n: int, lambda_w: float, lambda_h: float, *, bias: bool = True, lambda_b: float = 0.0
) -> UnconstrainedMinimum:
    r"""Global minimum of (1/N) sum L(W h + b, y) + lambda_w/2 ||W||^2 + lambda_h/2 ||H||^2 + lambda_b/2 ||b||^2.

    Classes are balanced, N = nK. With c = sqrt(n lambda_w lambda_h):

    - Contrastive losses (ce, ls, focal, soft-margin, max-margin, batch-ce): t* = argmin phi(t) + c|t|,
      rho = t*/(K-1), f* = phi(t*) + c|t*|, W H_i = -rho (I - J), d >= K-1. The bias is 0, or any common value if
      lambda_b = 0.
    - mse with kappa = 1: s = max(beta - cK/2, 0). Without bias W H_i = s I, an orthogonal frame, d >= K, and
      f* = (s - beta)^2 + cKs. With a free bias W H_i = s (I - J), b = beta/K and f* = (K-1)/K (s - beta)^2 + c (K-1) s.
    - bce: W H_i = a (I - J) + common J. With a free bias and c < 1/K: common = 0, sigmoid(z_false) = c and
      sigmoid(-z_true) = (K-1) c. If the bias is penalised, lambda_b |b| is at most c. Once it reaches c, the features
      take over the rest of the offset: sigmoid(z_false) = 2c, sigmoid(-z_true) = (K-2) c, |b| = c/lambda_b and
      common < 0, which needs d >= K. `bias_penalty_threshold` says when.

    Norms: W W' = sqrt(n lambda_h/lambda_w) |W H_i|, H_i' H_i = sqrt(lambda_w/(n lambda_h)) |W H_i|.

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        K: number of classes, at least 2.
        n: samples per class.
        lambda_w, lambda_h: penalties of classifier and features, above 0.
        bias, lambda_b: whether the model has a bias, and its penalty, at least 0.

    Returns:
        UnconstrainedMinimum. If the penalties are too strong, the minimum is at W = H = 0. For cross-entropy this
        happens if c >= phi'(0) = 1/K. For mse, rho = -s.

    Raises:
        NoFormula: a ValueError, for other losses, for mse with kappa != 1, beta < 0 or a penalised bias, and for bce
            with label smoothing or class weights.

    Paper: 001, Theorem 1, with W W' for W'W and c = sqrt(n lambda_w lambda_h) throughout; mse and bce are derived.
    Tests: tests/theory/test_minima.py::test_unconstrained_minimum_cannot_be_improved

    Example:
        >>> found = unconstrained("ce", 10, 10, 5e-3, 5e-3)
        >>> round(found.loss, 6), round(found.rho, 6)
        (0.721792, -3.993521)
    """
    check_nonnegative(lambda_b=lambda_b)
    c = _price(K, n, lambda_w, lambda_h)
    theory = read(loss)
    if theory.answers(LossTheory.phi):
        found = contrastive.minimisers(theory.loss, K, c)
        frame = Frame(found.value, -found.t / (K - 1), 0.0, 0.0)
    else:
        frame = theory.frame(K, c, lambda_b if bias else math.inf)

    size = frame.gap * (K - 1) / K + abs(frame.common) / K
    z_false = (frame.common - frame.gap) / K + frame.bias
    return UnconstrainedMinimum(
        loss=frame.loss,
        rho=-frame.gap,
        w_norm2=math.sqrt(n * lambda_h / lambda_w) * size,
        h_norm2=math.sqrt(lambda_w / (n * lambda_h)) * size,
        z_true=z_false + frame.gap,
        z_false=z_false,
        bias=frame.bias,
        common=frame.common,
    )


def _price(K: int, n: int, lambda_w: float, lambda_h: float) -> float:
    """c, what the model pays per unit of the logits' nuclear norm."""
    check_count("K", K)
    check_count("n", n, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    return math.sqrt(n * lambda_w * lambda_h)


def _shared_offset(K: int, c: float) -> float:
    """Mean logit at which features and a bias with lambda_b |b| = c shift all logits at the same cost."""
    return _mean_logit(K, c, 2.0 * c) if c < 1.0 / K else logit(1.0 / K + c)


def _mean_logit(K: int, c: float, false_share: float) -> float:
    """(z_true + (K-1) z_false)/K, given sigmoid(z_false) = false_share and sigmoid(-z_true) = cK - false_share."""
    return (-logit(c * K - false_share) + (K - 1) * logit(false_share)) / K


def bias_penalty_threshold(K: int, n: int, lambda_w: float, lambda_h: float) -> float:
    r"""The lambda_b above which the minimum of bce is no longer a pure simplex frame: c / |m|.

    m = (1/K) [log((1 - (K-2)c) / ((K-2)c)) - (K-1) log((1 - 2c) / (2c))] and c = sqrt(n lambda_w lambda_h) < 1/K.

    Why: In Z = W H the objective is convex, because the penalties of W and H are c times the nuclear norm. So the
    minimum has the symmetry of the classes: Z = a (I - J) + common J, and one bias b. The offset common/K + b of all
    logits can be paid for in two ways: c|common| through the features, or K lambda_b b^2/2 through the bias. Both cost
    the same at lambda_b b = -c. There the derivatives in a and in the offset are 0 at sigmoid(z_false) = 2c and
    sigmoid(-z_true) = (K-2)c, and m is the offset that these two logits need. If c >= 1/K, the frame itself has
    vanished, and m is given by sigmoid(m) = 1/K + c.

    Args:
        K, n, lambda_w, lambda_h: as in `unconstrained`.

    Returns:
        The threshold, or infinity if the minimum is always a pure frame (K = 2, whose offset is 0, or m >= 0).

    Paper: none; derived here.
    Tests: tests/theory/test_minima.py::test_bias_penalty_binds_exactly_above_its_threshold

    Example:
        >>> round(bias_penalty_threshold(10, 10, 5e-3, 5e-3), 6)
        0.005478
    """
    c = _price(K, n, lambda_w, lambda_h)
    offset = _shared_offset(K, c)
    return c / -offset if offset < 0 else math.inf
