"""Numerics that know nothing of losses: checks, stable scalars, roots and minima, L-BFGS from many starts, threads.

Tests: tests/theory/test_numbers.py.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lastlayer._core.precision import threads

Item = TypeVar("Item")
Result = TypeVar("Result")
Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]  # points (S, P) -> values (S,), gradients (S, P)


def check_count(name: str, value: int, *, least: int = 2) -> None:
    """Raise an error unless a number of classes, samples or similar is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(**values: float) -> None:
    """Raise ValueError unless each named value is finite and above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_nonnegative(**values: float) -> None:
    """Raise ValueError unless each named value is finite and at least 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_share(limit: float = 1.0, /, **values: float) -> None:
    """Raise ValueError unless each named value lies strictly between 0 and the limit."""
    for name, value in values.items():
        if not 0.0 < value < limit:
            raise ValueError(f"{name} must lie strictly between 0 and {limit:.4g}, got {value}")


def log1pexp(x: float) -> float:
    """log(1 + e^x) without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    """1 / (1 + e^-x) without overflow."""
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))


def logit(p: float) -> float:
    """log(p / (1 - p)), infinite at 0 and 1."""
    if p <= 0.0:
        return -math.inf
    if p >= 1.0:
        return math.inf
    return math.log(p) - math.log1p(-p)


def exp(x: float) -> float:
    """e^x, or infinity if that is too large for a float, as constants of bounds may be."""
    return math.exp(x) if x < 709.0 else math.inf


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between low and high. Bisection goes on until no float lies in between."""
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle
        if f(middle) < 0:
            low = middle
        else:
            high = middle


def golden(f: Callable[[float], float], low: float, high: float, *, tolerance: float = 1e-12) -> float:
    """Minimiser of a unimodal function between low and high by golden-section search."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    f_left, f_right = f(left), f(right)
    while high - low > tolerance * (1.0 + abs(low) + abs(high)):
        if f_left <= f_right:
            high, right, f_right = right, left, f_left
            left = high - ratio * (high - low)
            f_left = f(left)
        else:
            low, left, f_left = left, right, f_right
            right = low + ratio * (high - low)
            f_right = f(right)
    return 0.5 * (low + high)


def minimise(f: Callable[[float], float], low: float, high: float, *, points: int = 400) -> float:
    """Global minimiser of a function with few valleys. A grid finds the lowest valley, and `golden` its bottom."""
    width = (high - low) / points
    best = min((low + i * width for i in range(points + 1)), key=f)
    refined = golden(f, max(low, best - width), min(high, best + width))
    return refined if f(refined) <= f(best) else best


def threads_for(entries: int) -> AbstractContextManager[None]:
    """Use one thread if a step touches too few entries for two to pay off. Afterwards restore the number of threads."""
    return threads(1 if entries < 500_000 else None)


def side_by_side(job: Callable[[Item], Result], items: Sequence[Item], entries: int) -> list[Result]:
    """Do a job for each item, where one step touches so many entries. The results have the order of the items.

    As many jobs run at once as torch has threads, each on one thread. Jobs on separate cores never wait for each other.
    Two threads inside one operation do, at every operation.
    """
    workers = min(torch.get_num_threads(), len(items))
    with threads_for(0 if workers > 1 else entries):
        if workers == 1:
            return [job(item) for item in items]
        # A new thread takes over the number of threads that was set last, which is one.
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(job, items))


class Ends(NamedTuple):
    """Where each start of L-BFGS ended."""

    points: Tensor  # (S, P)
    values: Tensor  # (S,)
    gradients: Tensor  # (S, P)
    iterations: Tensor  # (S,)


def join(parts: list[Ends]) -> Ends:
    """The results of several groups of starts as one."""
    return Ends(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _History:
    """The last pairs (step, change of gradient) of each start, and the Gram matrix of them all and the gradient.

    With the Gram matrix, the two-loop recursion runs on coefficients. Each iteration then passes over the memory twice
    instead of four times, and each pass is a matrix product.
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
        pair = self.vectors @ self.vectors[:, slot::m].mT  # (S, 2m, 2); the new pair is a view, nothing is copied
        pull = (self.vectors @ gradient.unsqueeze(2)).squeeze(2)  # (S, 2m)
        for dots, position in ((pair[:, :, 0], slot), (pair[:, :, 1], m + slot), (pull, 2 * m)):
            self.gram[:, : 2 * m, position] = dots
            self.gram[:, position, : 2 * m] = dots
        self.gram[:, 2 * m, 2 * m] = torch.linalg.vecdot(gradient, gradient)
        curvature, length = pair[:, slot, 1], pair[:, m + slot, 1]
        # A pair without positive curvature would make the metric indefinite. So its slot counts as empty.
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
    """One weak Wolfe step per start, by bracketing and bisection.

    Near a minimum the decrease is smaller than rounding errors. There a step counts as a decrease if the slope has
    shrunk enough (the approximate Wolfe condition of Hager and Zhang). Returns the new points, values and gradients,
    and for which starts the search worked.
    """
    size = first.clone()
    low, high = torch.zeros_like(size), torch.full_like(size, torch.inf)
    worked = torch.zeros_like(values, dtype=torch.bool)
    new: tuple[Tensor, Tensor, Tensor] | None = None
    pending = torch.arange(len(points))
    for _ in range(25):
        everything = len(pending) == len(points)  # the usual case: no rows need to be copied
        towards = direction if everything else direction[pending]
        trial = torch.addcmul(points if everything else points[pending], size[pending].unsqueeze(1), towards)
        value, gradient = evaluate(trial)
        slope = torch.linalg.vecdot(gradient, towards)
        start, descent, length = values[pending], slopes[pending], size[pending]
        noise = 1e-14 * (1.0 + start.abs())
        lower = value <= start + 1e-4 * length * descent
        flat = (value <= start + noise) & (slope.abs() <= 0.9 * descent.abs())
        falls = lower | flat
        steep = slope < 0.9 * descent  # still falls about as fast as at the start: go further
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


def lbfgs(
    evaluate: Evaluate,
    points: Tensor,
    *,
    norm: Callable[[Tensor, Tensor], Tensor],
    tolerance: float,
    max_iterations: int,
    memory: int,
    patience: int = 100,
) -> Ends:
    """Minimise from each row of points. Each start has its own history and its own line search.

    A start ends when norm(points, gradients) <= tolerance or at the limit of iterations. If its line search fails, it
    forgets its history and tries steepest descent. If that fails too, it ends: it is as low as float64 allows, or it
    is at a kink. It also ends if over `patience` iterations its value fell by less than 1e-7 of itself and its gradient
    did not shrink. Then no smooth minimum is near.
    """
    found = Ends(points.clone(), *evaluate(points), torch.zeros(len(points), dtype=torch.int64))
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
    """Direction, slope along it and first step to try. If the history is of no use, this is steepest descent."""
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
