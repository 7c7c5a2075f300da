"""Normalised cross-entropy and binary cross-entropy against their scale."""

import math

import torch
from torch import Tensor

from lastlayer.theory._fits import Fit, fit_exponential, fit_inverse, fit_power
from lastlayer.theory._scalar import check_count
from lastlayer.theory._sphere import Collapse, check_loss, steps_to_collapse

__all__ = [
    "Collapse",
    "Fit",
    "bias_threshold",
    "decay_rate",
    "fit_exponential",
    "fit_inverse",
    "fit_power",
    "gradients",
    "optimal_bias_limit",
    "predicted_exponent",
    "predicted_power",
    "step",
    "steps_to_collapse",
]


def gradients(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    loss: str = "ce",
) -> tuple[Tensor, Tensor]:
    r"""Gradients of the mean loss of the scores scale * w_j.h_i - b_j with respect to the features and the classifier.

    With g_ij = softmax_ij - [j = y_i] for cross-entropy and sigmoid(z_ij) - [j = y_i] for binary cross-entropy:
    df/dh_i = (scale/N) sum_j g_ij w_j and df/dw_j = (scale/N) sum_i g_ij h_i.

    Args:
        features: [N, d].
        weight: classifier rows, [K, d].
        target: labels, [N].
        scale: the scale gamma.
        bias: [K], subtracted from the scores; None for zero.
        loss: "ce" or "bce".

    Returns:
        df/dh, [N, d], and df/dw, [K, d]; the constraint of unit norm is not taken into account.

    Paper: 003, Equations 208, 209, 214 and 215.

    Example:
        >>> h = torch.eye(2, dtype=torch.float64)
        >>> dh, dw = gradients(h, h, torch.tensor([0, 1]), scale=1.0)
        >>> dh[0]
        tensor([-0.1345,  0.1345], dtype=torch.float64)
    """
    check_loss(loss)
    scores = scale * features @ weight.T  # (N, K)
    if bias is not None:
        scores = scores - bias
    shares = torch.softmax(scores, dim=1) if loss == "ce" else torch.sigmoid(scores)
    shares[torch.arange(len(target), device=target.device), target.long()] -= 1.0
    factor = scale / len(target)
    return factor * shares @ weight, factor * shares.T @ features


def step(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    scale: float,
    lr: float,
    bias: Tensor | None = None,
    loss: str = "ce",
) -> Tensor:
    r"""Change of every unbiased score s_ij = scale * w_j.h_i in one gradient step, new minus old.

    -scale lr w_j.df/dh_i - scale lr df/dw_j.h_i + scale lr^2 df/dw_j.df/dh_i. As the scale goes to 0 this is
    O(scale^2), so the cosines move by O(scale) and the steps to collapse grow like 1/scale; as it grows, with the
    biases fixed, it decays exponentially at `decay_rate` once the critical condition holds.

    Args:
        features: [N, d], unit rows in the paper.
        weight: classifier rows, [K, d].
        target: labels, [N].
        scale: the scale gamma.
        lr: learning rate eta of the mean loss.
        bias: [K], subtracted from the scores; None for zero.
        loss: "ce" or "bce".

    Returns:
        [N, K]. The paper's Equation 207 gives this with the sign of old minus new on its left side; the step does not
        return to the sphere.

    Paper: 003, Theorems 5 and 6.

    Example:
        >>> h = torch.eye(2, dtype=torch.float64)
        >>> step(h, h, torch.tensor([0, 1]), scale=1.0, lr=0.1)
        tensor([[ 0.0273, -0.0273],
                [-0.0273,  0.0273]], dtype=torch.float64)
    """
    d_features, d_weight = gradients(features, weight, target, scale=scale, bias=bias, loss=loss)
    first = d_features @ weight.T + features @ d_weight.T
    return scale * lr * (lr * d_features @ d_weight.T - first)


