"""Cosines times a scale: the features and the classifier's rows are normalised to length 1."""

import math

import torch
from torch import Tensor, nn

from lastlayer._core.unit import unit
from lastlayer.heads.head import Head, initial_weight, register, select


@register("normalized")
class NormalizedHead(Head):
    """Cosines between the features and the classifier's rows, times a scale.

        logits_k = scale cos(w_k, h) - b_k

    The bias is subtracted, as in the paper. The norms have no epsilon. A zero feature has cosine 0 with every class,
    and gradient 0. Norms and logits are in float32 or better. Under autocast the product of the unit vectors runs in
    the lower precision.

    Args:
        in_features, num_classes: d and K.
        scale: a number, or an `nn.Parameter` to learn it. Any other tensor becomes a buffer.
        bias: whether the head has a bias.
        bias_mean, bias_std: mean and standard deviation of the normal distribution from which the bias is drawn.

    Paper: Normalized Spaces 2025, equations 2 and 5.
    Tests: tests/heads/test_head.py::test_logits

    Example:
        >>> import torch
        >>> head = NormalizedHead(4, 3, scale=8.0, bias_mean=2.0)
        >>> x = torch.randn(5, 4)
        >>> torch.allclose(head(x), head(100 * x), atol=1e-5)
        True
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: float | Tensor = 16.0,
        bias: bool = True,
        bias_mean: float = 0.0,
        bias_std: float = 0.0,
    ) -> None:
        super().__init__(in_features, num_classes)
        if isinstance(scale, Tensor) and scale.numel() != 1:
            raise ValueError(f"scale must be one number for all classes, got shape {tuple(scale.shape)}")
        if not (isinstance(scale, Tensor) and scale.is_meta) and not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive and finite, got {scale!r}")
        if bias_std < 0:
            raise ValueError(f"bias_std must not be negative, got {bias_std!r}")
        self.weight = initial_weight(num_classes, in_features)
        self.scale: Tensor | float
        if isinstance(scale, Tensor) and not isinstance(scale, nn.Parameter):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale
        self.bias = nn.Parameter(bias_mean + bias_std * torch.randn(num_classes)) if bias else None

    def features(self, x: Tensor) -> Tensor:
        """The features, normalised to length 1."""
        return unit(x)

    def linear(self, classes: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The weight, scale times the unit rows, and the bias with its sign turned, so that it can be added."""
        weight = self.scale * unit(select(self.weight, classes))
        return weight, None if self.bias is None else -select(self.bias, classes).to(weight.dtype)

    def extra_repr(self) -> str:
        learnable = ", learnable" if isinstance(self.scale, nn.Parameter) else ""
        scale = f"{torch.as_tensor(self.scale).item():g}{learnable}"
        return f"{super().extra_repr()}, scale={scale}, bias={self.bias is not None}"
