"""Gradient descent on free points under a linear classifier, for any loss, as in Figures 2 to 5 of the SLN paper.

Tests: tests/theory/test_dynamics.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer import geometry, losses
from lastlayer.theory.numbers import check_positive, threads_for

__all__ = ["Trajectory", "feature_step", "simulate"]


class _Head(nn.Module):
    """A linear head whose weight and bias are given tensors, not parameters."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = weight, bias, scale

    def forward(self, features: Tensor) -> Tensor:
        logits = features @ self.weight.mT
        logits = logits if self.scale == 1.0 else self.scale * logits
        return logits if self.bias is None else logits + self.bias


def loss_of_features(
    loss: Callable[[Tensor, Tensor], Tensor],
    features: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float = 1.0,
) -> Tensor:
    """The loss of the logits scale * W h + b. A loss that takes features and weight gets those."""
    head = _Head(weight, bias, scale)
    if isinstance(loss, losses.Loss):
        return loss.from_features(head, features, target)[0]
    return loss(head(features), target)


@dataclass(frozen=True)
class Trajectory:
    """T snapshots of a simulation. The first is from before any step, the last from after all steps."""

    steps: Tensor  # step of each snapshot, [T]
    points: Tensor  # [T, N, d]
    weight: Tensor  # [T, K, d]; all equal unless the classifier was trained
    bias: Tensor  # [T, K]
    loss: Tensor  # sum of the losses of all points, [T]
    target: Tensor  # labels, [N]

    @property
    def logits(self) -> Tensor:
        """Logits at each snapshot, [T, N, K]."""
        return self.points @ self.weight.mT + self.bias.unsqueeze(1)

    @property
    def ratio(self) -> Tensor:
        """`geometry.intra_inter_ratio` of the points at each snapshot, [T], float64; NaN if points are not finite."""
        undefined = torch.tensor(torch.nan, dtype=torch.float64, device=self.points.device)
        ratio = geometry.intra_inter_ratio
        return torch.stack([ratio(x, self.target) if x.isfinite().all() else undefined for x in self.points])


