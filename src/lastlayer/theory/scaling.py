"""What the scale of a normalized head does to training: score changes, steps to collapse, and curves fitted to them.

In this model h and w_j have norm 1 and the scores are scale * w_j.h - b_j. Tests: tests/theory/test_scaling.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lastlayer.theory.loss_theory import read
from lastlayer.theory.numbers import check_count, check_positive, minimise, threads_for


def gradients(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    loss: str | nn.Module = "ce",
) -> tuple[Tensor, Tensor]:
    r"""Gradients of the mean loss of the scores scale * w_j.h_i - b_j with respect to the features and the classifier.

    Let g_ij = softmax_ij - [j = y_i] for cross-entropy, or sigmoid(z_ij) - [j = y_i] for binary cross-entropy. Then
    df/dh_i = (scale/N) sum_j g_ij w_j and df/dw_j = (scale/N) sum_i g_ij h_i.

    Args:
        features: [N, d].
        weight: classifier rows, [K, d].
        target: labels, [N].
        scale: the scale gamma.
        bias: [K], subtracted from the scores; None for zero.
        loss: "ce" or "bce", or such a loss Module.

    Returns:
        df/dh, [N, d], and df/dw, [K, d]. They ignore that the norms must stay 1.

    Paper: 003, Equations 208, 209, 214 and 215.
    Tests: tests/theory/test_scaling.py::test_step_against_an_actual_step

    Example:
        >>> h = torch.eye(2, dtype=torch.float64)
        >>> dh, dw = gradients(h, h, torch.tensor([0, 1]), scale=1.0)
        >>> dh[0]
        tensor([-0.1345,  0.1345], dtype=torch.float64)
    """
    scores = scale * features @ weight.T  # (N, K)
    if bias is not None:
        scores = scores - bias
    label = F.one_hot(target.long(), len(weight)).to(scores.dtype)
    residual = read(loss).on_spheres().residual(scores, label)
    factor = scale / len(target)
    return factor * residual @ weight, factor * residual.T @ features


def step(
    features: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    scale: float,
    lr: float,
    bias: Tensor | None = None,
    loss: str | nn.Module = "ce",
) -> Tensor:
    r"""Change of every unbiased score s_ij = scale * w_j.h_i in one gradient step, new minus old.

    -scale lr w_j.df/dh_i - scale lr df/dw_j.h_i + scale lr^2 df/dw_j.df/dh_i. As the scale goes to 0 this is
    O(scale^2), so the cosines move by O(scale) and the steps to collapse grow like 1/scale. If the scale grows, the
    biases are fixed and the critical condition holds, then the change decays exponentially at `decay_rate`.

    Args:
        features, weight, target, scale, bias, loss: as in `gradients`. In the paper all rows have norm 1.
        lr: learning rate eta of the mean loss.

    Returns:
        [N, K]. The paper's Equation 207 is old minus new. The step does not set norms back to 1.

    Paper: 003, Theorems 5 and 6.
    Tests: tests/theory/test_scaling.py::test_step_against_an_actual_step

    Example:
        >>> h = torch.eye(2, dtype=torch.float64)
        >>> step(h, h, torch.tensor([0, 1]), scale=1.0, lr=0.1)
        tensor([[ 0.0273, -0.0273],
                [-0.0273,  0.0273]], dtype=torch.float64)
    """
    d_features, d_weight = gradients(features, weight, target, scale=scale, bias=bias, loss=loss)
    first = d_features @ weight.T + features @ d_weight.T
    return scale * lr * (lr * d_features @ d_weight.T - first)


def decay_rate(cosines: Tensor, target: Tensor, *, loss: str | nn.Module = "ce") -> float:
    r"""The exponential rate at which the score change vanishes as the scale grows, for fixed biases.

    |step| = O(scale^2 e^{-rate scale}). For cross-entropy the rate is the smallest cos_iy - max_{j != y} cos_ij. For
    binary cross-entropy it is the smallest |cos_ij|, if all true cosines are positive and all false ones negative. If
    the rate is 0 or less, the critical condition (I for ce, II for bce) fails and nothing decays.

    Args:
        cosines: w_j.h_i for unit rows, [N, K].
        target, loss: as in `gradients`.

    Paper: 003, Theorems 5(2) and 6(2).
    Tests: tests/theory/test_scaling.py::test_step_is_quadratic_for_small_and_exponential_for_large_scales

    Example:
        >>> cosines = torch.tensor([[1.0, -0.5, -0.5]])
        >>> decay_rate(cosines, torch.tensor([0])), decay_rate(cosines, torch.tensor([0]), loss="bce")
        (1.5, 0.5)
    """
    true = F.one_hot(target.long(), cosines.shape[1]).bool()
    return read(loss).on_spheres().decay_rate(cosines[true], cosines.masked_fill(true, -math.inf).amax(1))


@dataclass(frozen=True)
class Collapse:
    """Steps until collapse, one row per start and one column per scale."""

    scales: Tensor  # the scales, [G]
    steps: Tensor  # gradient steps until the stopping rule held, [starts, G]; -1 if it did not within the limit
    bias_mean: Tensor  # mean bias at the end, [starts, G]

    def reached(self) -> tuple[Tensor, Tensor]:
        """The scales that collapsed from every start, and their median steps as float64, ready for a fit."""
        done = (self.steps >= 0).all(0)
        return self.scales[done], self.steps[:, done].to(torch.float64).median(0).values


def steps_to_collapse(
    loss: str | nn.Module,
    K: int,
    scales: Sequence[float] | Tensor,
    *,
    n: int = 2,
    d: int | None = None,
    tolerance: float = 0.0035,
    lr: float = 0.05,
    max_steps: int = 20_000,
    bias: float | None = 0.0,
    starts: int = 1,
    seed: int = 0,
) -> Collapse:
    r"""Gradient steps on spheres until |w_y.h - 1| <= t and |w_j.h + 1/(K-1)| <= t for all samples and classes.

    Features follow lr times the gradient of their own loss. Rows and biases follow lr times K times the gradient of
    the mean loss. After each step all norms are set back to 1. All scales start from the same random points and use
    the same tolerance. (The paper changes the tolerance at scale 5.)

    Args:
        loss: "ce" or "bce", or such a loss Module.
        K: number of classes, at least 2.
        scales: grid of scales, above 0.
        n, d: samples per class, and dimension, at least K - 1; K if None.
        tolerance: t of the stopping rule.
        lr: learning rate. Above about 4/scale^2 the first steps overshoot, and the counts become erratic.
        max_steps: give up after this many steps.
        bias: initial value of the trained biases; None for a model without bias.
        starts, seed: number of random starting points, and their seed.

    Paper: 003, Equation 217 and Appendix F, on the unconstrained sphere model instead of a network.
    Tests: tests/theory/test_scaling.py::test_small_scales_take_one_over_the_scale_only_up_to_three_classes

    Example:
        >>> found = steps_to_collapse("ce", 3, [0.5, 1.0, 2.0])
        >>> bool(found.steps[0, 0] > found.steps[0, 1] > 0)    # a smaller scale is slower
        True
    """
    residual_of = read(loss).on_spheres().residual
    check_count("K", K)
    check_count("n", n, least=1)
    check_count("starts", starts, least=1)
    check_positive(tolerance=tolerance, lr=lr)
    grid = torch.as_tensor(scales, dtype=torch.float64).flatten()
    if not (grid > 0).all():
        raise ValueError(f"scales must be positive, got {grid.min().item()}")
    dim = K if d is None else d
    if dim < K - 1:
        raise ValueError(f"d must be at least K - 1 = {K - 1}, or no simplex frame exists; got {dim}")

    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(starts, 1, K + n * K, dim, dtype=torch.float64, generator=generator)
    points = F.normalize(points, dim=3).expand(-1, len(grid), -1, -1).flatten(0, 1)  # (starts * G, K + N, d)
    weight, features = points[:, :K], points[:, K:]
    runs = len(points)
    biases = torch.full((runs, 1, K), 0.0 if bias is None else float(bias), dtype=torch.float64)
    label = F.one_hot(torch.arange(K).repeat(n), K).to(torch.float64)  # (N, K)
    ideal = label * (K / (K - 1)) - 1.0 / (K - 1)

    steps = torch.full((runs,), -1, dtype=torch.int64)
    bias_mean = torch.full((runs,), math.nan, dtype=torch.float64)
    active = torch.arange(runs)
    gamma = grid.repeat(starts).view(-1, 1, 1)
    with threads_for(points.numel()):
        for count in range(max_steps + 1):
            cosines = features @ weight.mT  # (runs, N, K)
            done = (cosines - ideal).abs().amax((1, 2)) <= tolerance
            if done.any():
                steps[active[done]] = count
                bias_mean[active[done]] = biases[done].mean((1, 2))
                keep = ~done
                active, gamma, cosines = active[keep], gamma[keep], cosines[keep]
                weight, features, biases = weight[keep], features[keep], biases[keep]
            if len(active) == 0:
                break
            scores = gamma * cosines - biases
            residual = residual_of(scores, label)
            pull = gamma * residual
            # Both gradients belong to the old point, so both are updated at once.
            features, weight = (
                F.normalize(features - lr * pull @ weight, dim=2),
                F.normalize(weight - (lr / n) * pull.mT @ features, dim=2),
            )
            if bias is not None:
                biases = biases + (lr / n) * residual.sum(1, keepdim=True)
    bias_mean[active] = biases.mean((1, 2))
    return Collapse(grid, steps.view(starts, -1), bias_mean.view(starts, -1))


def bias_threshold(K: int) -> float:
    r"""The scale above which BCE's optimal bias separates the scores: (1 - 1/K) log(2K - 3).

    For larger scales, and only for those, -scale/(K-1) < b* < scale. Then at collapse every true score is positive and
    every false one negative.

    Args:
        K: number of classes, at least 2; K = 2 gives 0.

    Paper: 003, Lemma 16, which states it for K > 2. It is true for K = 2 as well.
    Tests: tests/theory/test_scaling.py::test_lemma_16

    Example:
        >>> round(bias_threshold(10), 6)
        2.549892
    """
    check_count("K", K)
    return (1.0 - 1.0 / K) * math.log(2 * K - 3)


def optimal_bias_limit(K: int, scale: float) -> float:
    r"""What BCE's optimal bias approaches at a large scale: (scale (K-2)/(K-1) + log(K-1)) / 2.

    The paper's Lemma 21 fixes the bias. With the optimal one, BCE's residual decays with half the exponent of
    cross-entropy.

    Args:
        K: number of classes, at least 2.
        scale: the scale gamma.

    Paper: derived from 003, Theorem 2.
    Tests: tests/theory/test_scaling.py::test_large_scale_limits

    Example:
        >>> round(optimal_bias_limit(10, 64.0), 4)
        29.5431
    """
    check_count("K", K)
    return 0.5 * (scale * (K - 2) / (K - 1) + math.log(K - 1))


def predicted_exponent(loss: str | nn.Module, K: int, scale: float | None = None) -> float:
    r"""Exponent b with which the steps to collapse should grow like e^{b scale}: K/(K-1) for ce, K/(2(K-1)) for bce.

    Near collapse the loss's residual drives everything. It decays with this exponent (for BCE, at its optimal bias).
    The scores of cross-entropy move by scale^2 times the residual. At a finite scale this slows the growth, down to
    b - 2/scale. The slowest part of BCE is its trained bias. Its gradient has no factor of the scale, so its local
    exponent is b. For K = 10 the paper fits 0.87 and 0.52.

    Args:
        loss: "ce" or "bce", or such a loss Module.
        K: number of classes, at least 2.
        scale: the scale at which to give the lower end of the local exponent. None is the limit of large scales.

    Paper: 003, Equation 219; the prediction is derived from Theorems 1 and 2.
    Tests: tests/theory/test_scaling.py::test_large_scale_limits

    Example:
        >>> round(predicted_exponent("ce", 10), 3), round(predicted_exponent("bce", 10), 3)
        (1.111, 0.556)
    """
    check_count("K", K)
    return read(loss).on_spheres().exponent(K, scale)


def predicted_power(K: int) -> int:
    r"""Power p with which the steps of the sphere model should grow like scale^-p as the scale goes to 0.

    It is 1 for K <= 3, else 2. To first order in the scale, the loss is log K minus the scale times a linear function
    of the cosines. Every collapsed configuration with sum_k w_k = 0 minimises that. Two or three unit vectors that sum
    to zero are a simplex frame. Four or more need not be one: only the term of second order, scale^2, drives them to
    equal angles. So the paper's a/scale steps are true only for the first phase.

    Args:
        K: number of classes, at least 2.

    Paper: derived; compare 003, Theorems 5(1) and 6(1) and Equation 218.
    Tests: tests/theory/test_scaling.py::test_small_scales_take_one_over_the_scale_only_up_to_three_classes

    Example:
        >>> predicted_power(3), predicted_power(10)
        (1, 2)
    """
    check_count("K", K)
    return 1 if K <= 3 else 2


@dataclass(frozen=True)
class Fit:
    """A fitted curve. Call it with x."""

    kind: str  # "inverse" (a/x + c), "exponential" (a e^(b x) + c) or "power" (a x^b + c)
    a: float
    b: float  # -1 for the inverse
    c: float
    r2: float  # share of the variance that the curve explains
    aic: float  # Akaike's criterion for Gaussian errors, N log(RSS/N) + 2 (number of constants + 1). Lower is better.

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
    """a and c of least squares for a * shape + c, and the sum of squared residuals. Centring saves digits."""
    centred = shape - shape.mean()
    spread = float(centred @ centred)
    a = float(centred @ (y - y.mean())) / spread if spread > 0 else 0.0
    c = float(y.mean()) - a * float(shape.mean())
    return a, c, float(((y - a * shape - c) ** 2).sum())


def _fit(kind: str, y: Tensor, shape: Callable[[float], Tensor], low: float, high: float) -> Fit:
    """Variable projection: for each b the best a and c are linear, so only b is searched, from low to high."""
    b = minimise(lambda b: _linear(shape(b), y)[2], low, high, points=300) if low < high else low
    a, c, rss = _linear(shape(b), y)
    total = float(((y - y.mean()) ** 2).sum())
    size, constants = len(y), 3 if low < high else 2
    aic = size * math.log(max(rss, 1e-300) / size) + 2.0 * (constants + 1)
    return Fit(kind, a, b, c, 1.0 - rss / total if total > 0 else 1.0, aic)


def fit_inverse(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor) -> Fit:
    r"""Least-squares fit of y = a/x + c.

    Args:
        x: scales, not 0.
        y: steps to collapse.

    Paper: 003, Equation 218.
    Tests: tests/theory/test_scaling.py::test_published_inverse_fits

    Example:
        >>> fit = fit_inverse([1.0, 2.0, 4.0], [5.0, 3.0, 2.0])
        >>> round(fit.a, 6), round(fit.c, 6)
        (4.0, 1.0)
    """
    xs, ys = _data(x, y, 2)
    if (xs == 0).any():
        raise ValueError("x must not contain 0")
    return _fit("inverse", ys, lambda b: 1.0 / xs, -1.0, -1.0)


def fit_exponential(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, *, limit: float = 40.0) -> Fit:
    r"""Least-squares fit of y = a e^{b x} + c by variable projection.

    Args:
        x: scales.
        y: steps to collapse.
        limit: b is searched in (0, limit / (max x - min x)], so that the curve grows. If the data lie on a straight
            line, b ends at the lower end of this range, where the curve is a line.

    Paper: 003, Equation 219.
    Tests: tests/theory/test_scaling.py::test_published_exponential_fits

    Example:
        >>> xs = [1.0, 2.0, 3.0, 4.0]
        >>> fit = fit_exponential(xs, [2.0 * math.exp(0.5 * x) - 1.0 for x in xs])
        >>> round(fit.a, 4), round(fit.b, 4), round(fit.c, 4)
        (2.0, 0.5, -1.0)
    """
    xs, ys = _data(x, y, 3)
    spread, top = float(xs.max() - xs.min()), float(xs.max())
    # We fit e^(b (x - top)), which lies in (0, 1]. For a large b, e^(b x) would overflow.
    fit = _fit("exponential", ys, lambda b: torch.exp(b * (xs - top)), 1e-4 / spread, limit / spread)
    return replace(fit, a=fit.a * math.exp(-fit.b * top))


def fit_power(x: Sequence[float] | Tensor, y: Sequence[float] | Tensor, *, limit: float = 40.0) -> Fit:
    r"""Least-squares fit of y = a x^b + c with b > 0. The exponential fit is compared with this one.

    Args:
        x: scales, above 0.
        y: steps to collapse.
        limit: largest b tried.

    Paper: none; 003 fits only the exponential.
    Tests: tests/theory/test_scaling.py::test_fits_recover_their_own_curves

    Example:
        >>> fit = fit_power([1.0, 2.0, 3.0, 4.0], [3.0, 9.0, 19.0, 33.0])
        >>> round(fit.a, 4), round(fit.b, 4), round(fit.c, 4)
        (2.0, 2.0, 1.0)
    """
    xs, ys = _data(x, y, 3)
    if (xs <= 0).any():
        raise ValueError("x must be positive")
    top = float(xs.max())
    fit = _fit("power", ys, lambda b: (xs / top) ** b, 1e-4, limit)
    return replace(fit, a=fit.a * top**-fit.b)