def decay_rate(cosines: Tensor, target: Tensor, *, loss: str = "ce") -> float:
    r"""Exponential rate in the scale at which the score change vanishes with fixed biases.

    Cross-entropy: the smallest margin cos_iy - max_{j != y} cos_ij. Binary cross-entropy: the smallest |cos_ij|
    provided that all true cosines are positive and all false ones negative. |step| = O(scale^2 e^{-rate scale}).

    Args:
        cosines: w_j.h_i for unit rows, [N, K].
        target: labels, [N].
        loss: "ce" or "bce".

    Returns:
        The rate; 0 or less where the critical condition (I for ce, II for bce) fails and nothing decays.

    Paper: 003, Theorems 5(2) and 6(2).

    Example:
        >>> cosines = torch.tensor([[1.0, -0.5, -0.5]])
        >>> decay_rate(cosines, torch.tensor([0])), decay_rate(cosines, torch.tensor([0]), loss="bce")
        (1.5, 0.5)
    """
    check_loss(loss)
    true_mask = torch.zeros_like(cosines, dtype=torch.bool)
    true_mask[torch.arange(len(target), device=target.device), target.long()] = True
    true = cosines[true_mask]
    false = cosines.masked_fill(true_mask, -math.inf).amax(1)
    if loss == "ce":
        return float((true - false).min())
    return float(torch.minimum(true.min(), -false.max()))


def bias_threshold(K: int) -> float:
    r"""The scale above which BCE's optimal bias separates the scores: (1 - 1/K) log(2K - 3).

    -scale/(K-1) < b* < scale holds exactly for larger scales, so that at collapse every true score is positive and
    every false one negative.

    Args:
        K: number of classes, at least 2; K = 2 gives 0.

    Paper: 003, Lemma 16 (stated for K > 2, true for K = 2 as well).

    Example:
        >>> round(bias_threshold(10), 6)
        2.549892
    """
    check_count("K", K)
    return (1.0 - 1.0 / K) * math.log(2 * K - 3)


def optimal_bias_limit(K: int, scale: float) -> float:
    r"""What BCE's optimal bias approaches at a large scale: (scale (K-2)/(K-1) + log(K-1)) / 2.

    It grows with the scale, which the fixed-bias analysis of the paper's Lemma 21 leaves out; with it BCE's residual
    decays with half the exponent of cross-entropy.

    Args:
        K: number of classes, at least 2.
        scale: the scale gamma.

    Paper: derived from 003, Theorem 2.

    Example:
        >>> round(optimal_bias_limit(10, 64.0), 4)
        29.5431
    """
    check_count("K", K)
    return 0.5 * (scale * (K - 2) / (K - 1) + math.log(K - 1))


def predicted_exponent(loss: str, K: int, scale: float | None = None) -> float:
    r"""Exponent b with which the steps to collapse should grow like e^{b scale}: K/(K-1) for ce, K/(2(K-1)) for bce.

    Near collapse everything is driven by the loss's residual, which decays with this exponent (BCE at its optimal
    bias). The scores of cross-entropy move by scale^2 times the residual, which slows the growth at a finite scale,
    down to b - 2/scale. The slowest part of BCE is its trained bias, whose gradient has no factor of the scale: its
    local exponent is b. The paper fits 0.87 and 0.52 for K = 10 against limits of 1.111 and 0.556.

    Args:
        loss: "ce" or "bce".
        K: number of classes, at least 2.
        scale: where the lower end of the local exponent is wanted; None for the limit of large scales, its upper end.

    Paper: 003, Equation 219; the prediction is derived from Theorems 1 and 2.

    Example:
        >>> round(predicted_exponent("ce", 10), 3), round(predicted_exponent("bce", 10), 3)
        (1.111, 0.556)
    """
    check_loss(loss)
    check_count("K", K)
    limit = K / (K - 1) if loss == "ce" else K / (2.0 * (K - 1))
    return limit if scale is None or loss == "bce" else limit - 2.0 / scale


def predicted_power(K: int) -> int:
    r"""Power p with which the steps of the sphere model should grow like scale^-p as the scale goes to 0: 1 for K <=
    3, else 2.

    To first order in the scale the loss is log K minus scale times a linear function of the cosines, and every
    collapsed configuration with sum_k w_k = 0 minimises that. Two or three unit vectors that sum to zero are a
    simplex frame; four or more need not be, and only the term of second order, scale^2, drives them to equal angles.
    The paper's argument (one step moves the cosines by O(scale), hence a/scale steps) sees the first phase only.

    Args:
        K: number of classes, at least 2.

    Paper: derived; compare 003, Theorems 5(1) and 6(1) and Equation 218.

    Example:
        >>> predicted_power(3), predicted_power(10)
        (1, 2)
    """
    check_count("K", K)
    return 1 if K <= 3 else 2
