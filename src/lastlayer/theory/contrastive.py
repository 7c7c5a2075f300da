"""Contrastive losses (Zhou et al., 2022): the profile phi that bounds them from below, and the minima of phi(t) + c|t|.

Tests: tests/theory/test_contrastive.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lastlayer.theory.loss_theory import read
from lastlayer.theory.numbers import bisect, check_count, check_positive, minimise

__all__ = ["HingePhi", "Minimisers", "Phi", "minimiser", "minimisers", "phi", "sphere_maximum", "tie_level"]

_Number = TypeVar("_Number", float, Tensor)


@dataclass(frozen=True)
class Phi:
    r"""The profile of a contrastive loss, a function of t. Call it, or ask for its `derivative`.

    sigmoid(x)^gamma softplus(x) - (label_smoothing/K) t/T, where x = log(K-1) + t/((K-1) T) + margin and T is the
    temperature. A loss with another profile registers a subclass.
    """

    num_classes: int
    temperature: float = 1.0
    label_smoothing: float = 0.0
    gamma: float = 0.0
    margin: float = 0.0
    has_curvature: ClassVar[bool] = True  # whether phi has a second derivative everywhere

    def __call__(self, t: _Number) -> _Number:
        """phi(t): a float for a float, a tensor of the same shape for a tensor."""
        return _applied(self._value, t)

    def derivative(self, t: _Number) -> _Number:
        """phi'(t). At the kink of the max-margin profile, this is the slope on the right."""
        return _applied(self._slope, t)

    def local_minimisers(self, c: float) -> list[float]:
        """Where phi(t) + c|t| has local minima."""
        if self.gamma == 0:
            return [self._convex_minimiser(c)]
        return self._scanned_minimisers(c) + ([0.0] if self.derivative(0.0) <= c else [])

    def _exponent(self, t: Tensor) -> Tensor:
        others = self.num_classes - 1
        return t / (others * self.temperature) + math.log(others) + self.margin

    def _value(self, t: Tensor) -> Tensor:
        x = self._exponent(t)
        # F.softplus turns into the identity above its threshold, which costs digits in float64.
        log_xi = torch.logaddexp(x, torch.zeros_like(x))
        linear = self.label_smoothing / (self.num_classes * self.temperature) * t
        return torch.exp(self.gamma * F.logsigmoid(x)) * log_xi - linear

    def _slope(self, t: Tensor) -> Tensor:
        others = self.num_classes - 1
        x = self._exponent(t)
        share = torch.sigmoid(x)  # 1 - p_y
        power = torch.exp(self.gamma * F.logsigmoid(x))
        steep = power * (self.gamma * torch.sigmoid(-x) * torch.logaddexp(x, torch.zeros_like(x)) + share)
        return (steep / others - self.label_smoothing / self.num_classes) / self.temperature

    def _convex_minimiser(self, c: float) -> float:
        """argmin of softplus(log(K-1) + t/((K-1)T) + m) - alpha t/(K T) + c|t| in closed form."""
        K, T = self.num_classes, self.temperature
        level = c * T + self.label_smoothing / K  # the slope in t/T at which the penalty balances
        if level * (K - 1) >= 1.0:
            return 0.0
        t = (K - 1) * (math.log(level) - math.log1p(-(K - 1) * level) - self.margin)
        return min(t, 0.0) * T

    def _scanned_minimisers(self, c: float) -> list[float]:
        """Local minimisers below 0 for focal loss: a grid over x finds where the slope changes sign, then bisection."""
        others = self.num_classes - 1

        def slope(x: float) -> float:
            return self.derivative((x - math.log(others)) * others) - c

        # The slope of phi falls like e^((gamma + 1) x), so far enough to the left it is below every c. A step of 1/64
        # in x resolves the single hump of sigmoid(x)^gamma (gamma sigmoid(-x) softplus(x) + sigmoid(x)).
        right = math.log(others)
        left = min(right, (math.log(c) + math.log(others) - 4.0) / (1.0 + self.gamma), -4.0) - 8.0
        count = max(64, math.ceil((right - left) * 64))
        grid = torch.linspace(left, right, count + 1, dtype=torch.float64)
        signs = self.derivative((grid - math.log(others)) * others) - c
        rising = torch.nonzero((signs[:-1] < 0) & (signs[1:] >= 0)).flatten().tolist()
        return [(bisect(slope, float(grid[i]), float(grid[i + 1])) - math.log(others)) * others for i in rising]


