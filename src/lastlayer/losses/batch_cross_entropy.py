"""Batch cross-entropy: one softmax over all logits of the batch."""

import torch
from torch import Tensor

from lastlayer._core.ranks import Group, max_over_ranks, sum_over_ranks
from lastlayer.losses.forms import Kind, Options, RowForm, SoftmaxForm, Sums
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import AtLabel
from lastlayer.losses.target import Target, read


def batch_cross_entropy(logits: Tensor, target: Target, *, group: Group = None) -> Tensor:
    """Kullback-Leibler divergence between the batch's labels and one softmax over all its m K logits.

        L = -log m + log sum_{i,j} exp(z_ij) - (1/m) sum_i z_{i, y_i}    >= 0

    with m samples. For m = 1 this is cross-entropy. Each true logit competes with every logit of every sample. That is
    why a loss below log(2) / m implies logit separation within the batch.

    The loss couples the samples of a batch, so it is a scalar. This has two consequences:
      - Gradient accumulation changes the loss. The mean over micro-batches is a lower bound of the loss of the whole
        batch. Accumulate features instead of gradients, or use larger batches.
      - A short last batch has fewer logits to compare. Drop it (`drop_last=True`) if every step should ask for the
        same separation.

    Args:
        logits: (N, K), (N, K, ...) or (K,); every position is a sample.
        target: class indices (N, ...), class probabilities (N, K, ...) or a mixed pair (y_a, y_b, lam). For the last
            two the last term is (1/m) sum_i sum_k t_ik z_ik, and m = 1 is still cross-entropy.
        group: a process group to couple across. Each rank gives its part of the batch, of any size. Every rank gets
            the loss of the whole batch, and after DDP's averaging its gradients too.

    Returns:
        A scalar in float32 or better. NaN for an empty batch.

    Paper: Keren et al. 2018, section 5.1.
    Tests: tests/losses/test_batch_cross_entropy.py::TestBatchCrossEntropy::test_formula_and_sign

    Example:
        >>> import torch
        >>> batch_cross_entropy(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        tensor(0.0486)
    """
    problem = read(logits, target, ignore_index=None)
    z = problem.logits
    m = torch.full((), z.numel() / z.shape[1], dtype=z.dtype, device=z.device)
    # The maximum counts as a constant: it cancels in the value and in the gradient.
    largest = max_over_ranks(z.detach(), group) if group is not None or z.numel() else z.new_zeros(())
    z = z - largest
    if problem.probabilities is not None:
        # If a row does not sum to 1, a part of the maximum remains.
        true = (problem.probabilities * z).sum() + largest * (problem.probabilities.sum() - m)
    else:
        true = m.new_zeros(())
        for labels in problem.labels:
            true = true + (labels.share * AtLabel(labels.index)(z).squeeze(1)).sum()
    partition = sum_over_ranks(z.exp().sum(), group)
    m, true = sum_over_ranks(m, group), sum_over_ranks(true, group)
    return partition.log() - m.log() - true / m


def _of_sums(sums: Sums, options: Options) -> Tensor:
    """The log-partition of the batch, made from those of its rows, minus the mean true score and log m: a scalar."""
    m = sums.largest.shape[0]
    top = sums.largest.max()
    below = sums.largest - top
    partition = (sums.log_sum + below).logsumexp(0)
    true = (sums.dot + sums.mass * below).sum()
    return partition - torch.full_like(top, m).log() - true / m + top * (1 - sums.mass.sum() / m)


@register("batch-ce")
class BatchCrossEntropyLoss(Loss):
    """`batch_cross_entropy` as a Module; `batch-ce` by name."""

    function = staticmethod(batch_cross_entropy)
    row_form = RowForm(Kind.SOFTMAX, lambda o, K: (1.0,))
    class_form = SoftmaxForm(value=_of_sums)
    couples_batch = True
    aligned = True
    probe_rate = 0.003
