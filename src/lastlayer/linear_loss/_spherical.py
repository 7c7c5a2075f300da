"""Sums of squared logits without the logits, from W^T W; with single logits, all that `mse` of labels needs."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer, fused
from lastlayer.linear_loss._picked import Picked
from lastlayer.linear_loss._products import add_product, narrow, put_product, wide
from lastlayer.linear_loss._target import Batch, chunks


class SquaredNorms:
    """||W h + b||^2 of each sample, (N,), from W^T W: no logits. In float32 or better.

    Relative to |h|^2 |W|^2 the error is that of one rounding, so a row whose logits all nearly cancel keeps few digits.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def forward(self, layer: Layer) -> tuple[Tensor, Tensor]:
        dtype = wide(layer.weight.dtype)
        d = layer.weight.shape[1]
        gram = torch.zeros(d, d, dtype=dtype, device=layer.weight.device)
        cross = torch.zeros(d, dtype=dtype, device=layer.weight.device)
        if fast_in_bfloat16(layer.weight):
            put_product(gram, layer.weight, layer.weight)
        else:
            for low, high in chunks(layer.weight.shape[0], self.size):
                add_product(gram, layer.weight[low:high], layer.weight[low:high])
        if layer.bias is not None:
            for low, high in chunks(layer.weight.shape[0], self.size):
                cross += layer.bias[low:high].to(dtype) @ layer.weight[low:high].to(dtype)
        image = exact_product(layer.features, gram)  # (N, d), half the gradient of the norms
        if layer.bias is not None:
            image += cross
        h = layer.features.to(dtype)
        norms2 = (image * h).sum(1)
        if layer.bias is not None:
            norms2 = norms2 + h @ cross + layer.bias.to(dtype).square().sum()
        return norms2.clamp_(min=0.0), image

    def backward(self, layer: Layer, image: Tensor, upstream: Tensor) -> Gradients:
        gradients = Gradients.by_classes(layer)
        scaled = 2 * upstream.unsqueeze(1) * layer.features.to(image.dtype)
        if gradients.features is not None:
            gradients.features = image * (2 * upstream).unsqueeze(1)
        if not (layer.wants_weight or layer.wants_bias):
            return gradients
        low_precision = fast_in_bfloat16(layer.weight)
        moment = torch.empty(scaled.shape[1], scaled.shape[1], dtype=scaled.dtype, device=scaled.device)  # (d, d)
        put_product(moment, scaled, layer.features if low_precision else layer.features.to(scaled.dtype))
        mean = scaled.sum(0)  # (d,)
        for low, high in chunks(layer.weight.shape[0], self.size):
            rows = layer.weight[low:high]
            bias = None if layer.bias is None else layer.bias[low:high].to(scaled.dtype)
            if gradients.weight is not None and low_precision and bias is None:
                torch.mm(rows, moment.to(rows.dtype), out=gradients.weight[low:high])
            elif gradients.weight is not None:
                found = rows.to(scaled.dtype) @ moment
                found = found if bias is None else found + bias.unsqueeze(1) * mean
                gradients.weight[low:high] = narrow(found, layer.weight.dtype)
            if gradients.bias is not None and bias is not None:
                found = rows.to(scaled.dtype) @ mean + bias * (2 * upstream.sum())
                gradients.bias[low:high] = narrow(found, layer.weight.dtype)
        return gradients


def fast_in_bfloat16(tensor: Tensor) -> bool:
    """Whether products of bfloat16 have float32 sums, and many times the speed of float32 ones."""
    return tensor.is_cuda and tensor.dtype is torch.bfloat16


def exact_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows (n, d) times a float32 matrix (d, d), in float32; of bfloat16 rows, by two halves of the matrix's digits."""
    if not fast_in_bfloat16(rows):
        return rows.to(matrix.dtype) @ matrix
    upper = matrix.to(rows.dtype)
    lower = (matrix - upper).to(rows.dtype)
    return torch.mm(rows, upper, out_dtype=matrix.dtype) + torch.mm(rows, lower, out_dtype=matrix.dtype)


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
