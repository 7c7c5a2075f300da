"""Gradient descent on free points under a linear classifier (Figures 2 to 5 of the SLN paper), for any loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer import losses
from lastlayer.theory._losses import name_of
from lastlayer.theory._scalar import check_positive
from lastlayer.theory._threads import threads_for


@dataclass(frozen=True)
class Trajectory:
    """Snapshots of a simulation; T of them, the first before any step and the last after all.

    Attributes:
        steps: step of each snapshot, [T].
        points: [T, N, d].
        weight: [T, K, d]; constant unless the classifier was trained.
        bias: [T, K].
        loss: sum of the losses of all points, [T].
        target: labels, [N].
    """

    steps: Tensor
    points: Tensor
    weight: Tensor
    bias: Tensor
    loss: Tensor
    target: Tensor

    @property
    def logits(self) -> Tensor:
        """Logits at every snapshot, [T, N, K]."""
        return self.points @ self.weight.mT + self.bias.unsqueeze(1)

    @property
    def ratio(self) -> Tensor:
        """Mean distance to the own class mean over mean distance between class means, [T]."""
        labels = torch.unique(self.target)
        member = (self.target.unsqueeze(0) == labels.unsqueeze(1)).to(self.points.dtype)  # (K, N)
        means = member @ self.points / member.sum(1, keepdim=True)  # (T, K, d)
        own = means[:, torch.searchsorted(labels, self.target)]  # (T, N, d)
        intra = (self.points - own).norm(dim=2).mean(1)
        between = torch.cdist(means, means)
        pairs = len(labels) * (len(labels) - 1)
        ratio: Tensor = intra / (between.sum((1, 2)) / pairs)
        return ratio


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

    Every point follows lr times the gradient of its own loss: x <- x - lr dL/dx. A trained classifier follows lr/N
    times the gradient of the sum: W <- W - (lr/N) sum dL/dW, and its bias likewise, from the same old point.

    In two dimensions with fixed unit rows, cross-entropy moves points across the boundary alone, logit normalisation
    turns them around the point of zero logits (in discrete time the radius grows slowly), soft logit normalisation
    does both.

    Args:
        loss: a create name or a loss Module (its reduction is undone), or any callable of (logits, target) that
            returns a sum over samples. A loss of batch type counts N times its value; `large-margin` takes points and
            weight and so no bias; `logit-adjusted` by name takes the counts of the target.
        points: starting points, [N, d], at least one, any d; computed in their dtype, float64 recommended.
        target: labels, [N].
        weight: classifier rows, [K, d], K >= 2.
        bias: [K]; zero if None, and then not trained either.
        lr: learning rate of the points.
        train_weight: whether the classifier moves too.
        steps: number of steps, at least 0.
        snapshots: how many states to keep, evenly spaced over the steps, at least 2; the first and the last are
            always kept.

    Returns:
        Trajectory.

    Raises:
        ValueError: on wrong shapes or counts, and for the losses that have no such dynamics: arc-margin takes cosines,
            the distillation losses need a teacher.

    Paper: 000, Figures 2 to 5 (6000 steps, lr 0.1; the starting points, W and b are not given there).

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

    kept: list[tuple[int, Tensor, Tensor, Tensor, Tensor]] = []
    with threads_for(points.numel() + weight.numel()):
        for count in range(steps + 1):
            for tensor in moving:
                tensor.requires_grad_(True)
            value = total(x, w, b)
            gradients = torch.autograd.grad(value, moving) if count < steps else ()
            for tensor in moving:
                tensor.requires_grad_(False)
            if count in wanted:
                kept.append((count, x.clone(), w.clone(), b.clone(), value.detach()))
            for index, (tensor, gradient) in enumerate(zip(moving, gradients, strict=False)):
                tensor -= (lr if index == 0 else lr / len(points)) * gradient
    return Trajectory(
        torch.tensor([entry[0] for entry in kept]),
        torch.stack([entry[1] for entry in kept]),
        torch.stack([entry[2] for entry in kept]),
        torch.stack([entry[3] for entry in kept]),
        torch.stack([entry[4] for entry in kept]),
        target,
    )


def _total(
    loss: str | Callable[[Tensor, Tensor], Tensor], target: Tensor, K: int, bias: bool
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The loss summed over all samples as a function of points, classifier and bias."""
    if isinstance(loss, str):
        extra = {"counts": torch.bincount(target, minlength=K)} if loss == "logit-adjusted" else {}
        loss = losses.create(loss, num_classes=K, **extra)
    name = name_of(loss) if isinstance(loss, nn.Module) else None
    if getattr(loss, "needs_teacher", False):
        raise ValueError(f"{name} needs a teacher, which free points do not have")
    if name == "arc-margin":
        raise ValueError("arc-margin takes cosines, which free points do not have")
    if name == "large-margin" and bias:
        raise ValueError("large-margin has no bias; leave it out")
    function: Callable[..., Tensor] = loss

    def total(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        value = function(x, w, target) if name == "large-margin" else function(x @ w.T + b, target)
        if not isinstance(loss, nn.Module):
            return value
        return len(x) * value if getattr(loss, "reduction", "mean") == "mean" else value.sum()

    return total


def feature_step(jacobian: Tensor, gradient: Tensor, lr: float) -> Tensor:
    r"""First-order change of one sample's features in a gradient step of the network: -lr J J' dL/dy.

    J J' is positive semidefinite, so the step never points away from -dL/dy: their inner product is at least 0, and
    the angle at most 90 degrees (not less: J J' may annihilate the gradient).

    Args:
        jacobian: J = dy/dtheta, [d, p].
        gradient: dL/dy, [d].
        lr: learning rate.

    Returns:
        [d]; exact up to terms of second order in lr, for one sample alone (other samples of a batch add cross terms).

    Paper: 000, Appendix C.3.

    Example:
        >>> feature_step(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, 1.0]), 0.1)
        tensor([-0.1000, -0.4000])
    """
    return -lr * (jacobian @ (jacobian.mT @ gradient))
