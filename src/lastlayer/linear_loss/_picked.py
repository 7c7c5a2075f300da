"""Single logits of a layer: of a few classes a sample, or of a few classes for all samples."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._products import input_gradient, logits_of, narrow, wide


class Picked:
    """The logits of the classes (N, m) given for each sample, (N, m), in float32 or better: m N d products."""

    def __init__(self, classes: Tensor) -> None:
        self.classes = classes

    def forward(self, layer: Layer) -> tuple[Tensor, None]:
        h = layer.features.to(wide(layer.weight.dtype))
        z = torch.empty(self.classes.shape, dtype=h.dtype, device=h.device)
        for column, classes in enumerate(self.classes.unbind(1)):
            z[:, column] = (h * layer.weight[classes]).sum(1)
        return z if layer.bias is None else z + layer.bias[self.classes], None

    def backward(self, layer: Layer, kept: None, upstream: Tensor) -> Gradients:
        return self.add_to(Gradients(), layer, upstream)

    def add_to(self, gradients: Gradients, layer: Layer, upstream: Tensor) -> Gradients:
        """Add to gradients, None being zeros; the features' are then in float32 or better."""
        sums = ClassSums(layer.weight, self.classes.T.flatten()) if layer.wants_weight else None
        for column, (classes, dz) in enumerate(zip(self.classes.unbind(1), upstream.unbind(1), strict=True)):
            if layer.wants_features:
                part = dz.unsqueeze(1) * layer.weight[classes]
                gradients.features = part if gradients.features is None else gradients.features.add_(part)
            if sums is not None:
                sums.add(column * len(dz), dz.unsqueeze(1) * layer.features)
        if sums is not None:
            gradients.weight = sums.add_to(gradients.weight)
        if layer.bias is not None and layer.wants_bias:
            bias = torch.zeros_like(layer.bias, dtype=upstream.dtype)
            bias.index_add_(0, self.classes.flatten(), upstream.flatten())
            gradients.bias = bias if gradients.bias is None else gradients.bias + bias
        return gradients


class ClassSums:
    """Sums of rows by class, (K, d), that touch the classes (m,) alone: in float32, rounded once.

    The sums have a row for each class that occurs, not for all K.
    """

    def __init__(self, weight: Tensor, classes: Tensor) -> None:
        self.weight = weight
        order = classes.sort()
        starts = torch.ones_like(order.values)
        starts[1:] = order.values[1:] != order.values[:-1]
        place = starts.cumsum(0) - 1  # of each entry's class among those that occur
        count = min(order.values.numel(), weight.shape[0])
        self.places = torch.empty_like(place).scatter_(0, order.indices, place)
        self.classes = order.values.new_zeros(count).scatter_(0, place, order.values)  # past the last, class 0
        self.sums = torch.zeros(count, weight.shape[1], dtype=wide(weight.dtype), device=weight.device)

    def add(self, first: int, rows: Tensor) -> None:
        """Add rows (n, d) to the classes first..first+n-1 of those given."""
        self.sums.index_add_(0, self.places[first : first + len(rows)], rows.to(self.sums.dtype))

    def add_to(self, total: Tensor | None) -> Tensor:
        """The sums in their places, (K, d), added to a total in place, None being zeros."""
        if total is None:
            total = torch.zeros_like(self.weight, memory_format=torch.contiguous_format)
        return total.index_add_(0, self.classes, narrow(self.sums, total.dtype))  # past the last, zeros


class Shared:
    """The logits of the classes (t,) for every sample, (N, t)."""

    def __init__(self, classes: Tensor) -> None:
        self.classes = classes

    def forward(self, layer: Layer) -> tuple[Tensor, None]:
        bias = None if layer.bias is None else layer.bias[self.classes]
        return logits_of(layer.features, layer.weight[self.classes], bias), None

    def backward(self, layer: Layer, kept: None, upstream: Tensor) -> Gradients:
        gradients = Gradients.zeros(layer)
        if gradients.features is not None:
            gradients.features += input_gradient(upstream, layer.weight[self.classes])
        if gradients.weight is not None:
            rows = narrow(upstream, layer.features.dtype).T @ layer.features
            gradients.weight.index_add_(0, self.classes, rows.to(gradients.weight.dtype))
        if gradients.bias is not None:
            gradients.bias.index_add_(0, self.classes, upstream.sum(0))
        return gradients
