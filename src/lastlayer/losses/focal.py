"""Focal loss over the softmax: cross-entropy with little weight on samples that are already right."""

import torch
from torch import Tensor

from lastlayer.losses.forms import Kind, OthersForm, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import Selection, evaluate
from lastlayer.losses.target import Target, check_range, read


def focal(
    logits: Tensor,
    target: Target,
    *,
    gamma: float = 3.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss in its softmax form.

        L_k = -(1 - p_k)^gamma log p_k,    p = softmax(z)

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        gamma: focusing exponent >= 0; 0 is cross-entropy.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Degenerate cases: if 1 - p_k underflows to 0, the loss and its gradient are 0 for every gamma.

    Paper: Lin et al. 2017; in the softmax form of Zhou et al. 2022, section 2.1.
    Tests: tests/losses/test_values.py::test_index_targets

    Example:
        >>> import torch
        >>> focal(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.0023)
    """
    check_range("gamma", gamma, 0.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)

    def loss(at: Selection) -> Tensor:
        surprise = at.cross_entropy(problem.logits, at(problem.logits))  # -log p
        missing = -torch.expm1(-surprise)  # 1 - p, without cancellation
        # For gamma < 1 the derivative contains 0 ** (gamma - 1), which is infinite.
        focus = torch.where(missing > 0, missing, 1.0) ** gamma
        return torch.where(missing == 0, 0.0, focus * surprise)

    return evaluate(problem, loss)


@register("focal")
class FocalLoss(Loss):
    """`focal` as a Module; `focal` by name."""

    function = staticmethod(focal)
    row_form = RowForm(Kind.FOCUS, lambda o, K: (1.0, o["gamma"]))
    class_form = OthersForm(learnable=("gamma",))
