"""Losses that replace the true logit by a function of its angle, by kernels, for labels: from four numbers per label.

A large-margin loss is an example. It takes features and weight, and cross-entropy sees ||w|| ||h|| psi(theta).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32, wide
from lastlayer.linear_loss import kernels
from lastlayer.linear_loss.batch import Batch
from lastlayer.linear_loss.layer import Gradients, Layer, Once, RowGradients, fused
from lastlayer.linear_loss.picked import ClassSums
from lastlayer.linear_loss.products import chunks, pieces, put_product
from lastlayer.losses import Loss, Target
from lastlayer.losses.forms import OthersForm
from lastlayer.losses.selection import softplus


def takes_angles(target: Target, loss: Loss, features: Tensor, K: int) -> bool:
    """Whether the kernels take the loss and this target, labels or a mixed pair, and give every gradient it needs."""
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


class Numbers:
    """Four numbers of each label (l, N), (4, l, N) in float32.

    They are the largest false logit, log sum_k exp(z_k - largest) over the false classes, the true logit, and the
    product of the norms of feature and class. In the loss the largest cancels.

    The logits are float32, as in the loss's own function, because a GPU makes them from half precision at full speed.
    If one chunk has all samples, its logits are kept, and the gradient replaces them. Else they are computed again.

    What replaces the logits is the gradient of cross-entropy, rounded as usual. The margin adds a gradient that is many
    times larger. If feature and class are aligned, its parts nearly cancel, so they are summed in float32.
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
        largest = largest.clamp(min=torch.finfo(largest.dtype).min)  # if there is only one class, it is -inf
        lengths = torch.linalg.vector_norm(at_least_float32(layer.features), dim=1)
        rows = at_least_float32(layer.weight[self.labels.flatten()])
        class_lengths = torch.linalg.vector_norm(rows, dim=1).view_as(largest)
        numbers = torch.stack([largest, total.log(), true, lengths * class_lengths])
        return numbers, (Once(held), largest, total, true, lengths, class_lengths)

    def backward(self, layer: Layer, kept: Any, upstream: Tensor) -> Gradients:
        from lastlayer.linear_loss.kernels import labels as label_kernels  # they need Triton

        once, largest, total, true, lengths, class_lengths = kept
        _, d_others, d_true, d_norms = upstream
        slope = d_others / torch.where(total == 0, 1.0, total)
        base = largest.amin(0)  # only labels can have a larger logit
        common = (slope * (base - largest).exp()).sum(0)
        same = self.labels.unsqueeze(1) == self.labels  # (l, l, N): whether two labels are the same class
        among_others = slope * (true.unsqueeze(1) - largest).exp()
        at = torch.where(same, -d_others, among_others).sum(1)

        def put(z: Tensor, some: slice) -> Tensor:
            labels = self.labels[:, some]
            label_kernels.put_slopes(z, labels[0], base[some], common[some], at[0, some])
            z = z.scatter_(1, labels[1:].T, at[1:, some].T)
            w = layer.weight
            return z if z.dtype is w.dtype else layer.room(len(z)).copy_(z)

        z: Tensor | None = once.take()
        if z is not None:
            found = Gradients.of_logits(layer, put(z, slice(None)))
        else:
            gradients = RowGradients(layer)
            for some, z in self._logits(layer):
                gradients.add(layer, some.start, some.stop, put(z, some))
            found = gradients.finish(1.0)

        # The margin's part: the gradient of the true logits and of the norms.
        d_true = d_true + d_others
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
        return Gradients(features, None if sums is None else sums.add_to(found.weight))

    def _logits(self, layer: Layer) -> Iterator[tuple[slice, Tensor]]:
        """Some samples and their logits. All use the same memory, one after the other."""
        N, K = len(layer.features), len(layer.weight)
        buffer = layer.room(min(self.size, N), wide(layer.weight.dtype))
        for low, high in chunks(N, self.size):
            z, features = buffer[: high - low], layer.features[low:high]
            for some in pieces(high - low, features.shape[1], K):
                put_product(z[:, some], features.T, layer.weight[some].T)
            yield slice(low, high), z
