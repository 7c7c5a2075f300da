"""What theory says in the paper on normalized spaces: minima, and times until collapse with the laws they follow."""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.claims import Verdict, all_of, exact, mean, of_interval
from lastlayer.papers.engine.store import NotRunError, Observations, Record
from lastlayer.papers.engine.table import published
from lastlayer.reports.statistics import bootstrap
from lastlayer.theory import UnconstrainedFeatures, scaling
from lastlayer.theory.minima import normalized_binary_cross_entropy, normalized_cross_entropy

Times = Mapping[float, Sequence[float]]  # by scale, one per seed

LOSSES = {"CE": "ce", "BCE": "bce"}
CLASSES = 10  # of MNIST, CIFAR-10 and the digits
SHIFTS = (-5.0, 1.0, 20.0)  # of a common bias
SMALL_RATE = 0.5  # of gradient descent below scale 1, where a step moves a cosine by at most rate times scale
LARGE_RATE = {"CE": 0.03, "BCE": 0.02}  # below 4 / scale^2 for every scale of the grid; more overshoots at first
SMALLEST = 0.4  # scales up to here are small, as in the fits of Eq. 218
TOLERANCES = (0.001, 0.0035, 0.01, 0.03, 0.1, 0.3)  # of Eq. 217
ENOUGH = 5  # scales for a fit, as many as the paper takes
LARGE = 5.0  # the scale from which on times grow exponentially
ALIKE = 2.0  # difference of AIC below which two curves are both supported, by common usage


