"""Minimum of binary cross-entropy in the balanced unconstrained feature model: bias free, penalised or absent."""

import math
from dataclasses import dataclass

from lastlayer.theory._scalar import bisect, logit, sigmoid, softplus


@dataclass(frozen=True)
class BinaryFrame:
    """W H_i = gap (I - J) + common J and the bias of every class."""

    loss: float
    gap: float
    common: float
    bias: float


def shared_offset(K: int, c: float) -> float:
    """Mean logit at which the features and a bias with lambda_b |b| = c are equally cheap ways to shift all logits."""
    if c < 1.0 / K:
        return _mean_logit(K, c, 2.0 * c)
    return logit(1.0 / K + c)


def _mean_logit(K: int, c: float, false_share: float) -> float:
    """(z_true + (K-1) z_false)/K where sigmoid(z_false) is given and sigmoid(-z_true) = cK - sigmoid(z_false)."""
    return (-logit(c * K - false_share) + (K - 1) * logit(false_share)) / K


def binary_cross_entropy_minimum(K: int, c: float, lambda_b: float) -> BinaryFrame:
    """Minimise softplus(-z_true) + (K-1) softplus(z_false) + c [(K-1) gap + |common|] + K lambda_b bias^2/2.

    An infinite lambda_b means that there is no bias.
    """
    if c < 1.0 / K:
        # f = sigmoid(z_false) decides everything: it is c with a free bias and grows with lambda_b up to 2c
        shared = shared_offset(K, c)
        if shared < 0 and (lambda_b == math.inf or lambda_b * -shared > c):
            f = 2.0 * c
        elif lambda_b == math.inf:
            # zero offset is optimal: a + f = cK along z_true = (K-1)/K gap, z_false = -gap/K
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
        shared = shared_offset(K, c)
        if lambda_b == 0:
            offset = -math.log(K - 1)
        elif shared < 0 and (lambda_b == math.inf or lambda_b * -shared > c):
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
    return BinaryFrame(softplus(-z_true) + (K - 1) * softplus(z_false) + penalty, gap, common, bias)