def simulate(
    loss: str | nn.Module,
    points: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    lr: float = 0.1,
    train_weight: bool = False,
    steps: int = 6000,
    snapshots: int = 61,
) -> Trajectory:
    r"""Move points, and optionally the classifier, by gradient descent on the loss of their logits W x + b.

    Each point follows lr times the gradient of its own loss: x <- x - lr dL/dx. A trained classifier follows lr/N times
    the gradient of the sum: W <- W - (lr/N) sum dL/dW, and its bias likewise. All gradients are taken before the step.

    Args:
        loss: a create name, a loss Module, or any callable of (logits, target) that returns a sum over samples. The
            reduction of a Module does not matter, because each sample counts once. If a loss couples the batch, we
            take N times its value. `large-margin` has no bias. A name that needs class counts gets the target's.
        points: starting points, [N, d], at least one, any d. We compute in their dtype; float64 is recommended.
        target: labels, [N].
        weight: classifier rows, [K, d], K >= 2.
        bias: [K]. None is a bias of zero, which is not trained.
        lr: learning rate of the points.
        train_weight: whether the classifier moves too.
        steps: number of steps, at least 0.
        snapshots: how many states to keep, evenly spaced over the steps, at least 2, the first and the last among them.

    Raises:
        ValueError: for losses that do not fit free points: arc-margin takes cosines, and distillation needs a teacher.

    Paper: 000, Figures 2 to 5 (6000 steps, lr 0.1; the paper does not give the starting points, W and b).
    Tests: tests/theory/test_dynamics.py::test_one_step_by_hand_with_a_trained_classifier

    Example:
        >>> points = torch.tensor([[1.0, 0.5], [-1.0, 2.0]], dtype=torch.float64)
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
        >>> path = simulate("ce", points, torch.tensor([0, 1]), weight, steps=100)
        >>> path.points.shape, bool((path.points[:, :, 1] == points[:, 1]).all())    # nothing moves along the boundary
        (torch.Size([61, 2, 2]), True)
    """
    if points.ndim != 2 or weight.ndim != 2 or points.shape[1] != weight.shape[1]:
        raise ValueError(
            f"points must be [N, d] and weight [K, d], got {tuple(points.shape)} and {tuple(weight.shape)}"
        )
    if len(points) < 1 or len(weight) < 2:
        raise ValueError(f"at least one point and two classes are needed, got {len(points)} and {len(weight)}")
    if target.shape != points.shape[:1]:
        raise ValueError(f"target must be labels of shape [{len(points)}], got {tuple(target.shape)}")
    if steps < 0 or snapshots < 2:
        raise ValueError(f"steps must be at least 0 and snapshots at least 2, got {steps} and {snapshots}")
    check_positive(lr=lr)
    total = _total(loss, target, weight.shape[0], bias is not None)
    x = points.detach().clone()
    w = weight.detach().clone()
    b = x.new_zeros(weight.shape[0]) if bias is None else bias.detach().clone()
    moving = [x, w, b] if train_weight and bias is not None else [x, w] if train_weight else [x]
    wanted = set(torch.linspace(0, steps, min(snapshots, steps + 1), dtype=torch.float64).round().long().tolist())

    kept: list[tuple[Tensor, ...]] = []
    with threads_for(points.numel() + weight.numel()):
        for count in range(steps + 1):
            for tensor in moving:
                tensor.requires_grad_(True)
            value = total(x, w, b)
            gradients = torch.autograd.grad(value, moving) if count < steps else ()
            for tensor in moving:
                tensor.requires_grad_(False)
            if count in wanted:
                kept.append((torch.tensor(count), x.clone(), w.clone(), b.clone(), value.detach()))
            for index, (tensor, gradient) in enumerate(zip(moving, gradients, strict=False)):
                tensor -= (lr if index == 0 else lr / len(points)) * gradient
    times, xs, ws, bs, values = (torch.stack(column) for column in zip(*kept, strict=True))
    return Trajectory(times, xs, ws, bs, values, target)


def _total(
    loss: str | Callable[[Tensor, Tensor], Tensor], target: Tensor, K: int, bias: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The loss summed over all samples as a function of points, classifier and bias."""
    made = losses.create_for(torch.bincount(target, minlength=K), loss) if isinstance(loss, str) else loss
    if isinstance(made, losses.Loss):
        name = losses.name_of(made)
        if made.needs_teacher:
            raise ValueError(f"{name} needs a teacher, which free points do not have")
        if "cosines" in made.takes:
            raise ValueError(f"{name} takes cosines, which free points do not have")
        if "weight" in made.takes and bias:
            raise ValueError(f"{name} has no bias; leave it out")

    def total(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        value = loss_of_features(made, x, target, w, b)
        if not isinstance(made, nn.Module):
            return value
        return len(x) * value if getattr(made, "reduction", "mean") == "mean" else value.sum()

    return total


def feature_step(jacobian: Tensor, gradient: Tensor, lr: float) -> Tensor:
    r"""First-order change of one sample's features in a gradient step of the network: -lr J J' dL/dy.

    J J' is positive semidefinite, so the step never points away from -dL/dy: their inner product is at least 0, and
    their angle is at most 90 degrees. It can be 90 degrees, because J J' may map the gradient to 0.

    Args:
        jacobian: J = dy/dtheta, [d, p].
        gradient: dL/dy, [d].
        lr: learning rate.

    Returns:
        [d], exact up to terms of second order in lr, for a batch of one sample. Other samples would add cross terms.

    Paper: 000, Appendix C.3.
    Tests: tests/theory/test_dynamics.py::test_feature_step_of_a_network

    Example:
        >>> feature_step(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 1.0]), 0.1)
        tensor([-0.1000, -0.4000])
    """
    return -lr * (jacobian @ (jacobian.mT @ gradient))
