"""Losses of labels from a few sums of each row, by kernels that read the logits once for each and write the gradient.

A loss of the softmax family sees the false logits through their log-sum alone, so its own function is called on two
scores a sample, the true one and that log-sum; `binary_cross_entropy` sees a sum of softplus. The gradient with respect
to those numbers, by autograd, is what the kernel needs to write that of all logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss._classes import soft_factor
from lastlayer.linear_loss._target import Batch
from lastlayer.losses import Loss
from lastlayer.losses._classes import softplus
from lastlayer.losses._target import read_class_vector

ON_TWO_SCORES = {"focal", "soft-margin", "arc-margin", "self-norm"}
NAMES = ON_TWO_SCORES | {"ce", "ls", "sln", "ln", "logit-adjusted", "bce"}


class RowKernels:
    """One loss of labels on chunks of logits, whose gradient takes their place."""

    def __init__(self, kernels: Any, name: str, loss: Loss, batch: Batch, K: int) -> None:
        self.kernels, self.name, self.loss, self.batch, self.K = kernels, name, loss, batch, K
        self.options: dict[str, Any] = loss.hyperparameters()
        self.offset = None
        if name == "logit-adjusted":
            like = torch.empty(0, K, device=batch.labels[0].index.device)
            counts = read_class_vector(self.options["counts"], "counts", like)
            self.offset = (self.options["tau"] * (counts / counts.sum()).log()).contiguous()

    @staticmethod
    def take(name: str, loss: Loss, batch: Batch) -> bool:
        """Whether the loss and its target are of the kind that has kernels: one label a sample, simple smoothing."""
        if name not in NAMES or len(batch.labels) != 1 or type(loss).forward is not Loss.forward:
            return False
        options = loss.hyperparameters()
        if name in ("ce", "ls") and options["label_smoothing"] and batch.class_weight is not None:
            return False
        if name in ("sln", "bce") and options["label_smoothing"]:
            return False
        return options.get("pos_weight") is None

    def __call__(self, z: Tensor, low: int, high: int, upstream: Tensor | None) -> Tensor:
        """One loss a row of z (n, K), the logits of the samples low..high-1; z is then the gradient."""
        labels = self.batch.labels[0]
        index, valid = labels.index[low:high].squeeze(1), labels.valid[low:high]
        true = z.gather(1, index.unsqueeze(1)).squeeze(1).float().requires_grad_()
        square = factor = None
        if self.name in ("sln", "ln"):
            square = self.kernels.squares(z).requires_grad_()
        with torch.enable_grad():
            factor = self._factor(true, square)
        smoothing = self.options.get("label_smoothing", 0.0)
        log_sum, mean, plain = self.kernels.others(
            z, index, sigmoid=self.name == "bce", factor=None if factor is None else factor.detach(),
            offset=self.offset, mean=square is not None, plain=smoothing > 0,
        )  # fmt: skip
        leaves = [t for t in (log_sum, true, square, plain) if t is not None]
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            others = log_sum
            if factor is not None and mean is not None:  # d others / d factor is the mean
                others = others + mean * (factor - factor.detach())
            values = self._values(others, true, factor, plain, index)
            if self.batch.class_weight is not None:
                values = values * self.batch.class_weight[index]
            values = torch.where(valid, values, 0.0)
        ones = torch.ones_like(values) if upstream is None else upstream
        slopes = iter(torch.autograd.grad(values, leaves, ones))
        slope, d_true = next(slopes), next(slopes)
        self.kernels.put_gradient(
            z, index, log_sum.detach(), slope, d_true, sigmoid=self.name == "bce",
            factor=None if factor is None else factor.detach(), offset=self.offset,
            square=None if square is None else next(slopes), even=None if plain is None else next(slopes),
        )  # fmt: skip
        return values.detach()

    def _factor(self, true: Tensor, square: Tensor | None) -> Tensor | None:
        """What the logits are multiplied by in the softmax, (n,)."""
        if square is not None:
            return soft_factor(square, self.options.get("gamma", 1.0), self.options["tau"], self.K)
        number = {"ce": "temperature", "ls": "temperature", "arc-margin": "scale"}.get(self.name)
        if number is None or (not isinstance(self.options[number], Tensor) and self.options[number] == 1.0):
            return None
        ones = torch.ones_like(true, requires_grad=False)
        value: Tensor | float = self.options[number]
        return ones * value if number == "scale" else ones / value

    def _values(
        self, others: Tensor, true: Tensor, factor: Tensor | None, plain: Tensor | None, index: Tensor
    ) -> Tensor:
        if self.name == "bce":
            return others + softplus(-true)
        if self.name in ON_TWO_SCORES:
            scale = self.options["scale"] if self.name == "arc-margin" else 1.0
            mine = {name: v for name, v in self.options.items() if name not in ("weight", "ignore_index")}
            first = torch.zeros_like(index)
            pair = torch.stack([true, others / scale], 1)
            return type(self.loss).function(pair, first, **{**mine, "reduction": "none"})
        score = true if factor is None else factor * true
        if self.offset is not None:
            score = score + self.offset[index]
        value = softplus(others - score)
        if plain is None:
            return value
        smoothing: float = self.options["label_smoothing"]
        average = (plain + true) / self.K
        average = average if factor is None else average * factor
        return (1 - smoothing) * value + smoothing * (torch.logaddexp(others, score) - average)