def _applied(function: Callable[[Tensor], Tensor], t: _Number) -> _Number:
    if isinstance(t, Tensor):
        return function(t)
    return float(function(torch.tensor(float(t), dtype=torch.float64)))


class HingePhi(Phi):
    """The profile of the maximum margin: max(0, margin + t/(K-1)). It is piecewise linear."""

    has_curvature = False

    def local_minimisers(self, c: float) -> list[float]:
        """One minimiser: the slope is 1/(K-1) until the margin is met, and 0 beyond."""
        return [-(self.num_classes - 1) * self.margin if c <= 1.0 / (self.num_classes - 1) else 0.0]

    def _value(self, t: Tensor) -> Tensor:
        return F.relu(self.margin + t / (self.num_classes - 1))

    def _slope(self, t: Tensor) -> Tensor:
        others = self.num_classes - 1
        return (t >= -others * self.margin).to(t.dtype) / others


def phi(loss: str | nn.Module, K: int) -> Phi:
    r"""The profile phi of a contrastive loss, which bounds the loss from below.

    L(z, k) >= phi(t) with t = sum_{j != k} (z_j - z_k). The two are equal if all false logits are equal. With
    x = log(K-1) + t/(K-1), phi(t) is

    - ce: softplus(x)
    - ls: softplus(x) - (alpha/K) t
    - focal: sigmoid(x)^gamma softplus(x)
    - soft-margin: softplus(x + m)
    - max-margin: max(0, m + t/(K-1))
    - batch-ce: as ce. The bound holds for the value on a balanced batch, with t averaged over the samples.

    A temperature T replaces t by t/T.

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        K: number of classes, at least 2.

    Returns:
        A callable of t (a float, or a tensor of any shape) with a `derivative`. It is stable for every finite t.

    Raises:
        ValueError: if the loss is not contrastive, as mse and bce, which see more than differences of logits.

    Paper: 001, Definition 1 and Appendix B.
    Tests: tests/theory/test_contrastive.py::test_profile_bounds_the_loss_with_equality_at_equal_false_logits

    Example:
        >>> round(phi("ce", 10)(0.0), 6)    # all logits equal: log K
        2.302585
        >>> round(phi("ls", 10).derivative(0.0), 6)    # (1 - alpha) / K
        0.09
    """
    check_count("K", K)
    return read(loss).phi(K)


@dataclass(frozen=True)
class Minimisers:
    """All local minima of phi(t) + c|t|: the global one, and the spurious ones."""

    t: float  # the global minimiser, <= 0. If two tie, it is the one away from 0.
    value: float  # phi(t) + c|t|
    spurious: tuple[float, ...]  # the other local minimisers
    spurious_values: tuple[float, ...]  # their values
    tie: bool  # whether a spurious minimum is as low as the global one, to 1e-9 of the value


