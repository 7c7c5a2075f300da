"""Contrastive losses (Zhou et al.): the profile phi that bounds them from below, argmin phi(t) + c|t|."""

import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lastlayer.theory._losses import Description, describe
from lastlayer.theory._scalar import bisect, check_count, check_positive, minimise

CONTRASTIVE = ("ce", "ls", "focal", "soft-margin", "max-margin", "batch-ce")


@dataclass(frozen=True)
class Phi:
    """The profile of a contrastive loss as a function of t; call it, or ask for its `derivative`."""

    name: str
    num_classes: int
    temperature: float = 1.0
    label_smoothing: float = 0.0
    gamma: float = 0.0
    margin: float = 0.0

    @overload
    def __call__(self, t: float) -> float: ...
    @overload
    def __call__(self, t: Tensor) -> Tensor: ...
    def __call__(self, t: float | Tensor) -> float | Tensor:
        """phi(t), a float for a float and a tensor of the same shape for a tensor."""
        if isinstance(t, Tensor):
            return self._value(t)
        return float(self._value(torch.tensor(float(t), dtype=torch.float64)))

    @overload
    def derivative(self, t: float) -> float: ...
    @overload
    def derivative(self, t: Tensor) -> Tensor: ...
    def derivative(self, t: float | Tensor) -> float | Tensor:
        """phi'(t); at the kink of the max-margin profile, the slope on its right."""
        if isinstance(t, Tensor):
            return self._slope(t)
        return float(self._slope(torch.tensor(float(t), dtype=torch.float64)))

    def _exponent(self, t: Tensor) -> Tensor:
        others = self.num_classes - 1
        return t / (others * self.temperature) + math.log(others) + self.margin

    def _value(self, t: Tensor) -> Tensor:
        if self.name == "max-margin":
            return F.relu(self.margin + t / (self.num_classes - 1))
        x = self._exponent(t)
        # F.softplus turns into the identity above its threshold, which costs digits in float64
        log_xi = torch.logaddexp(x, torch.zeros_like(x))
        linear = self.label_smoothing / (self.num_classes * self.temperature) * t
        return torch.exp(self.gamma * F.logsigmoid(x)) * log_xi - linear

    def _slope(self, t: Tensor) -> Tensor:
        others = self.num_classes - 1
        if self.name == "max-margin":
            return (t >= -others * self.margin).to(t.dtype) / others
        x = self._exponent(t)
        share = torch.sigmoid(x)  # 1 - p_y
        power = torch.exp(self.gamma * F.logsigmoid(x))
        steep = power * (self.gamma * torch.sigmoid(-x) * torch.logaddexp(x, torch.zeros_like(x)) + share)
        return (steep / others - self.label_smoothing / self.num_classes) / self.temperature


def phi(loss: str | nn.Module | Description, K: int) -> Phi:
    r"""The profile phi of a contrastive loss: L(z, k) >= phi(t), t = sum_{j != k} (z_j - z_k), equality at equal
    false logits.

    With x = log(K-1) + t/(K-1), the formulas are softplus(x) for cross-entropy, softplus(x) - (alpha/K) t for label
    smoothing, sigmoid(x)^gamma softplus(x) for focal loss, softplus(x + m) for the soft margin and max(0, m + t/(K-1))
    for the maximum margin. A temperature T replaces t by t/T. Batch cross-entropy has the profile of cross-entropy: the
    bound then holds for its value on a balanced batch, with t averaged over the samples.

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        K: number of classes, at least 2.

    Returns:
        A callable of t (float or tensor of any shape) with a `derivative`; stable for every finite t.

    Raises:
        ValueError: if the loss is not contrastive (mse and bce bound more than differences of logits).

    Paper: 001, Definition 1 and Appendix B.

    Example:
        >>> round(phi("ce", 10)(0.0), 6)    # all logits equal: log K
        2.302585
        >>> round(phi("ls", 10).derivative(0.0), 6)    # (1 - alpha) / K
        0.09
    """
    check_count("K", K)
    described = describe(loss)
    if described.name in ("ce", "ls"):
        smoothing = described.number("label_smoothing")
        return Phi("ce", K, temperature=described.number("temperature"), label_smoothing=smoothing)
    if described.name == "batch-ce":
        return Phi("ce", K)
    if described.name == "focal":
        return Phi("focal", K, gamma=described.number("gamma"))
    if described.name in ("soft-margin", "max-margin"):
        return Phi(described.name, K, margin=described.number("margin"))
    raise ValueError(f"loss {described.name!r} has no contrastive profile; those with one are {', '.join(CONTRASTIVE)}")


