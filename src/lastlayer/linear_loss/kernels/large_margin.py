"""Losses that replace the true logit by a function of its angle, of labels, by kernels: from four numbers per label.

A large-margin loss is such a one: it takes features and weight, and cross-entropy sees ||w|| ||h|| psi(theta).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, narrow, wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.batch import Batch, chunks
from lastlayer.linear_loss.layer import Gradients, Layer, Once, RowGradients, fused
from lastlayer.linear_loss.picked import ClassSums
from lastlayer.linear_loss.products import pieces, put_product
from lastlayer.losses import Loss, Target
from lastlayer.losses.forms import OthersForm
from lastlayer.losses.selection import softplus


def takes_angles(target: Target, loss: Loss, features: Tensor, K: int) -> bool:
    """Whether the kernels take the loss and such labels, one or a mixed pair per sample, and give every gradient."""
    if (
        not loss.takes_layer
        or not isinstance(loss.class_form, OthersForm)
        or len(features) == 0
        or kernels.row_kernels(features, K) is None
    ):
        return False
    if not isinstance(target, tuple) and (not isinstance(target, Tensor) or target.is_floating_point()):
        return False
    given = (*(target if isinstance(target, tuple) else (target,)), loss.hyperparameters().get("class_weight"))
    return not (torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in given))


def angles(loss: Loss, batch: Batch, rows: int, features: Tensor, weight: Tensor) -> Tensor:
    """The loss of labels, a chunk of samples at a time."""
    form = loss.class_form
    assert isinstance(form, OthersForm)
    assert form.replaced is not None
    index = torch.stack([labels.index.squeeze(1) for labels in batch.labels])
    largest, log_total, true, norms = fused(Numbers(index, rows), features, weight, None, index).unbind()
    parts = softplus(log_total - (form.replaced(true, norms, loss.hyperparameters()) - largest))
    counted = [batch.counted_part(labels, part) for labels, part in zip(batch.labels, parts.unbind(), strict=True)]
    return batch.reduce_counted(torch.stack(counted).sum(0))


def row_norms(rows: Tensor) -> Tensor:
    """Norms of the rows of (N, d), in float32 or better."""
    norms: Tensor = torch.linalg.vector_norm(at_least_float32(rows), dim=1)
    return norms


class Numbers:
    """Four numbers of each label (l, N), (4, l, N) in float32.

    They are the largest false logit, log sum_k exp(z_k - largest) over the false ones, the true logit, and the product
    of the norms of feature and class. What a loss sees of the largest cancels.

    The logits are float32, as in the loss's own function: a GPU multiplies half precision into it at full speed. If one
    chunk has all samples, its logits are held, and the gradient is put in their place. Else they are computed again.

    That gradient is cross-entropy's, rounded like any other's. What the margin adds to it is many times larger. Where
    feature and class are aligned, its parts nearly cancel, so they are summed in float32.
    """

    def __init__(self, labels: Tensor, rows: int) -> None:
        self.labels, self.size = labels, rows

    def forward(self, layer: Layer) -> tuple[Tensor, Any]:
        held = None
        parts = []
        for some, z in self._logits(layer):
            labels = self.labels[:, some]
            sums = [torch.stack(kernels.row_kernels(z).sums(z, label)) for label in labels]
            parts.append(torch.cat([torch.stack(sums, 1), z.gather(1, labels.T).T.unsqueeze(0)]))
            if len(z) == len(layer.features) and layer.wants_any:
                held = z
        largest, total, true = torch.cat(parts, 2)
        largest = largest.clamp(min=torch.finfo(largest.dtype).min)  # of one class there are no others: -inf
        lengths = row_norms(layer.features)
        class_lengths = row_norms(layer.weight[self.labels.flatten()]).view_as(largest)
        numbers = torch.stack([largest, total.log(), true, lengths * class_lengths])
        return numbers, (Once(held), largest, total, true, lengths, class_lengths)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        once, largest, total, true, lengths, class_lengths = kept
        _, d_others, d_true, d_norms = upstream
        slope = d_others / torch.where(total == 0, 1.0, total)
        base = largest.amin(0)  # no class but the labels has a larger logit
        common = (slope * (base - largest).exp()).sum(0)
        same = self.labels.unsqueeze(1) == self.labels  # (l, l, N): whether the first's class is the second's label too
        among_others = slope * (true.unsqueeze(1) - largest).exp()
        at = torch.where(same, -d_others, among_others).sum(1)

        def put(z: Tensor, some: slice) -> Tensor:
            labels = self.labels[:, some]
            kernels.label_kernels().put_slopes(z, labels[0], base[some], common[some], at[0, some])
            z = z.scatter_(1, labels[1:].T, at[1:, some].T)
            w = layer.weight
            return z if z.dtype is w.dtype else narrow(z, w.dtype, out=layer.room(len(z)))

        z: Tensor | None = once.take()
        if z is not None:
            found = Gradients.of_logits(layer, put(z, slice(None)))
        else:
            gradients = RowGradients(layer)
            for some, z in self._logits(layer):
                gradients.add(layer, some.start, some.stop, put(z, some))
            found = gradients.finish(1.0)
        self._add_margin(found, layer, d_true + d_others, d_norms, lengths, class_lengths)
        return found

    def _add_margin(
        self, found: Gradients, layer: Layer, d_true: Tensor, d_norms: Tensor, lengths: Tensor, class_lengths: Tensor
    ) -> None:
        """Add the gradient of the true logits and of the norms."""
        features = None if found.features is None else found.features.to(lengths.dtype)
        sums = ClassSums(layer.weight, self.labels.flatten()) if found.weight is not None else None
        for i, label in enumerate(self.labels):
            rows = layer.weight[label]
            along = d_norms[i] * class_lengths[i] / torch.where(lengths == 0, 1.0, lengths)
            if features is not None:
                features += d_true[i].unsqueeze(1) * rows + along.unsqueeze(1) * layer.features
            along = d_norms[i] * lengths / torch.where(class_lengths[i] == 0, 1.0, class_lengths[i])
            if sums is not None:
                sums.add(i * len(label), d_true[i].unsqueeze(1) * layer.features + along.unsqueeze(1) * rows)
        found.features = features
        found.weight = None if sums is None else sums.add_to(found.weight)

    def _logits(self, layer: Layer) -> Iterator[tuple[slice, Tensor]]:
        """Some samples and their logits, in memory that the next ones will take."""
        N, K = len(layer.features), len(layer.weight)
        buffer = layer.room(min(self.size, N), wide(layer.weight.dtype))
        for low, high in chunks(N, self.size):
            z, features = buffer[: high - low], layer.features[low:high]
            for some in pieces(high - low, features.shape[1], K):
                put_product(z[:, some], features.T, layer.weight[some].T)
            yield slice(low, high), z