class LogLoss(nn.Module):
    """Logarithm of the mean loss, from the logarithms of its terms. Its minimum is at the same place.

    At scale 64 the loss itself is flat to rounding near its minimum (BCE's is 5e-15 for ten classes). So the bias could
    not be found to six digits. The logarithm is not flat there.
    """

    def __init__(self, *, binary: bool) -> None:
        super().__init__()
        self.binary = binary

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The logarithm for logits (..., N, K) and labels (N,)."""
        label = F.one_hot(target, logits.shape[-1]).bool()  # (N, K)
        if self.binary:
            terms = torch.where(label, -logits, logits).flatten(-2)  # (..., N K)
        else:
            true = (logits * label).sum(-1, keepdim=True)
            terms = (logits - true).masked_fill(label, -math.inf).logsumexp(-1)  # (..., N)
        return log_softplus(terms).logsumexp(-1) - math.log(len(target))


def log_softplus(x: Tensor) -> Tensor:
    """log log(1 + e^x). For very small e^x it is x - e^x / 2."""
    low = x < -20
    return torch.where(low, x - 0.5 * x.clamp(max=-20).exp(), F.softplus(x.clamp(min=-20)).log())


def sphere_minima(classes: Sequence[int], scales: Sequence[float], starts: int) -> Iterator[Record]:
    """The numerical minimum of the sphere model against Theorems 1 and 2, from random starts.

    A row has the gap to the closed form, the relative gap, the largest error of a bias (BCE), and the largest relative
    change of the loss if a number is added to all biases.
    """
    for loss, K, scale in itertools.product(LOSSES, classes, scales):
        model = UnconstrainedFeatures(K, 2, K, LogLoss(binary=loss == "BCE"), normalized=True, scale=scale)
        found = model.solve(starts=starts, curvature=False)
        binary = normalized_binary_cross_entropy(K, scale)
        closed = normalized_cross_entropy(K, scale) if loss == "CE" else binary.loss
        shifted = [float(model.objective(found.weight, found.features, found.bias + by)) for by in SHIFTS]
        values = {
            "minimum.gap": abs(math.exp(found.loss) - closed),
            "minimum.relative_gap": abs(math.expm1(found.loss - math.log(closed))),
            "minimum.shift": max(abs(math.expm1(one - found.loss)) for one in shifted),
        }
        if loss == "BCE":
            values["minimum.bias_error"] = float((found.bias - binary.bias).abs().max())
        yield Record({"loss": loss, "classes": str(K), "gamma": f"{scale:g}"}, 0, 0, values)


def sphere_collapse(
    classes: Sequence[int],
    small: Sequence[float],
    large: Mapping[str, Sequence[float]],
    tolerance: float,
    starts: int,
    steps: int,
) -> Iterator[Record]:
    """Steps of gradient descent on spheres until Eq. 217 holds, with one tolerance for all scales.

    Small scales are run for each number of classes, because the growth towards 0 depends on it; large ones for the
    largest number only. A row has the steps, and the steps times the learning rate, because small and large scales have
    different rates. Both are infinite if the limit came first.
    """
    for (loss, name), K in itertools.product(LOSSES.items(), classes):
        ranges = [(small, SMALL_RATE), *([(large[loss], LARGE_RATE[loss])] if max(classes) == K else [])]
        for scales, lr in ranges:
            found = scaling.steps_to_collapse(
                name, K, scales, tolerance=tolerance, lr=lr, starts=starts, max_steps=steps
            )
            for seed, counts in enumerate(found.steps.tolist()):
                for scale, count in zip(scales, counts, strict=True):
                    taken = float(count) if count >= 0 else math.inf
                    labels = {"loss": loss, "classes": str(K), "gamma": f"{scale:g}"}
                    yield Record(labels, seed, 0, {"sphere.steps": taken, "sphere.time": lr * taken})


STARRED = {  # rows of Table 11 that the paper fits, by its two ranges
    ("CE", "small"): (0.01, 0.04, 0.08, 0.1, 0.2, 0.4),
    ("BCE", "small"): (0.01, 0.04, 0.08, 0.1, 0.2, 0.4),
    ("CE", "large"): (6, 7, 8, 9, 9.5),
    ("BCE", "large"): (8, 10, 12, 14, 16),
}


def printed_fits() -> Iterator[Record]:
    """Least squares on the starred counts of Table 11, and the log-log slope of those up to scale 0.4."""
    table = published(artifact("normalized_scaling.table11"))
    counts = {(one.labels["loss"], float(one.labels["gamma"])): one.value for one in table}
    for (loss, scales), starred in STARRED.items():
        y = [counts[loss, scale] for scale in starred]
        if scales == "small":
            fit = scaling.fit_inverse(starred, y)
            values = {"fit.slope": log_slope(starred, y)}
        else:
            fit = scaling.fit_exponential(starred, y)
            values = {"fit.k": fit.b}
        values |= {"fit.a": fit.a, "fit.c": fit.c, "fit.r2": fit.r2}
        yield Record({"loss": loss, "scales": scales}, 0, 0, values)


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Slope of the line of least squares through the logarithms.

    Example:
        >>> round(log_slope([1.0, 2.0, 4.0], [8.0, 4.0, 2.0]), 9)
        -1.0
    """
    u, v = torch.tensor(x, dtype=torch.float64).log(), torch.tensor(y, dtype=torch.float64).log()
    return float(((u - u.mean()) @ (v - v.mean())) / (u - u.mean()).square().sum())


@dataclass(frozen=True)
class Collapsing:
    """Times until collapse by loss and scale, at small or at large scales, with one tolerance."""

    times: Mapping[str, Times]  # by loss; only the scales at which every seed collapsed
    unit: str  # of the times, with the tolerance


def sphere_times(observed: Observations, *, small: bool) -> Collapsing:
    """Times of the sphere model at small or at large scales."""
    labels = {"classes": str(CLASSES)}
    times = {loss: _times(observed, "sphere.time", small=small, loss=loss, **labels) for loss in LOSSES}
    return Collapsing(times, "steps times rate")