def minimisers(loss: str | nn.Module, K: int, c: float) -> Minimisers:
    r"""Every local minimum of phi(t) + c|t|, the global one first. If the profile is not convex, we search globally.

    Convex profiles have one minimum. Focal loss with many classes has a second one at t = 0 for a range of c. At one
    c (`tie_level`) both are equally low. Definition 1 of 001 asks for a unique minimum, which does not exist there.

    Args:
        loss: a contrastive loss, by create name or Module.
        K: number of classes, at least 2.
        c: weight of |t|, above 0. In the unconstrained feature model, c = sqrt(n lambda_w lambda_h).

    Paper: 001, Definition 1. The spurious minima are our own finding.
    Tests: tests/theory/test_contrastive.py::test_minimiser_by_global_search

    Example:
        >>> found = minimisers("focal", 100, 0.0114)    # the global minimum is away from 0, but 0 is a local one
        >>> round(found.value, 3), found.spurious, round(found.spurious_values[0], 3)
        (4.382, (0.0,), 4.468)
    """
    check_positive(c=c)
    profile = phi(loss, K)
    values = {t: profile(t) + c * abs(t) for t in profile.local_minimisers(c)}
    lowest = min(values.values())
    tied = [t for t in values if values[t] - lowest <= 1e-9 * max(1.0, lowest)]
    best = min(tied)
    rest = sorted((t for t in values if t != best), key=lambda t: (values[t], t))
    return Minimisers(best, values[best], tuple(rest), tuple(values[t] for t in rest), len(tied) > 1)


def minimiser(loss: str | nn.Module, K: int, c: float) -> float:
    r"""The global minimiser t* <= 0 of phi(t) + c|t|. The gap between the true and the false logits is -t*/(K-1).

    - ce: t* = -(K-1) log(1/c - (K-1)) if c < 1/K, else 0
    - ls: as ce, with c + alpha/K in place of c, and 0 if c >= (1 - alpha)/K
    - focal: no closed form. It is the lowest of all local minima (`minimisers`), or if two tie, the one away from 0.

    Args:
        loss, K, c: as in `minimisers`.

    Paper: 001, Definition 1. The closed forms follow from phi'(t) = c.
    Tests: tests/theory/test_contrastive.py::test_closed_forms_as_printed_in_their_correct_form

    Example:
        >>> round(minimiser("ce", 10, 0.01), 6)
        -40.597736
        >>> minimiser("ce", 10, 0.1)
        0.0
    """
    return minimisers(loss, K, c).t


def tie_level(K: int, gamma: float = 3.0) -> float | None:
    r"""The c at which focal loss has two equally low minima of phi(t) + c|t|, or None if phi is convex at 0.

    The tie exists if and only if phi is concave at t = 0, which needs many classes: K >= 18 for gamma = 2 and 3. Below
    this c the minimum is away from 0, above it at 0. So the optimal features do not shrink continuously, but jump.

    Args:
        K: number of classes, at least 2.
        gamma: focal exponent, above 0.

    Paper: 001, Definition 1 asks for uniqueness for every c > 0. It fails at this c.
    Tests: tests/theory/test_contrastive.py::test_focal_tie_contradicts_uniqueness

    Example:
        >>> round(tie_level(100), 6)
        0.011752
        >>> tie_level(10) is None
        True
    """
    check_count("K", K)
    check_positive(gamma=gamma)
    profile = Phi(K, gamma=gamma)
    others = K - 1
    at_zero = profile(0.0)

    # A tie is a common tangent from (0, phi(0)): c is the steepest chord, the largest (phi(0) - phi(t)) / |t|.
    def chord(x: float) -> float:
        t = (x - math.log(others)) * others
        return (profile(t) - at_zero) / -t if t < 0 else 0.0

    x = minimise(chord, math.log(others) - 40.0, math.log(others) - 1e-9, points=4000)
    c = -chord(x)
    # If phi is convex at 0, the steepest chord is the tangent at 0 itself.
    return c if c > profile.derivative(0.0) * (1.0 + 1e-9) and x < math.log(others) - 1e-3 else None


def sphere_maximum(K: int) -> float:
    r"""The largest -t = (K-1) z_k - sum_{j != k} z_j over unit vectors z: sqrt(K (K-1)).

    It is reached at z_k = sqrt((K-1)/K), z_j = -1/sqrt(K(K-1)). Every contrastive loss prefers this direction.

    Args:
        K: number of classes, at least 2.

    Paper: 001, Section 3.
    Tests: tests/theory/test_contrastive.py::test_sphere_maximum

    Example:
        >>> round(sphere_maximum(2), 6)
        1.414214
    """
    check_count("K", K)
    return math.sqrt(K * (K - 1))
