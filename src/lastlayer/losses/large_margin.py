"""Multiplicative margin on the angle to the true class: L-Softmax."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import OthersForm
from lastlayer.losses.loss import Loss, NeededHead, register
from lastlayer.losses.selection import Selection, evaluate
from lastlayer.losses.target import Target, check_range, read, read_scores


def large_margin(
    features: Tensor,
    weight: Tensor,
    target: Target,
    *,
    margin: int = 4,
    lam: float = 0.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Large-margin softmax (L-Softmax), without a bias.

        z = W h,    z_k = ||w_k|| ||h|| cos(theta)  ->  (lam z_k + ||w_k|| ||h|| psi(theta)) / (1 + lam)
        psi(theta) = (-1)^i cos(m theta) - 2 i    for theta in [i pi / m, (i + 1) pi / m]
        L_k = cross-entropy with that logit replaced

    Args:
        features: h, (N, d).
        weight: W, (K, d), the classifier. These are not class weights.
        target: class indices (N,), class probabilities (N, K), or a mixed pair (y_a, y_b, lam).
        margin: m, an integer >= 1; 1 is cross-entropy.
        lam: >= 0, how much the plain logit counts. With margin 4 it must be large at the start of training;
            `LargeMarginHead` lowers it step by step.
        class_weight: one number per class, (K,).
        ignore_index, reduction, and the result: as in `cross_entropy`.

    Degenerate cases: a zero feature or a zero row of the classifier has no angle. Its logit is 0, and its gradient is
    lam / (1 + lam) times that of the plain logit. If rounding made a cosine larger than 1 in size, it counts as 1.
    Under autocast the product W h runs in the lower precision and the angle in float32.

    Paper: Liu et al. 2016.
    Tests: tests/losses/test_large_margin.py::TestPsi::test_values

    Example:
        >>> import torch
        >>> h, W = torch.tensor([[2.0, 0.5]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> large_margin(h, W, torch.tensor([0]), margin=2)
        tensor(0.2370)
    """
    features, weight = _read_features(features, weight)
    problem = read(
        F.linear(features, weight),
        target,
        weight=class_weight,
        ignore_index=ignore_index,
        reduction=reduction,
        weight_name="class_weight",
    )
    feature_norms, class_norms = row_norms(features).unsqueeze(1), row_norms(weight).unsqueeze(0)

    def loss(at: Selection) -> Tensor:
        norms = feature_norms * at(class_norms)
        return at.cross_entropy(problem.logits, shrink(at(problem.logits), norms, margin, lam))

    return evaluate(problem, loss)


def row_norms(rows: Tensor) -> Tensor:
    """Norms of the rows of (N, d), in float32 or better."""
    return torch.linalg.vector_norm(at_least_float32(rows), dim=1)  # type: ignore[no-any-return]


def shrink(logit: Tensor, norms: Tensor, margin: int, lam: Tensor | float) -> Tensor:
    """The true logit with its angle multiplied by the margin, mixed with the plain logit in the proportion 1 : lam."""
    if not isinstance(margin, int) or isinstance(margin, bool):
        raise TypeError(f"margin must be an integer, got {margin!r}")
    check_range("margin", margin, 1)
    check_range("lam", lam, 0.0)
    nonzero = norms > 0
    cosine = torch.where(nonzero, logit / torch.where(nonzero, norms, 1.0), 0.0)
    # Beyond 1 the polynomial below grows fast, so the value is clamped. The gradient stays that of the polynomial at 1.
    cosine = cosine + (cosine.clamp(-1, 1) - cosine).detach()
    # cos(m theta) is a Chebyshev polynomial in cos(theta). This avoids the arccosine, whose slope is infinite at +-1.
    before, chebyshev = torch.ones_like(cosine), cosine
    for _ in range(margin - 1):
        before, chebyshev = chebyshev, 2 * cosine * chebyshev - before
    segment = torch.zeros_like(cosine)
    for i in range(1, margin):
        segment = segment + (cosine <= math.cos(i * math.pi / margin))
    sign = 1 - 2 * (segment % 2)
    margined: Tensor = torch.where(nonzero, norms * (sign * chebyshev - 2 * segment), 0.0)
    mixed: Tensor = (lam * logit + margined) / (1 + lam)
    return mixed


def _read_features(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    features, weight = read_scores(features, "features"), read_scores(weight, "weight")
    for name, tensor in (("features", features), ("weight", weight)):
        if tensor.dim() != 2:
            raise ValueError(f"{name} must have two axes, got shape {tuple(tensor.shape)}")
    if features.shape[1] != weight.shape[1]:
        raise ValueError(
            f"features (N, d) and weight (K, d) must agree in d, got {tuple(features.shape)} and {tuple(weight.shape)}"
        )
    common = torch.promote_types(features.dtype, weight.dtype)
    return features.to(common), weight.to(common)


@register("large-margin")
class LargeMarginLoss(Loss):
    """`large_margin` as a Module, called with (features, weight, target); `large-margin` by name.

    Predict with the plain logits W h, as `LargeMarginHead` gives them.
    """

    function = staticmethod(large_margin)
    class_form = OthersForm(
        replaced=lambda logit, norms, o: shrink(logit, cast(Tensor, norms), o["margin"], o["lam"]),
        learnable=("margin", "lam"),
    )
    needed_head = NeededHead("large-margin", shared=("margin", "lam"), only=True)

    def for_head(self, head: nn.Module) -> Loss:
        """This loss with the margin and the lambda of a `LargeMarginHead`. The head counts the step."""
        take_step = getattr(head, "take_step", None)
        if take_step is None:
            return self
        return LargeMarginLoss(self.num_classes, **{**self.hyperparameters(), **take_step()})

    @staticmethod
    def count_classes(*inputs: Any) -> int | None:
        weight = inputs[1] if len(inputs) > 1 else None
        return weight.shape[0] if isinstance(weight, Tensor) and weight.dim() else None
