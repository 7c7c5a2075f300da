"""Least-squares fits of steps against the scale: a/x + c, a e^(b x) + c, a x^b + c."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lastlayer.theory._scalar import minimise


@dataclass(frozen=True)
class Fit:
    """A fitted curve; call it with x.

    Attributes:
        kind: "inverse", "exponential" or "power".
        a, b, c: its constants; b is -1 for the inverse.
        r2: share of the variance explained.
        aic: Akaike's criterion for Gaussian errors, N log(RSS/N) + 2 (number of constants + 1); lower is better.
    """

    kind: str
    a: float
    b: float
    c: float
    r2: float
    aic: float

    def __call__(self, x: float) -> float:
        """The fitted value at x."""
        shape = math.exp(self.b * x) if self.kind == "exponential" else x**self.b
        return self.a * shape + self.c


def _data(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, least: int) -> tuple[Tensor, Tensor]:
    xs, ys = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in (x, y))
    if xs.shape != ys.shape:
        raise ValueError(f"x and y must have the same length, got {xs.numel()} and {ys.numel()}")
    different = len(set(xs.tolist()))
    if different < least:
        raise ValueError(f"the fit needs at least {least} different x, got {different}")
    if not (torch.isfinite(xs).all() and torch.isfinite(ys).all()):
        raise ValueError("x and y must be finite; leave out the scales that did not collapse")
    return xs, ys


def _linear(shape: Tensor, y: Tensor) -> tuple[float, float, float]:
    """Least squares a * shape + c with its residual sum of squares; centred, so that no digits are lost to c."""
    centred = shape - shape.mean()
    spread = float(centred @ centred)
    a = float(centred @ (y - y.mean())) / spread if spread > 0 else 0.0
    c = float(y.mean()) - a * float(shape.mean())
    return a, c, float(((y - a * shape - c) ** 2).sum())


def _finish(kind: str, b: float, shape: Tensor, y: Tensor, constants: int) -> Fit:
    a, c, rss = _linear(shape, y)
    total = float(((y - y.mean()) ** 2).sum())
    size = len(y)
    aic = size * math.log(max(rss, 1e-300) / size) + 2.0 * (constants + 1)
    return Fit(kind, a, b, c, 1.0 - rss / total if total > 0 else 1.0, aic)


def _search(shape: Callable[[float], Tensor], low: float, high: float, y: Tensor) -> float:
    """Variable projection: for every b the best a and c are linear, so only b is searched."""
    return minimise(lambda b: _linear(shape(b), y)[2], low, high, points=300)


def fit_inverse(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor) -> Fit:
    r"""Least-squares fit of y = a/x + c.

    Args:
        x: scales, not 0.
        y: steps to collapse.

    Returns:
        Fit with b = -1.

    Paper: 003, Equation 218.

    Example:
        >>> fit = fit_inverse([1.0, 2.0, 4.0], [5.0, 3.0, 2.0])
        >>> round(fit.a, 6), round(fit.c, 6)
        (4.0, 1.0)
    """
    xs, ys = _data(x, y, 2)
    if (xs == 0).any():
        raise ValueError("x must not contain 0")
    return _finish("inverse", -1.0, 1.0 / xs, ys, 2)


def fit_exponential(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, *, limit: float = 40.0) -> Fit:
    r"""Least-squares fit of y = a e^{b x} + c by variable projection.

    Args:
        x: scales.
        y: steps to collapse.
        limit: b is searched in (0, limit / (max x - min x)]; growth only.

    Returns:
        Fit. Data on a straight line drives b to the lower end of the range, where the curve is a line.

    Paper: 003, Equation 219.

    Example:
        >>> xs = [1.0, 2.0, 3.0, 4.0]
        >>> fit = fit_exponential(xs, [2.0 * math.exp(0.5 * x) - 1.0 for x in xs])
        >>> round(fit.a, 4), round(fit.b, 4), round(fit.c, 4)
        (2.0, 0.5, -1.0)
    """
    xs, ys = _data(x, y, 3)
    spread, top = float(xs.max() - xs.min()), float(xs.max())

    def shape(b: float) -> Tensor:
        return torch.exp(b * (xs - top))  # in (0, 1]; e^(b x) itself would overflow for a large b

    b = _search(shape, 1e-4 / spread, limit / spread, ys)
    fit = _finish("exponential", b, shape(b), ys, 3)
    return replace(fit, a=fit.a * math.exp(-b * top))


def fit_power(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, *, limit: float = 40.0) -> Fit:
    r"""Least-squares fit of y = a x^b + c with b > 0, the alternative that the exponential is compared with.

    Args:
        x: scales, above 0.
        y: steps to collapse.
        limit: largest b tried.

    Returns:
        Fit.

    Example:
        >>> fit = fit_power([1.0, 2.0, 3.0, 4.0], [3.0, 9.0, 19.0, 33.0])
        >>> round(fit.a, 4), round(fit.b, 4), round(fit.c, 4)
        (2.0, 2.0, 1.0)
    """
    xs, ys = _data(x, y, 3)
    if (xs <= 0).any():
        raise ValueError("x must be positive")
    top = float(xs.max())

    def shape(b: float) -> Tensor:
        return (xs / top) ** b

    b = _search(shape, 1e-4, limit, ys)
    fit = _finish("power", b, shape(b), ys, 3)
    return replace(fit, a=fit.a * top**-b)
