"""L-BFGS on many starting points at once: every start has its own history and its own line search."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]  # points (S, P) -> values (S,), gradients (S, P)


@dataclass
class Minimum:
    """Where each start ended."""

    points: Tensor  # (S, P)
    values: Tensor  # (S,)
    gradients: Tensor  # (S, P)
    iterations: Tensor  # (S,)


def join(parts: list[Minimum]) -> Minimum:
    """The results of several groups of starts as one."""
    return Minimum(
        torch.cat([part.points for part in parts]),
        torch.cat([part.values for part in parts]),
        torch.cat([part.gradients for part in parts]),
        torch.cat([part.iterations for part in parts]),
    )


class _History:
    """The last pairs (step, change of gradient) of every start with the Gram matrix of all of them and the gradient.

    The two-loop recursion then runs on coefficients: two passes over the memory an iteration instead of four, and
    the passes are matrix products.
    """

    def __init__(self, starts: int, size: int, memory: int, like: Tensor) -> None:
        self.memory = memory
        self.vectors = like.new_zeros(starts, 2 * memory, size)  # steps, then changes of gradient
        self.gram = like.new_zeros(starts, 2 * memory + 1, 2 * memory + 1)
        self.inverse = like.new_zeros(starts, memory)  # 1/(s.y), 0 for an empty or rejected slot
        self.scale = like.new_ones(starts)
        self.age: list[int] = []

    def keep(self, rows: Tensor) -> None:
        self.vectors, self.gram = self.vectors[rows], self.gram[rows]
        self.inverse, self.scale = self.inverse[rows], self.scale[rows]

    def add(self, step: Tensor, change: Tensor, gradient: Tensor) -> None:
        m = self.memory
        slot = self.age.pop(0) if len(self.age) == m else len(self.age)
        self.age.append(slot)
        self.vectors[:, slot], self.vectors[:, m + slot] = step, change
        pair = self.vectors @ self.vectors[:, slot::m].mT  # (S, 2m, 2), a view of the new pair: nothing is copied
        pull = (self.vectors @ gradient.unsqueeze(2)).squeeze(2)  # (S, 2m)
        for dots, position in ((pair[:, :, 0], slot), (pair[:, :, 1], m + slot), (pull, 2 * m)):
            self.gram[:, : 2 * m, position] = dots
            self.gram[:, position, : 2 * m] = dots
        self.gram[:, 2 * m, 2 * m] = torch.linalg.vecdot(gradient, gradient)
        curvature, length = pair[:, slot, 1], pair[:, m + slot, 1]
        # a pair without positive curvature would make the metric indefinite: it is kept out, its slot counts as empty
        usable = curvature > 1e-14 * (pair[:, slot, 0] * length).sqrt()
        self.inverse[:, slot] = torch.where(usable, 1.0 / curvature, 0.0)
        self.scale = torch.where(usable, curvature / length, self.scale)

    def direction(self, gradient: Tensor) -> Tensor:
        m = self.memory
        weights = gradient.new_zeros(len(gradient), 2 * m + 1)
        weights[:, 2 * m] = 1.0
        alphas: dict[int, Tensor] = {}
        for slot in reversed(self.age):
            alphas[slot] = self.inverse[:, slot] * (weights * self.gram[:, :, slot]).sum(1)
            weights[:, m + slot] -= alphas[slot]
        weights = weights * self.scale.unsqueeze(1)
        for slot in self.age:
            beta = self.inverse[:, slot] * (weights * self.gram[:, :, m + slot]).sum(1)
            weights[:, slot] += torch.where(self.inverse[:, slot] != 0, alphas[slot] - beta, 0.0)
        combined = (weights[:, None, : 2 * m] @ self.vectors).squeeze(1)
        return -(combined + weights[:, 2 * m :] * gradient)


def _line_search(
    evaluate: Evaluate, points: Tensor, values: Tensor, slopes: Tensor, direction: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weak Wolfe steps by bracketing and bisection, one per start: new points, values, gradients and whether it worked.

    Near a minimum the decrease drowns in rounding; there a step counts as a decrease if the slope has shrunk enough
    (the approximate Wolfe condition of Hager and Zhang).
    """
    size = first.clone()
    low, high = torch.zeros_like(size), torch.full_like(size, torch.inf)
    worked = torch.zeros_like(values, dtype=torch.bool)
    new: tuple[Tensor, Tensor, Tensor] | None = None
    pending = torch.arange(len(points))
    for _ in range(25):
        everything = len(pending) == len(points)  # the usual case, in which no rows need to be copied out
        towards = direction if everything else direction[pending]
        trial = torch.addcmul(points if everything else points[pending], size[pending].unsqueeze(1), towards)
        value, gradient = evaluate(trial)
        slope = torch.linalg.vecdot(gradient, towards)
        start, descent, length = values[pending], slopes[pending], size[pending]
        noise = 1e-14 * (1.0 + start.abs())
        lower = value <= start + 1e-4 * length * descent
        flat = (value <= start + noise) & (slope.abs() <= 0.9 * descent.abs())
        falls = lower | flat
        steep = slope < 0.9 * descent  # still falling about as fast as at the start: go further
        fine = falls & ~steep
        taken = pending[fine]
        worked[taken] = True
        if new is None:
            new = (trial, value, gradient)
        else:
            for kept, update in zip(new, (trial, value, gradient), strict=True):
                kept[taken] = update[fine]
        high[pending[~falls]] = size[pending[~falls]]
        low[pending[falls & steep]] = size[pending[falls & steep]]
        pending = pending[~fine]
        if len(pending) == 0:
            break
        bounded = torch.isfinite(high[pending])
        size[pending] = torch.where(bounded, 0.5 * (low[pending] + high[pending]), 2.0 * size[pending])
    assert new is not None
    return *new, worked


