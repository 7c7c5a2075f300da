"""The balanced unconstrained feature model in closed form: contrastive losses, squared error, binary cross-entropy."""

import math
from dataclasses import dataclass

from torch import nn

from lastlayer.theory import contrastive
from lastlayer.theory._binary import binary_cross_entropy_minimum, shared_offset
from lastlayer.theory._losses import Description, describe
from lastlayer.theory._scalar import check_count, check_nonnegative, check_positive


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
        ValueError: where no closed form is known: another loss, mse with kappa != 1, beta < 0 or a penalised bias, bce
            with label smoothing or class weights.

    Paper: 001, Theorem 1, with W W' for W'W and c = sqrt(n lambda_w lambda_h) throughout; mse and bce are derived.

    Example:
        >>> found = unconstrained("ce", 10, 10, 5e-3, 5e-3)
        >>> round(found.loss, 6), round(found.rho, 6)
        (0.721792, -3.993521)
    """
    check_count("K", K)
    check_count("n", n, least=1)
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
    if beta < 0:
        raise ValueError(f"mse has a closed form here only for beta >= 0, got {beta}")
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
    check_count("K", K)
    check_count("n", n, least=1)
    check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
    c = math.sqrt(n * lambda_w * lambda_h)
    offset = shared_offset(K, c)
    return c / -offset if offset < 0 else math.inf