def network_times(observed: Observations, *, small: bool) -> Collapsing | None:
    """Times of networks at small or at large scales; None if too few scales reach even the largest tolerance.

    The tolerance is the smallest one that ENOUGH scales reach under both losses.
    """
    for tolerance in TOLERANCES:
        measure = f"train.epochs_to_{tolerance:g}"
        found = {loss: _times(observed, measure, small=small, loss=loss) for loss in LOSSES}
        if all(len(times) >= ENOUGH for times in found.values()):
            return Collapsing(found, f"epochs to {tolerance:g}")
    return None


def check_run(observed: Observations, *, small: bool) -> None:
    """NotRunError if no small or no large scale was run. Otherwise these scales would count as not collapsed."""
    if not any(_belongs(float(gamma), small) for gamma in observed.points("gamma")):
        raise NotRunError(f"{observed.artifact} ({observed.size}): no {'small' if small else 'large'} scale was run")


def _times(observed: Observations, measure: str, *, small: bool, **labels: str) -> Times:
    found = {}
    for gamma in observed.points("gamma"):
        with contextlib.suppress(NotRunError):
            found[float(gamma)] = list(observed.values(measure, gamma=gamma, **labels).values())
    ended = {scale: times for scale, times in sorted(found.items()) if all(map(math.isfinite, times))}
    return {scale: times for scale, times in ended.items() if _belongs(scale, small)}


def _belongs(scale: float, small: bool) -> bool:
    return scale <= SMALLEST if small else scale >= LARGE


def inverse_growth(found: Collapsing, what: str) -> Verdict:
    """Whether times grow like a/scale towards 0: R^2 of a/scale + c above 0.98 and a log-log slope of -1 +- 0.1."""
    if few := _too_few(found):
        return few
    parts = []
    for loss, times in found.times.items():
        x, y = means(times)
        fit, slope = scaling.fit_inverse(x, y), log_slope(x, y)
        holds = fit.r2 > 0.98 and abs(slope + 1) <= 0.1
        parts.append(exact(holds, f"{what}, {loss} ({found.unit}): slope {slope:.3f}, R2 of a/gamma + c {fit.r2:.4f}"))
    return all_of(parts)


def exponential_growth(found: Collapsing, what: str) -> Verdict:
    """Whether times grow exponentially rather than by a power, BCE's with a smaller exponent (bootstrap over seeds)."""
    if few := _too_few(found):
        return few
    parts, rates = [], {}
    for loss, times in found.times.items():
        x, y = means(times)
        fit, power = scaling.fit_exponential(x, y), scaling.fit_power(x, y)
        said = f"{what}, {loss} ({found.unit}): k {fit.b:.3f}, AIC {fit.aic:.1f} against {power.aic:.1f} of a power"
        lead = power.aic - fit.aic
        parts.append(exact(lead > 0, said) if abs(lead) >= ALIKE else Verdict("inconclusive", f"{said}: both fit"))
        runs = min(map(len, times.values()))
        rates[loss] = [scaling.fit_exponential(list(times), [t[run] for t in times.values()]).b for run in range(runs)]
    difference = mean(rates["BCE"]) - mean(rates["CE"])
    if min(map(len, rates.values())) < 2:
        return all_of([*parts, Verdict("inconclusive", "one seed gives no interval of the exponents", difference)])
    low, high = bootstrap(lambda a, b: float(a.mean() - b.mean()), rates["BCE"], rates["CE"])
    said = f"k_BCE - k_CE {difference:.3f} [{low:.3f}, {high:.3f}]"
    return all_of([Verdict(of_interval((-high, -low)), said, difference, (low, high)), *parts])


def _too_few(found: Collapsing) -> Verdict | None:
    if min(map(len, found.times.values())) >= ENOUGH:
        return None
    said = ", ".join(f"{loss} {len(times)}" for loss, times in found.times.items())
    return Verdict("inconclusive", f"fewer than {ENOUGH} scales collapsed at every seed: {said} ({found.unit})")


def means(times: Times) -> tuple[list[float], list[float]]:
    """The scales, and the mean over seeds at each."""
    return list(times), [sum(seeds) / len(seeds) for seeds in times.values()]
