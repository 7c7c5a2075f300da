"""Losses that need few logits or none: logits of picked classes for each sample, and sums of squares from W^T W."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer._core.precision import wide
from lastlayer.linear_loss.batch import Batch
from lastlayer.linear_loss.layer import Gradients, Layer, fused
from lastlayer.linear_loss.products import chunks, input_gradient, logits_of, put_product
from lastlayer.losses import Loss
from lastlayer.losses.forms import DrawnForm
from lastlayer.losses.selection import softplus
from lastlayer.losses.target import read


class Picked:
    """The logits of the classes given for each sample, (N, m), in float32 or better: a product of size m N d."""

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
        """Add to gradients, where None means zeros. Those of the features are in float32 or better."""
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
    """Sums of rows by class, (K, d), in float32 and rounded once. Only the classes given, (m,), take any memory."""

    def __init__(self, weight: Tensor, classes: Tensor) -> None:
        self.weight = weight
        order = classes.sort()
        starts = torch.ones_like(order.values)
        starts[1:] = order.values[1:] != order.values[:-1]
        place = starts.cumsum(0) - 1  # of each entry's class among those that occur
        count = min(order.values.numel(), weight.shape[0])
        self.places = torch.empty_like(place).scatter_(0, order.indices, place)
        self.classes = order.values.new_zeros(count).scatter_(0, place, order.values)  # after the last one, class 0
        self.sums = torch.zeros(count, weight.shape[1], dtype=wide(weight.dtype), device=weight.device)

    def add(self, first: int, rows: Tensor) -> None:
        """Add rows (n, d) for the classes given at first..first+n-1."""
        self.sums.index_add_(0, self.places[first : first + len(rows)], rows.to(self.sums.dtype))

    def add_to(self, total: Tensor | None) -> Tensor:
        """The total (K, d), where None means zeros, plus the sums. Added in place."""
        if total is None:
            total = torch.zeros_like(self.weight, memory_format=torch.contiguous_format)
        return total.index_add_(0, self.classes, self.sums.to(total.dtype))  # after the last class, zeros


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
            rows = upstream.to(layer.features.dtype).T @ layer.features
            gradients.weight.index_add_(0, self.classes, rows.to(gradients.weight.dtype))
        if gradients.bias is not None:
            gradients.bias.index_add_(0, self.classes, upstream.sum(0))
        return gradients


def drawn_losses(
    form: DrawnForm, loss: Loss, batch: Batch, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """softplus(-s_y) + sum_j softplus(s_j) over the drawn j, (N,), with s = z - log(how often a class is expected)."""
    options = loss.hyperparameters()
    N, K = features.shape[0], weight.shape[0]
    logits = torch.zeros((), dtype=wide(features.dtype), device=features.device).expand(N, K)  # takes no memory
    any_labels = torch.zeros(N, dtype=torch.long, device=features.device)
    drawn, expected = form.read(options, read(logits, any_labels))  # (N, t) and (K,)
    shift = torch.where(expected > 0, expected, 1.0).log()
    samples = options["samples"]
    pick = Shared(samples.long()) if samples.dim() == 1 else Picked(drawn)
    terms = softplus(fused(pick, features, weight, bias) - shift[drawn])
    value: Tensor | float = 0.0
    for labels in batch.labels:
        index = labels.index.squeeze(1)
        score = fused(Picked(labels.index), features, weight, bias).squeeze(1) - shift[index]
        part = torch.where(expected[index] > 0, softplus(-score), 0.0)
        others = terms if options["include_target"] else torch.where(drawn == labels.index, 0.0, terms)
        value = value + batch.counted_part(labels, part + others.sum(1))
    return torch.as_tensor(value)


class SquaredNorms:
    """||W h + b||^2 of each sample, (N,), from W^T W, without logits. In float32 or better.

    The error is that of one rounding, relative to |h|^2 |W|^2. So if all logits of a row nearly cancel, it keeps few
    digits.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def forward(self, layer: Layer) -> tuple[Tensor, Tensor]:
        """The squared norms, and half their gradient in the features, (N, d)."""
        dtype = wide(layer.weight.dtype)
        d = layer.weight.shape[1]
        gram = torch.zeros(d, d, dtype=dtype, device=layer.weight.device)
        # A float32 product of half-precision rows copies them, except on a GPU.
        size = layer.weight.shape[0] if fast_in_bfloat16(layer.weight) else self.size
        for low, high in chunks(layer.weight.shape[0], size):
            put_product(gram, layer.weight[low:high], layer.weight[low:high], add=True)
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
                gradients.weight[low:high] = found
            if gradients.bias is not None and bias is not None:
                gradients.bias[low:high] = rows @ mean + bias * (2 * upstream.sum())
        return gradients


class SquaredError:
    """||z||^2 + (kappa - 1) z_y^2 - 2 kappa beta z_y + kappa beta^2, (N,), from the logits of the labels y alone."""

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
    """Whether products of this tensor have float32 sums and many times the speed of float32 products."""
    return tensor.is_cuda and tensor.dtype is torch.bfloat16


def exact_product(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows (n, d) times a float32 matrix (d, d), in float32. For bfloat16 rows the matrix is split in two halves."""
    if not fast_in_bfloat16(rows):
        return rows.to(matrix.dtype) @ matrix
    upper = matrix.to(rows.dtype)
    lower = (matrix - upper).to(rows.dtype)
    return torch.mm(rows, upper, out_dtype=matrix.dtype) + torch.mm(rows, lower, out_dtype=matrix.dtype)
