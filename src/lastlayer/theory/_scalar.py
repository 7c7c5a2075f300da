"""Scalar numerics shared by the closed forms: stable logarithms, one-dimensional roots and minima, argument checks."""

import math
from collections.abc import Callable


def softplus(x: float) -> float:
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


def logaddexp(x: float, y: float) -> float:
    """log(e^x + e^y); either may be minus infinity."""
    high, low = max(x, y), min(x, y)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def exp(x: float) -> float:
    """e^x, infinity where a float overflows: a constant of a bound may be astronomical, and that is an answer."""
    return math.exp(x) if x < 709.0 else math.inf


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """Root of an increasing function between low and high, to the last bit that bisection can tell apart."""
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
    """Global minimiser of a function with few valleys: a grid finds the valley, golden section its bottom."""
    width = (high - low) / points
    best = min((low + i * width for i in range(points + 1)), key=f)
    refined = golden(f, max(low, best - width), min(high, best + width))
    return refined if f(refined) <= f(best) else best


def check_count(name: str, value: int, *, least: int = 2) -> None:
    """Raise unless a number of classes, samples or the like is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_positive(**values: float) -> None:
    """Raise unless every named value is finite and above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_nonnegative(**values: float) -> None:
    """Raise unless every named value is finite and at least 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_share(**values: float) -> None:
    """Raise unless every named value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must lie strictly between 0 and 1, got {value}")
