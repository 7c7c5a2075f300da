"""Multiclass hinge loss: the true logit must lead the best false one by a margin."""

from __future__ import annotations

from torch import Tensor

from lastlayer.losses.forms import Kind, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import Selection, evaluate
from lastlayer.losses.target import Target, check_range, read


def max_margin(
    logits: Tensor,
    target: Target,
    *,
    margin: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Multiclass hinge loss (Crammer & Singer, 2001), as in "The Principle of Logit Separation" (Keren et al., 2018).

        L_k = max(0, margin - z_k + max_{j != k} z_j)

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        target: class indices (N, ...), class probabilities (N, K, ...), or a mixed pair (y_a, y_b, lam).
        margin: the lead asked for, > 0.
        weight, ignore_index, reduction: as in `cross_entropy`.

    Returns:
        The loss in float32 or better: a scalar, or one value a sample for "none".

    Degenerate cases: false logits that tie for the largest share its gradient equally; where the lead is the margin
    exactly there is none; with one class the loss is 0.

    Example:
        >>> import torch
        >>> max_margin(torch.tensor([[0.5, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    check_range("margin", margin, 0.0, open_low=True)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)

    def loss(at: Selection) -> Tensor:
        # The difference first: a margin less a large logit would be rounded, at 1e8 away.
        return (margin - (at(problem.logits) - at.max_others(problem.logits))).relu()

    return evaluate(problem, loss)


@register("max-margin")
class MaxMarginLoss(Loss):
    """`max_margin` as a Module; `max-margin` by name."""

    function = staticmethod(max_margin)
    row_form = RowForm(Kind.HINGE, lambda o, K: (1.0, o["margin"]))
