"""The head of L-Softmax: logits with a margin in training, plain logits in evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.labels import read_labels
from lastlayer.heads.head import Head, initial_weight, register
from lastlayer.losses.large_margin import row_norms, shrink
from lastlayer.losses.target import check_label_range


@register("large-margin")
class LargeMarginHead(Head):
    """L-Softmax as a head. Cross-entropy on its training logits equals `losses.large_margin`.

        logits = W h,    in training  z_y -> (lam z_y + ||w_y|| ||h|| psi(theta)) / (1 + lam)

    In training, `head(x, target)` replaces the true logit as the formula says. In evaluation, or without a target, the
    logits are plain. There is no bias.

    With margin 4 and lam = 0, training from scratch seldom converges. So by default lam falls as
    1000 / (1 + 0.12 step) down to 5. Each training call with a target is one step. The step is saved in the state_dict.

    Args:
        in_features, num_classes: d and K.
        margin: an integer >= 1.
        lam: a pair (start, floor) to lower it step by step, or one number to keep it constant.

    Paper: Liu et al. 2016.
    Tests: tests/heads/test_large_margin.py::test_with_cross_entropy_it_is_the_loss

    Example:
        >>> import torch
        >>> from lastlayer import losses
        >>> head = LargeMarginHead(4, 3, lam=1.0)
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> as_head = losses.cross_entropy(head(x, y), y)
        >>> torch.allclose(as_head, losses.large_margin(x, head.weight, y, lam=1.0))
        True
    """

    step: Tensor

    def __init__(
        self, in_features: int, num_classes: int, margin: int = 4, lam: float | Sequence[float] = (1000.0, 5.0)
    ) -> None:
        super().__init__(in_features, num_classes)
        start, floor = lam if isinstance(lam, Sequence) else (lam, lam)
        if not start >= floor >= 0:
            raise ValueError(f"lam must be a number >= 0 or (start, floor) with start >= floor >= 0, got {lam!r}")
        if not isinstance(margin, int) or margin < 1:
            raise ValueError(f"margin must be an integer >= 1, got {margin!r}")
        self.margin = margin
        self.start, self.floor = float(start), float(floor)
        self.weight = initial_weight(num_classes, in_features)
        self.bias = None
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @property
    def lam(self) -> Tensor:
        """lambda at the present step, as a tensor, so that the CPU need not wait for the GPU."""
        step = self.step.to(torch.promote_types(self.weight.dtype, torch.float32))
        return (self.start / (1 + 0.12 * step)).clamp(min=self.floor)

    def take_step(self) -> dict[str, Any]:
        """The margin and lambda of the present training step. Each call counts as one step."""
        numbers = {"margin": self.margin, "lam": self.lam}
        self.step += 1
        return numbers

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """The logits (N, K) of x (N, d). In training with a target of class indices (N,), they contain the margin.

        If a label is negative, it is ignored and the logits of its row stay plain.
        """
        logits = super().forward(x)
        if target is None or not self.training:
            return logits
        if x.dim() != 2:
            raise ValueError(f"x must have shape (N, {self.in_features}) where a target is given, got {tuple(x.shape)}")
        target = read_labels(target, len(x))
        index = target.clamp(min=0)
        check_label_range("target", index, self.num_classes)
        index = index.unsqueeze(1)
        true = logits.gather(1, index)
        norms = (row_norms(x) * row_norms(self.weight).gather(0, index.squeeze(1))).unsqueeze(1)
        shrunk = shrink(true.to(norms.dtype), norms, **self.take_step()).to(logits.dtype)
        return logits.scatter(1, index, torch.where(target.long().unsqueeze(1) >= 0, shrunk, true))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, margin={self.margin}, lam=({self.start:g}, {self.floor:g})"