def minimise(
    evaluate: Evaluate,
    points: Tensor,
    *,
    norm: Callable[[Tensor, Tensor], Tensor],
    tolerance: float,
    max_iterations: int,
    memory: int,
    patience: int = 100,
) -> Minimum:
    """Minimise from every row of points until norm(points, gradients) <= tolerance, no step helps, or the limit.

    A start whose line search fails forgets its history once; if steepest descent fails too, it has gone as far as
    float64 allows (or sits at a kink). So has one whose value fell by less than 1e-7 of itself over `patience`
    iterations while its gradient did not shrink: there is no minimum with a gradient nearby.
    """
    found = Minimum(points.clone(), *evaluate(points), torch.zeros(len(points), dtype=torch.int64))
    x, f, g = found.points.clone(), found.values.clone(), found.gradients.clone()
    active = torch.arange(len(points))
    history = _History(len(points), points.shape[1], memory, points)
    failures = torch.zeros(len(points), dtype=torch.int64)
    checked_value, checked_norm = f.clone(), torch.full_like(f, torch.inf)
    for count in range(max_iterations + 1):
        size = norm(x, g)
        done = (size <= tolerance) | (failures >= 2)
        if count % patience == 0 and count > 0:
            done |= (checked_value - f <= 1e-7 * f.abs()) & (size >= 0.5 * checked_norm)
            checked_value, checked_norm = f.clone(), size
        if count == max_iterations:
            done[:] = True
        if done.any():
            rows = active[done]
            found.points[rows], found.values[rows], found.gradients[rows] = x[done], f[done], g[done]
            found.iterations[rows] = count
            keep = ~done
            if not keep.any():
                break
            history.keep(keep)
            active, x, f, g, failures = active[keep], x[keep], f[keep], g[keep], failures[keep]
            checked_value, checked_norm = checked_value[keep], checked_norm[keep]
        direction, slope, first = _direction(history, g)
        new_x, new_f, new_g, worked = _line_search(evaluate, x, f, slope, direction, first)
        failures = torch.where(worked, 0, failures + 1)
        if not worked.all():
            new_x[~worked], new_f[~worked], new_g[~worked] = x[~worked], f[~worked], g[~worked]
        history.add(new_x - x, new_g - g, new_g)
        history.inverse[~worked] = 0.0
        x, f, g = new_x, new_f, new_g
    return found


def _direction(history: _History, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where to go, the slope there, and the first step to try: steepest descent where the history is of no use."""
    length = torch.linalg.vector_norm(g, dim=1)
    direction = history.direction(g)
    slope = torch.linalg.vecdot(direction, g)
    steepest = (history.inverse == 0).all(1)
    steepest |= slope > -1e-12 * length * torch.linalg.vector_norm(direction, dim=1)
    if steepest.any():
        direction[steepest] = -g[steepest]
        slope = torch.where(steepest, -length.square(), slope)
    first = torch.where(steepest, (1.0 / length).clamp(max=1.0), torch.ones_like(length))
    return direction, slope, first
