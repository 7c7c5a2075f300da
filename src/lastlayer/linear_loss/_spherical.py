"""Sums of squared logits without the logits, from W^T W; with single logits, all that `mse` of labels needs."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.linear_loss._function import Gradients, Layer
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
        """The squared norms, and half their gradient in the features, (N, d)."""
        dtype = wide(layer.weight.dtype)
        d = layer.weight.shape[1]
        gram = torch.zeros(d, d, dtype=dtype, device=layer.weight.device)
        for low, high in chunks(layer.weight.shape[0], self._size(layer)):
            add_product(gram, layer.weight[low:high], layer.weight[low:high])
        image = exact_product(layer.features, gram)
        h = layer.features.to(dtype)
        if layer.bias is None:
            return (image * h).sum(1).clamp_(min=0.0), image
        cross = torch.zeros(d, dtype=dtype, device=layer.weight.device)
        for low, high in chunks(layer.weight.shape[0], self.size):
            cross += layer.bias[low:high].to(dtype) @ layer.weight[low:high].to(dtype)
        image += cross
        norms2 = (image * h).sum(1) + h @ cross + layer.bias.to(dtype).square().sum()
        return norms2.clamp_(min=0.0), image

    def backward(self, layer: Layer, image: Tensor, upstream: Tensor) -> Gradients:
        gradients = Gradients()
        if layer.wants_features:
            gradients.features = image * (2 * upstream).unsqueeze(1)
        wants_bias = layer.wants_bias and layer.bias is not None
        if not (layer.wants_weight or wants_bias):
            return gradients
        scaled = (2 * upstream).unsqueeze(1) * layer.features.to(image.dtype)
        in_bfloat16 = fast_in_bfloat16(layer.weight)
        moment = torch.empty(scaled.shape[1], scaled.shape[1], dtype=scaled.dtype, device=scaled.device)  # (d, d)
        put_product(moment, scaled, layer.features if in_bfloat16 else layer.features.to(scaled.dtype))
        if in_bfloat16 and layer.bias is None:
            gradients.weight = layer.weight @ moment.to(layer.weight.dtype)
            return gradients
        mean = scaled.sum(0)  # (d,)
        gradients.weight = torch.empty_like(layer.weight) if layer.wants_weight else None
        gradients.bias = torch.empty_like(layer.bias) if wants_bias and layer.bias is not None else None
        for low, high in chunks(layer.weight.shape[0], self.size):
            rows = layer.weight[low:high].to(scaled.dtype)
            bias = None if layer.bias is None else layer.bias[low:high].to(scaled.dtype)
            if gradients.weight is not None:
                found = rows @ moment if bias is None else (rows @ moment).addr_(bias, mean)
                gradients.weight[low:high] = narrow(found, layer.weight.dtype)
            if gradients.bias is not None and bias is not None:
                gradients.bias[low:high] = narrow(rows @ mean + bias * (2 * upstream.sum()), layer.weight.dtype)
        return gradients

    def _size(self, layer: Layer) -> int:
        """A product in float32 of half-precision rows copies them, so a tile at a time; on a GPU there is no copy."""
        return layer.weight.shape[0] if fast_in_bfloat16(layer.weight) else self.size


class SquaredError:
    """`mse` of labels, (N,): ||z||^2 + (kappa - 1) z_y^2 - 2 kappa beta z_y + kappa beta^2, without the logits."""

    def __init__(self, batch: Batch, size: int, kappa: float, beta: float) -> None:
        self.batch, self.norms, self.kappa, self.beta = batch, SquaredNorms(size), kappa, beta
        self.classes = torch.cat([labels.index for labels in batch.labels], 1)  # (N, 1), of a mixed pair (N, 2)

    def forward(self, layer: Layer) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        norms2, image = self.norms.forward(layer)
        z = Picked(self.classes).forward(layer)[0]
        shares = torch.stack([labels.valid.to(z.dtype) * labels.share for labels in self.batch.labels], 1)
        if self.batch.class_weight is not None:
            shares = shares * self.batch.class_weight[self.classes]
        terms = norms2.unsqueeze(1) + ((self.kappa - 1) * z - 2 * self.kappa * self.beta) * z
        return (shares * (terms + self.kappa * self.beta**2)).sum(1), (image, z, shares)

    def backward(self, layer: Layer, kept: tuple[Tensor, Tensor, Tensor], upstream: Tensor) -> Gradients:
        image, z, shares = kept
        each = upstream.unsqueeze(1) * shares
        gradients = self.norms.backward(layer, image, each.sum(1))
        slopes = each * (2 * (self.kappa - 1) * z - 2 * self.kappa * self.beta)
        return Picked(self.classes).add_to(gradients, layer, slopes)


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