@dataclass(frozen=True)
class Minimisers:
    """All local minima of phi(t) + c|t|: the global one first, then the spurious ones.

    Attributes:
        t: the global minimiser, <= 0; the one away from 0 where two tie.
        value: phi(t) + c|t|.
        spurious: the other local minimisers.
        spurious_values: their values.
        tie: whether a spurious minimum is as low as the global one, to 1e-9 of the value.
    """

    t: float
    value: float
    spurious: tuple[float, ...]
    spurious_values: tuple[float, ...]
    tie: bool


def _stationary(profile: Phi, c: float) -> list[float]:
    """Local minimisers of phi(t) + c|t| below 0 for focal loss, by a scan of the slope in x and bisection."""
    others = profile.num_classes - 1

    def slope(x: float) -> float:
        return profile.derivative((x - math.log(others)) * others) - c

    # The slope of phi falls like e^((gamma + 1) x): far enough to the left it is below every c, and a step of 1/64 in x
    # resolves the single hump of sigmoid(x)^gamma (gamma sigmoid(-x) softplus(x) + sigmoid(x)).
    right = math.log(others)
    left = min(right, (math.log(c) + math.log(others) - 4.0) / (1.0 + profile.gamma), -4.0) - 8.0
    count = max(64, math.ceil((right - left) * 64))
    grid = torch.linspace(left, right, count + 1, dtype=torch.float64)
    signs = profile.derivative((grid - math.log(others)) * others) - c
    rising = torch.nonzero((signs[:-1] < 0) & (signs[1:] >= 0)).flatten().tolist()
    return [(bisect(slope, float(grid[i]), float(grid[i + 1])) - math.log(others)) * others for i in rising]


def minimisers(loss: str | nn.Module | Description, K: int, c: float) -> Minimisers:
    r"""Every local minimum of phi(t) + c|t|, found by a global search where the profile is not convex.

    Convex profiles have one minimum. Focal loss with many classes has a second one at t = 0: both exist for a range
    of c, and at one c (`tie_level`) they are equally low, so the uniqueness that Definition 1 of 001 asks for fails
    there.

    Args:
        loss: a contrastive loss, by create name or Module.
        K: number of classes.
        c: weight of |t|, above 0; c = sqrt(n lambda_w lambda_h) in the unconstrained feature model.

    Returns:
        Minimisers: the global minimum and the spurious ones.

    Paper: 001, Definition 1 and Theorem 1.

    Example:
        >>> found = minimisers("focal", 100, 0.0114)    # decided away from 0, yet 0 is a local minimum
        >>> round(found.value, 3), found.spurious, round(found.spurious_values[0], 3)
        (4.382, (0.0,), 4.468)
    """
    check_positive(c=c)
    profile = phi(loss, K)
    if profile.name == "max-margin":
        # the slope is 1/(K-1) until the margin is met and 0 beyond
        candidates = [-(K - 1) * profile.margin if c <= 1.0 / (K - 1) else 0.0]
    elif profile.name == "focal" and profile.gamma > 0:
        candidates = _stationary(profile, c)
        if profile.derivative(0.0) <= c:
            candidates.append(0.0)
    else:
        candidates = [_convex(profile, c)]
    values = {t: profile(t) + c * abs(t) for t in candidates}
    order = sorted(values, key=lambda t: (values[t], t))
    best, rest = order[0], tuple(order[1:])
    close = [t for t in rest if values[t] - values[best] <= 1e-9 * max(1.0, values[best])]
    if close and min(close) < best:
        best = min(close)
        rest = tuple(t for t in order if t != best)
    return Minimisers(best, values[best], rest, tuple(values[t] for t in rest), bool(close))


