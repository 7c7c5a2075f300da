"""Batch max-margin: the smallest true logit of the batch must exceed its largest false logit by a margin."""

import torch
from torch import Tensor

from lastlayer._core.ranks import Group, max_over_ranks, sum_over_ranks
from lastlayer.losses.forms import Kind, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import AtLabel
from lastlayer.losses.target import Target, check_range, read


def batch_max_margin(
    logits: Tensor, target: Target, *, margin: float = 1.0, sample_term: bool = True, group: Group = None
) -> Tensor:
    """A hinge between the extreme logits of the batch, plus the usual hinge of each sample.

        L = (1/m) max(0, margin - z_+ + z_-) + (1/m) sum_i max(0, margin - z_{i, y_i} + max_{j != y_i} z_ij)

    with z_+ the smallest true and z_- the largest false logit of the m samples. A loss below margin / m implies logit
    separation within the batch.

    The loss couples the samples of a batch, so it is a scalar. As for `batch_cross_entropy`, gradient accumulation
    changes it, and a short last batch asks for less separation: it has weaker extremes and a larger 1/m.

    Args:
        logits: (N, K), (N, K, ...) or (K,); every position is a sample.
        target: class indices (N, ...), or a mixed pair (y_a, y_b, lam) with one number lam, which gives
            lam L(y_a) + (1 - lam) L(y_b). Class probabilities are refused, since then no logit is the true one.
        margin: how far the true logits should lead, > 0.
        sample_term: whether to add the second term. Without it only two logits per batch have a gradient.
        group: a process group to couple across, as in `batch_cross_entropy`.

    Returns:
        A scalar in float32 or better. NaN for an empty batch. 0 with one class, which has no false logit. A hinge has
        no gradient if the lead is exactly the margin.

    Paper: Keren et al. 2018, section 5.2.
    Tests: tests/losses/test_batch_max_margin.py::TestBatchMaxMargin::test_formula

    Example:
        >>> import torch
        >>> batch_max_margin(torch.tensor([[3.0, 0.0], [0.0, 0.5]]), torch.tensor([0, 1]))
        tensor(0.5000)
    """
    check_range("margin", margin, 0.0, open_low=True)
    problem = read(logits, target, ignore_index=None)
    if problem.probabilities is not None:
        raise ValueError(
            "batch_max_margin needs class indices: with class probabilities no logit is the true one. For mixup give "
            "the mixed pair (y_a, y_b, lam)"
        )
    z = problem.logits
    total = z.new_zeros(())
    for labels in problem.labels:
        if isinstance(labels.share, Tensor) and labels.share.dim():
            raise ValueError("batch_max_margin couples the samples, so lam of a mixed pair must be one number")
        total = total + labels.share * _coupled(z, labels.index, margin, sample_term, group)
    return total


def _coupled(z: Tensor, index: Tensor, margin: float, sample_term: bool, group: Group) -> Tensor:
    at = AtLabel(index)
    true, best_false = at(z), at.max_others(z)  # (N, 1, ...)
    m = torch.full((), true.numel(), dtype=z.dtype, device=z.device)
    # Subtract the logits first: margin minus a logit of 1e8 would round the margin away.
    hinges = (margin - (true - best_false)).relu().sum()
    if z.shape[1] == 1 or (group is None and true.numel() == 0):  # no extremes to compare
        return sum_over_ranks(hinges, group) / sum_over_ranks(m, group)
    total = (margin + (max_over_ranks(-true, group) + max_over_ranks(best_false, group))).relu()
    if sample_term:
        total = total + sum_over_ranks(hinges, group)
    return total / sum_over_ranks(m, group)


@register("batch-max-margin")
class BatchMaxMarginLoss(Loss):
    """`batch_max_margin` as a Module; `batch-max-margin` by name."""

    function = staticmethod(batch_max_margin)
    row_form = RowForm(Kind.HINGE, lambda o, K: (1.0, o["margin"]))
    couples_batch = True
    aligned = True
    probe_rate = 0.003
