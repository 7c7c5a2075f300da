"""Squared error of the logits against a scaled one-hot target."""

from torch import Tensor

from lastlayer.losses.forms import Kind, RowForm, SquaresForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Target, check_range, read


def mse(
    logits: Tensor,
    target: Target,
    *,
    kappa: float = 1.0,
    beta: float = 15.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Rescaled squared error.

        L_k = kappa (z_k - beta)^2 + sum_{j != k} z_j^2

    The squares are summed over the classes, whereas `torch.nn.functional.mse_loss` also divides by K.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        kappa: weight of the true class's square, > 0.
        beta: the value that the true logit should have.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Paper: Hui and Belkin 2021; as in Zhou et al. 2022, section 2.1.
    Tests: tests/losses/test_values.py::test_index_targets

    Example:
        >>> import torch
        >>> mse(torch.tensor([[14.0, 1.0, 2.0]]), torch.tensor([0]))
        tensor(6.)
    """
    check_range("kappa", kappa, 0.0, open_low=True)
    check_range("beta", beta, float("-inf"))
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    squares = problem.logits * problem.logits
    return evaluate(problem, lambda at: kappa * (at(problem.logits) - beta).square() + at.sum_others(squares))


@register("mse")
class MseLoss(Loss):
    """`mse` as a Module; `mse` by name."""

    function = staticmethod(mse)
    complexity = 1
    row_form = RowForm(Kind.SQUARES, lambda o, K: (1.0, o["kappa"], o["beta"]))
    class_form = SquaresForm()
    aligned = True
    learning_rate = 0.003
