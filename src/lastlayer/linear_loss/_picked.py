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
        gradients = Gradients.zeros(layer, sum_features=True)
        for classes, dz in zip(self.classes.unbind(1), upstream.unbind(1), strict=True):
            add_entries(gradients, layer, classes, dz)
        return gradients


class Shared:
    """The logits of the classes (t,) for every sample, (N, t)."""

    def __init__(self, classes: Tensor) -> None:
        self.classes = classes

    def forward(self, layer: Layer) -> tuple[Tensor, None]:
        bias = None if layer.bias is None else layer.bias[self.classes]
        return logits_of(layer.features, layer.weight[self.classes], bias), None

    def backward(self, layer: Layer, kept: None, upstream: Tensor) -> Gradients:
        gradients = Gradients.zeros(layer, sum_features=True)
        if gradients.features is not None:
            gradients.features += input_gradient(upstream, layer.weight[self.classes])
        if gradients.weight is not None:
            rows = narrow(upstream, layer.features.dtype).T @ layer.features
            gradients.weight.index_add_(0, self.classes, rows.to(gradients.weight.dtype))
        if gradients.bias is not None:
            gradients.bias.index_add_(0, self.classes, upstream.sum(0))
        return gradients


def add_entries(gradients: Gradients, layer: Layer, classes: Tensor, dz: Tensor) -> None:
    """Put in a gradient dz (N,) of one logit a sample, that of the class (N,) given: a gather and a scatter."""
    dz = dz.to(wide(layer.weight.dtype))
    if gradients.features is not None:
        gradients.features += (dz.unsqueeze(1) * layer.weight[classes]).to(gradients.features.dtype)
    if gradients.weight is not None:
        gradients.weight.index_add_(0, classes, dz.unsqueeze(1) * layer.features)
    if gradients.bias is not None:
        gradients.bias.index_add_(0, classes, dz)
