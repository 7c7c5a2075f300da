"""Batch cross-entropy: one softmax over all logits of the batch."""

from __future__ import annotations

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

    with m samples. m = 1 is cross-entropy. A logit competes with every logit of every sample, which is why a loss below
    log(2) / m implies logit separation within the batch (The Principle of Logit Separation, section 5.1).

    The loss couples the samples of a batch, so it is a scalar and:
      - Gradient accumulation changes it. The mean over micro-batches is a lower bound of the loss of the whole batch,
        equal only if their partition sums are. Accumulate features rather than gradients, or use larger batches.
      - A short last batch is a batch of its own, compared with fewer logits; -log m keeps the loss of a perfect batch
        at 0 for every m. Drop it (`drop_last=True`) if every step should ask for the same separation.

    Args:
        logits: (N, K), (N, K, ...) or (K,); every position is a sample.
        target: class indices (N, ...), class probabilities (N, K, ...) or a mixed pair (y_a, y_b, lam): the last
            term is then (1/m) sum_i sum_k t_ik z_ik, and m = 1 is still cross-entropy.
        group: a process group to couple across. Each rank gives its part of the batch, of any size; the value is that
            of the whole batch on every rank, and after DDP's averaging so are the gradients.

    Returns:
        A scalar in float32 or better. NaN for an empty batch.

    Example:
        >>> import torch
        >>> batch_cross_entropy(torch.tensor([[3.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 1]))
        tensor(0.0486)
    """
    problem = read(logits, target, ignore_index=None)
    z = problem.logits
    m = torch.full((), z.numel() / z.shape[1], dtype=z.dtype, device=z.device)
    # The maximum is a constant here: it cancels in value and gradient, whatever it is subtracted from.
    largest = max_over_ranks(z.detach(), group) if group is not None or z.numel() else z.new_zeros(())
    z = z - largest
    if problem.probabilities is not None:
        # Rows that do not sum to 1 leave a part of the maximum behind.
        true = (problem.probabilities * z).sum() + largest * (problem.probabilities.sum() - m)
    else:
        true = m.new_zeros(())
        for labels in problem.labels:
            true = true + (labels.share * AtLabel(labels.index)(z).squeeze(1)).sum()
    partition = sum_over_ranks(z.exp().sum(), group)
    m, true = sum_over_ranks(m, group), sum_over_ranks(true, group)
    return partition.log() - m.log() - true / m


def _of_sums(sums: Sums, options: Options) -> Tensor:
    """The batch's log-partition from those of its rows, less the mean true score and log m: a scalar."""
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
