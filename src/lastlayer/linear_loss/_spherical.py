"""Sums of squared logits without the logits, from W^T W; with single logits, all that `mse` of labels needs."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer, fused
from lastlayer.linear_loss._picked import Picked
from lastlayer.linear_loss._products import add_product, wide
from lastlayer.linear_loss._rows import chunks
from lastlayer.linear_loss._target import Batch


class SquaredNorms:
    """||W h + b||^2 of each sample, (N,), from W^T W: no logits. In float32 or better.

    Relative to |h|^2 |W|^2 the error is that of one rounding, so a row whose logits all nearly cancel keeps few digits.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def forward(self, layer: Layer) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        dtype = wide(layer.weight.dtype)
        d = layer.weight.shape[1]
        gram = torch.zeros(d, d, dtype=dtype, device=layer.weight.device)
        cross = torch.zeros(d, dtype=dtype, device=layer.weight.device)
        for low, high in chunks(layer.weight.shape[0], self.size):
            rows = layer.weight[low:high]
            add_product(gram, rows, rows)
            if layer.bias is not None:
                cross += layer.bias[low:high].to(dtype) @ rows.to(dtype)
        h = layer.features.to(dtype)
        norms2 = ((h @ gram) * h).sum(1)
        if layer.bias is not None:
            norms2 = norms2 + 2 * (h @ cross) + layer.bias.to(dtype).square().sum()
        return norms2.clamp_(min=0.0), (gram, cross)

    def backward(self, layer: Layer, kept: tuple[Tensor, Tensor], upstream: Tensor) -> Gradients:
        gram, cross = kept
        gradients = Gradients.zeros(layer, sum_features=True)
        h = layer.features.to(gram.dtype)
        scaled = 2 * upstream.unsqueeze(1) * h
        if gradients.features is not None:
            gradients.features += scaled @ gram + 2 * upstream.unsqueeze(1) * cross
        moment, mean = scaled.T @ h, scaled.sum(0)  # (d, d), (d,)
        for low, high in chunks(layer.weight.shape[0], self.size):
            rows = layer.weight[low:high].to(gram.dtype)
            bias = None if layer.bias is None else layer.bias[low:high].to(gram.dtype)
            if gradients.weight is not None:
                gradients.weight[low:high] = rows @ moment
                if bias is not None:
                    gradients.weight[low:high] += bias.unsqueeze(1) * mean
            if gradients.bias is not None and bias is not None:
                gradients.bias[low:high] = rows @ mean + bias * (2 * upstream.sum())
        return gradients


def squared_error(
    batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None, kappa: float, beta: float
) -> Tensor:
    """`mse` of labels, (N,): ||z||^2 + (kappa - 1) z_y^2 - 2 kappa beta z_y + kappa beta^2, without the logits."""
    norms2 = fused(SquaredNorms(size), features, weight, bias)
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        z = fused(Picked(labels.index), features, weight, bias).squeeze(1)
        part = norms2 + (kappa - 1) * z.square() - 2 * kappa * beta * z + kappa * beta**2
        if batch.class_weight is not None:
            part = part * batch.class_weight[index]
        value = value + torch.where(labels.valid, labels.share * part, 0.0)
    return torch.as_tensor(value)
