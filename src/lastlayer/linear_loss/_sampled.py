"""`nce` with drawn labels: it sees the logits of the label and of what was drawn, and no others are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._function import fused
from lastlayer.linear_loss._picked import Picked, Shared
from lastlayer.linear_loss._products import wide
from lastlayer.linear_loss._target import Batch
from lastlayer.losses import Loss, NceLoss
from lastlayer.losses.nce import expected_noise, read_samples
from lastlayer.losses.selection import softplus
from lastlayer.losses.target import read


def is_sampled(loss: Loss) -> bool:
    """Whether the loss asks for the label's and some drawn logits alone, where the target is labels."""
    return isinstance(loss, NceLoss) and loss.samples is not None


def nce(loss: Loss, batch: Batch, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """L_y = softplus(-s_y) + sum_j softplus(s_j) over the drawn j, with s = z - log(t q), (N,)."""
    options = loss.hyperparameters()
    N, K, dtype = features.shape[0], weight.shape[0], wide(features.dtype)
    logits = torch.zeros((), dtype=dtype, device=features.device).expand(N, K)  # takes up no memory
    stand_in = torch.zeros(N, dtype=torch.long, device=features.device)
    drawn = read_samples(options["samples"], read(logits, stand_in))  # (N, t)
    expected = expected_noise(drawn.shape[1], options["noise"], logits)  # (K,)
    shift = torch.where(expected > 0, expected, 1.0).log()
    pick = Shared(options["samples"].long()) if options["samples"].dim() == 1 else Picked(drawn)
    terms = softplus(fused(pick, features, weight, bias) - shift[drawn])
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        score = fused(Picked(labels.index), features, weight, bias).squeeze(1) - shift[index]
        part = torch.where(expected[index] > 0, softplus(-score), 0.0)
        others = terms if options["include_target"] else torch.where(drawn == labels.index, 0.0, terms)
        value = value + batch.counted_part(labels, part + others.sum(1))
    return torch.as_tensor(value)
