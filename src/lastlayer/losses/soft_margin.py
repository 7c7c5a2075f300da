"""Additive margin on the true logit: M-Softmax. On a normalized head this is CosFace."""

from torch import Tensor

from lastlayer.losses.forms import Kind, OthersForm, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Target, check_range, read


def soft_margin(
    logits: Tensor,
    target: Target,
    *,
    margin: float = 0.5,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Soft margin (M-Softmax): cross-entropy after a margin is subtracted from the true logit.

        L_k = log(1 + sum_{j != k} exp(z_j - z_k + margin))

    On the logits of a `NormalizedHead(scale=s, bias=False)`, use margin = s m to get CosFace with margin m.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        margin: >= 0; 0 is cross-entropy.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Paper: Wang et al. 2018, the soft-margin part.
    Tests: tests/losses/test_soft_margin.py::test_soft_margin_on_a_normalized_head_is_cosface

    Example:
        >>> import torch
        >>> soft_margin(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.3690)
    """
    check_range("margin", margin, 0.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    return evaluate(problem, lambda at: at.cross_entropy(problem.logits, at(problem.logits) - margin))


@register("soft-margin")
class SoftMarginLoss(Loss):
    """`soft_margin` as a Module; `soft-margin` by name."""

    function = staticmethod(soft_margin)
    row_form = RowForm(Kind.SOFTMAX, lambda o, K: (1.0, o["margin"]))
    class_form = OthersForm(learnable=("margin",))
