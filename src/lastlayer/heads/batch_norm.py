"""Batch normalization without shift, then a linear layer without bias."""

import torch
from torch import Tensor, nn

from lastlayer.heads.head import Head, initial_weight, register


@register("batch-norm")
class BatchNormHead(Head):
    """Batch normalization without a shift, then a linear layer without a bias.

        logits = W BN(h),    BN(h) = gamma (h - mean) / sd

    In training the statistics are those of the batch, in evaluation the running ones. Over a training batch, the
    quadratic mean of the feature norms is ||gamma||, up to torch's eps > 0. This links weight decay to collapse.

    Args:
        in_features, num_classes: d and K.
        gamma: a constant at which every entry of BN's weight is frozen, so that ||gamma|| = |gamma| sqrt(d). None
            learns gamma, starting at 1.
        eps, momentum: as in `torch.nn.BatchNorm1d`.

    Paper: Pan and Cao 2023, sections 2 and 3.
    Tests: tests/heads/test_batch_norm.py::test_quadratic_mean_norm_is_the_norm_of_gamma

    Example:
        >>> import torch
        >>> head = BatchNormHead(4, 3, gamma=0.5)
        >>> head.features(torch.randn(64, 4)).norm(dim=1).square().mean().sqrt()  # 0.5 sqrt(4), but for eps
        tensor(1.0000)
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        gamma: float | None = None,
        *,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__(in_features, num_classes)
        self.norm = nn.BatchNorm1d(in_features, eps=eps, momentum=momentum)
        self.norm.register_parameter("bias", None)
        if gamma is not None:
            self.norm.weight = nn.Parameter(torch.full((in_features,), float(gamma)), requires_grad=False)
        self.weight = initial_weight(num_classes, in_features)
        self.bias = None

    def norm_weight(self) -> Tensor:
        """The weight gamma of the batch norm, (d,)."""
        return self.norm.weight

    def features(self, x: Tensor) -> Tensor:
        """The features after batch normalization."""
        self._check(x)
        normalized: Tensor = self.norm(x.reshape(-1, self.in_features))
        return normalized.reshape(x.shape)
