"""The gradient of soft logit normalisation as a positive combination of the LN and CE pieces (its Theorem 1).

Tests: tests/theory/test_gradients.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.theory.numbers import check_positive


@dataclass(frozen=True)
class Decomposition:
    """dSLN/df = sum_{i != y} [c1_i gamma LN_i + c2_i (1 - gamma) CE_i], one row per sample."""

    c1: Tensor  # coefficients of the LN pieces, [N, K], zero in the label's column, positive elsewhere
    c2: Tensor  # coefficients of the CE pieces, [N, K], likewise
    ln: Tensor  # the pieces LN_i, [N, K, K]: entry [n, i] is a covector over the logits
    ce: Tensor  # the pieces CE_i, [N, K, K]
    gamma: float  # the exponent of the normalisation
    # the combination, [N, K]: the gradient of each sample's SLN loss with respect to its logits. In this sum the
    # probabilities of LN and CE are cancelled, so it is right even where they underflow.
    gradient: Tensor

    @property
    def combination(self) -> Tensor:
        """sum_i [c1_i gamma LN_i + c2_i (1 - gamma) CE_i], [N, K], from the pieces as they are stored."""
        ln_part = (self.c1.unsqueeze(-1) * self.ln).sum(1)
        ce_part = (self.c2.unsqueeze(-1) * self.ce).sum(1)
        return self.gamma * ln_part + (1.0 - self.gamma) * ce_part

    def on_features(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The pieces LN_i and CE_i in the features of a linear head with the rows `weight` [K, d], [N, K, d] each."""
        return self.ln @ weight, self.ce @ weight


def decompose(logits: Tensor, target: Tensor, gamma: float, tau: float) -> Decomposition:
    r"""Split the gradient of CE(f / (tau ||f||^gamma), y) into logit-normalised and cross-entropy pieces.

    With p, p^LN, p^CE the softmaxes of f/(tau ||f||^gamma), f/(tau ||f||) and f, and s_i = (f_y - f_i)/(tau ||f||):
    LN_i = -p_i^LN ds_i/df, CE_i = -p_i^CE (e_y - e_i), c1_i = p_i / (p_i^LN ||f||^(gamma - 1)) and
    c2_i = p_i / (tau p_i^CE ||f||^gamma). The LN_i sum to the gradient of LN, and the CE_i to that of cross-entropy.
    With two classes there is the single term i != y. For a linear head f = W x + b, the pieces in feature space are
    LN_i W and CE_i W (`on_features`). Every LN_i W is orthogonal to x - x* if f(x*) = 0.

    Args:
        logits: [N, K], K >= 2.
        target: labels, [N].
        gamma: exponent of the norm, in [0, 1]; 0 leaves CE(f/tau), 1 leaves LN.
        tau: temperature, above 0.

    Degenerate cases: for a row of zeros, coefficients, LN pieces and gradient are 0, as in `soft_logit_norm`.

    Paper: 000, Propositions 1 and 2 and Theorem 1 (same tau in LN and SLN, none in CE).
    Tests: tests/theory/test_gradients.py::test_decomposition_of_ten_thousand_gradients

    Example:
        >>> logits = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
        >>> parts = decompose(logits, torch.tensor([0]), gamma=0.7, tau=0.2)
        >>> bool((parts.c1[0, 1:] > 0).all() and (parts.c2[0, 1:] > 0).all()), parts.c1[0, 0].item()
        (True, 0.0)
    """
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise ValueError(f"logits must have shape [N, K] with K >= 2, got {tuple(logits.shape)}")
    if target.shape != logits.shape[:1]:
        raise ValueError(f"target must be labels of shape [{logits.shape[0]}], got {tuple(target.shape)}")
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    check_positive(tau=tau)

    K = logits.shape[1]
    true = logits.gather(1, target.long().unsqueeze(1))  # (N, 1)
    eye = torch.eye(K, dtype=logits.dtype, device=logits.device)
    label = eye[target.long()]  # (N, K)
    # We divide by the largest first, because squares of large or small logits leave the range of their dtype.
    largest = logits.abs().amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).tiny)
    norm = largest * (logits / largest).norm(dim=1, keepdim=True)  # (N, 1)
    zero = norm == 0
    safe = torch.where(zero, torch.ones_like(norm), norm)
    log_norm = safe.log()

    log_p = torch.log_softmax(logits / (tau * safe**gamma), dim=1)
    log_p_ln = torch.log_softmax(logits / (tau * safe), dim=1)
    log_p_ce = torch.log_softmax(logits, dim=1)
    # We subtract logarithms, because quotients of underflowed probabilities would be 0/0.
    c1 = torch.exp(log_p - log_p_ln - (gamma - 1.0) * log_norm)
    c2 = torch.exp(log_p - log_p_ce - gamma * log_norm) / tau
    others = 1.0 - label
    keep = others * (~zero).to(logits.dtype)

    toward = label.unsqueeze(1) - eye  # (N, K, K): e_y - e_i
    along = ((true - logits) / safe).unsqueeze(-1) * (logits / safe).unsqueeze(1)  # (N, K, K): (f_y - f_i) f_l/||f||^2
    slopes = (toward - along) / (tau * safe).unsqueeze(-1)  # ds_i/df_l
    ln = -(log_p_ln.exp() * keep).unsqueeze(-1) * slopes
    ce = -(log_p_ce.exp() * others).unsqueeze(-1) * toward
    p = (log_p.exp() * keep).unsqueeze(-1)
    ln_term = gamma * (safe ** (1.0 - gamma)).unsqueeze(-1) * slopes
    ce_term = (1.0 - gamma) / (tau * safe**gamma).unsqueeze(-1) * toward
    gradient = -(p * (ln_term + ce_term)).sum(1)
    # An infinite coefficient times an underflowed piece would be NaN.
    finite = torch.finfo(logits.dtype).max
    return Decomposition(c1.clamp(max=finite) * keep, c2.clamp(max=finite) * keep, ln, ce, gamma, gradient)


def zero_logits_point(weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""The feature x* of least norm with W x* + b = 0, around which the LN gradient turns.

    <dLN/dx, x - x*> = 0 for every x with non-zero logits, so a step eta of gradient descent increases the squared
    distance to x* only by eta^2 ||dLN/dx||^2.

    Args:
        weight: classifier rows, [K, d].
        bias: [K], added to the logits; None for zero.

    Returns:
        x*, [d].

    Raises:
        ValueError: if no feature has zero logits, such as for w_2 = 2 w_1 with b = (0, 1). Independent rows have one.

    Paper: 000, Proposition 2.
    Tests: tests/theory/test_gradients.py::test_every_ln_piece_is_orthogonal_to_the_way_from_zero_logits

    Example:
        >>> zero_logits_point(torch.eye(2), torch.tensor([1.0, -1.0]))
        tensor([-1.,  1.])
    """
    if bias is None:
        return torch.zeros(weight.shape[1], dtype=weight.dtype, device=weight.device)
    point: Tensor = -torch.linalg.pinv(weight) @ bias
    left = (weight @ point + bias).abs().max()
    if left > 1e3 * torch.finfo(weight.dtype).eps * (1.0 + bias.abs().max()):
        raise ValueError(
            f"no feature has zero logits: the nearest leaves {left:.2e}; the rows of weight are linearly dependent "
            "and bias is not in their span"
        )
    return point
