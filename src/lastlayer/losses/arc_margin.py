"""Additive margin on the angle to the true class: ArcFace."""

import math
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import Kind, OthersForm, RowForm
from lastlayer.losses.loss import Loss, NeededHead, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Target, check_range, read


def arc_margin(
    cosines: Tensor,
    target: Target,
    *,
    margin: float = 0.5,
    scale: float = 64.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """ArcFace: cross-entropy of scaled cosines, with the angle to the true class enlarged by a margin.

        c_k = cos(theta_k)  ->  cos(theta_k + margin)           if theta_k <= pi - margin
                                c_k - margin sin(margin)        otherwise, which keeps it decreasing in theta_k
        L_k = cross-entropy of scale * cosines with that entry replaced

    Args:
        cosines: (N, K), (N, K, ...) or (K,): the logits of a `NormalizedHead(scale=1.0, bias=False)`. If rounding made
            a value larger than 1 in size, it counts as 1.
        margin: angle in radians, in [0, pi].
        scale: factor on the cosines, > 0.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Degenerate cases: at a cosine of exactly 1 or -1 the angle has no derivative. There we use the gradient of
    cos(margin) c, which is finite.

    Paper: Deng et al. 2019; continued beyond theta = pi - margin, so that it keeps decreasing.
    Tests: tests/losses/test_arc_margin.py::test_arc_margin_is_arcface

    Example:
        >>> import torch
        >>> arc_margin(torch.tensor([[0.8, 0.1, -0.3]]), torch.tensor([0]), scale=4.0)
        tensor(0.2940)
    """
    check_range("margin", margin, 0.0, math.pi)
    check_range("scale", scale, 0.0, open_low=True)
    problem = read(cosines, target, weight=weight, ignore_index=ignore_index, reduction=reduction, name="cosines")
    scores = scale * problem.logits
    return evaluate(problem, lambda at: at.cross_entropy(scores, scale * enlarge_angle(at(problem.logits), margin)))


def enlarge_angle(cosine: Tensor, margin: Tensor | float) -> Tensor:
    """The true cosine with its angle enlarged by the margin."""
    maths: Any = torch if isinstance(margin, Tensor) else math  # math would cut the gradient of a learnable margin
    cos_margin, sin_margin = maths.cos(margin), maths.sin(margin)
    inside = cosine.abs() < 1
    safe = torch.where(inside, cosine, 0.0)
    # Near 1, (1 - c)(1 + c) keeps the digits that 1 - c^2 loses. The slope of the square root is infinite only at 0.
    sine = torch.where(inside, ((1 - safe) * (1 + safe)).sqrt(), 0.0)
    clamped = torch.where(inside, cosine, cosine - (cosine - cosine.sign()).detach())
    enlarged = clamped * cos_margin - sine * sin_margin
    return torch.where(clamped >= -cos_margin, enlarged, clamped - margin * sin_margin)


@register("arc-margin")
class ArcMarginLoss(Loss):
    """`arc_margin` as a Module; `arc-margin` by name."""

    function = staticmethod(arc_margin)
    row_form = RowForm(Kind.ARC, lambda o, K: (o["scale"], math.cos(o["margin"]), math.sin(o["margin"]), o["margin"]))
    class_form = OthersForm(
        scale="scale",
        replaced=lambda scaled, norms, o: o["scale"] * enlarge_angle(scaled / o["scale"], o["margin"]),
        learnable=("margin", "scale"),
    )
    needed_head = NeededHead("normalized", {"scale": 1.0, "bias": False})  # the loss has a scale of its own
    learning_rate = 0.003
    scale: float

    def scores(self, logits: Tensor) -> Tensor:
        return self.scale * at_least_float32(logits)

    def probability_formula(self) -> str:
        return f"softmax({self.scale:g} z)"