def _convex(profile: Phi, c: float) -> float:
    """argmin of softplus(log(K-1) + t/((K-1)T) + m) - alpha t/(K T) + c|t| in closed form."""
    K, T = profile.num_classes, profile.temperature
    level = c * T + profile.label_smoothing / K  # the slope in t/T at which the penalty balances
    if level * (K - 1) >= 1.0:
        return 0.0
    t = (K - 1) * (math.log(level) - math.log1p(-(K - 1) * level) - profile.margin)
    return min(t, 0.0) * T


def minimiser(loss: str | nn.Module | Description, K: int, c: float) -> float:
    r"""The global minimiser t* <= 0 of phi(t) + c|t|.

    Cross-entropy: t* = -(K-1) log(1/c - (K-1)) if c < 1/K, else 0. Label smoothing: c + alpha/K in place of c, and
    0 from c = (1 - alpha)/K on. Focal loss: no closed form, the lowest of all local minima (`minimisers`); where two
    tie, the one away from 0.

    Args:
        loss: a contrastive loss, by create name or Module.
        K: number of classes.
        c: weight of |t|, above 0.

    Returns:
        t* as a float; rho = t*/(K-1) is minus the gap between the true and the false logits.

    Paper: 001, Definition 1; the closed forms follow from phi'(t) = c.

    Example:
        >>> round(minimiser("ce", 10, 0.01), 6)
        -40.597736
        >>> minimiser("ce", 10, 0.1)
        0.0
    """
    return minimisers(loss, K, c).t


def tie_level(K: int, gamma: float = 3.0) -> float | None:
    r"""The one c at which focal loss has two equally low minima of phi(t) + c|t|, or None where phi is convex at 0.

    The tie exists iff phi is concave at t = 0, which needs many classes (K >= 18 for gamma = 2 and 3). Below this c the
    minimum is away from 0, above it at 0: the optimal features jump instead of shrinking continuously.

    Args:
        K: number of classes.
        gamma: focal exponent, above 0.

    Returns:
        c, or None.

    Paper: 001, Definition 1 demands uniqueness for every c > 0; this is where it fails.

    Example:
        >>> round(tie_level(100), 6)
        0.011752
        >>> tie_level(10) is None
        True
    """
    check_count("K", K)
    check_positive(gamma=gamma)
    profile = Phi("focal", K, gamma=gamma)
    others = K - 1
    at_zero = profile(0.0)

    # A tie is a common tangent from (0, phi(0)): c is the steepest chord, the largest (phi(0) - phi(t)) / |t|.
    def chord(x: float) -> float:
        t = (x - math.log(others)) * others
        return (profile(t) - at_zero) / -t if t < 0 else 0.0

    x = minimise(chord, math.log(others) - 40.0, math.log(others) - 1e-9, points=4000)
    c = -chord(x)
    # where phi is convex at 0 the steepest chord is the tangent at 0 itself
    return c if c > profile.derivative(0.0) * (1.0 + 1e-9) and x < math.log(others) - 1e-3 else None


def sphere_maximum(K: int) -> float:
    r"""The largest -t = (K-1) z_k - sum_{j != k} z_j over unit vectors z: sqrt(K (K-1)).

    Reached at z_k = sqrt((K-1)/K), z_j = -1/sqrt(K(K-1)), the direction that every contrastive loss prefers.

    Args:
        K: number of classes.

    Paper: 001, Section 3.

    Example:
        >>> round(sphere_maximum(2), 6)
        1.414214
    """
    check_count("K", K)
    return math.sqrt(K * (K - 1))
