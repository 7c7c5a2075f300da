"""Multiclass hinge loss: the true logit must exceed the largest false logit by a margin."""

from torch import Tensor

from lastlayer.losses.forms import Kind, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
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
    """Multiclass hinge loss.

        L_k = max(0, margin - z_k + max_{j != k} z_j)

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        margin: how far the true logit should lead, > 0.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Degenerate cases: if several false logits are largest, they share the gradient equally. If the lead is exactly the
    margin, there is no gradient. With one class the loss is 0.

    Paper: Crammer and Singer 2001; as in Keren et al. 2018, equation 2.
    Tests: tests/losses/test_values.py::test_index_targets

    Example:
        >>> import torch
        >>> max_margin(torch.tensor([[0.5, 0.0, -1.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    check_range("margin", margin, 0.0, open_low=True)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    z = problem.logits
    # Subtract the logits first: margin minus a logit of 1e8 would round the margin away.
    return evaluate(problem, lambda at: (margin - (at(z) - at.max_others(z))).relu())


@register("max-margin")
class MaxMarginLoss(Loss):
    """`max_margin` as a Module; `max-margin` by name."""

    function = staticmethod(max_margin)
    row_form = RowForm(Kind.HINGE, lambda o, K: (1.0, o["margin"]))
