"""Times until collapse in the paper on normalized spaces, and whether they grow with the scale as its theory says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lastlayer.papers.engine.claims import Verdict, all_of, exact
from lastlayer.papers.engine.store import NotRunError, Observations
from lastlayer.papers.normalized_scaling.theory import LOSSES, SMALLEST, log_slope
from lastlayer.reports.statistics import bootstrap
from lastlayer.theory.scaling import fit_exponential, fit_inverse, fit_power

Times = Mapping[float, Sequence[float]]  # by scale, one for each seed

TOLERANCES = (0.001, 0.0035, 0.01, 0.03, 0.1, 0.3)  # of Eq. 217
ENOUGH = 5  # scales for a fit, as many as the paper takes
LARGE = 5.0  # the scale from which on times grow exponentially
ALIKE = 2.0  # difference of AIC below which two curves are both supported, by common usage


@dataclass(frozen=True)
class Collapsing:
    """Times until collapse by loss and scale, with one tolerance.

    Attributes:
        times: by loss; only scales that every seed collapsed at.
        unit: of the times, with the tolerance.
    """

    times: Mapping[str, Times]
    unit: str


def sphere_times(observed: Observations, classes: str = "10") -> Collapsing:
    """Of the sphere model."""
    return Collapsing(
        {loss: _times(observed, "sphere.time", loss=loss, classes=classes) for loss in LOSSES},
        "steps times rate",
    )


def network_times(observed: Observations, *, small: bool) -> Collapsing | None:
    """Of networks, below or above scale SMALLEST, with the smallest tolerance that ENOUGH scales reach for both losses.

    None where they do not reach even the largest.
    """
    for tolerance in TOLERANCES:
        measure = f"train.epochs_to_{tolerance:g}"
        found = {loss: part(_times(observed, measure, loss=loss), small=small) for loss in LOSSES}
        if all(len(times) >= ENOUGH for times in found.values()):
            return Collapsing(found, f"epochs to {tolerance:g}")
    return None


def check_run(observed: Observations, *, small: bool) -> None:
    """Refuse to judge scales that were not run as if they had not collapsed.

    Raises:
        NotRunError: when no such scale was run.
    """
    if not part({float(gamma): () for gamma in observed.points("gamma")}, small=small):
        raise NotRunError(f"{observed.artifact} ({observed.size}): no {'small' if small else 'large'} scale was run")


def _times(observed: Observations, measure: str, **labels: str) -> Times:
    found = {}
    for gamma in observed.points("gamma"):
        with contextlib.suppress(NotRunError):
            found[float(gamma)] = list(observed.values(measure, gamma=gamma, **labels).values())
    return {scale: times for scale, times in sorted(found.items()) if all(map(math.isfinite, times))}


def part(times: Times, *, small: bool) -> Times:
    """Those of small scales (up to SMALLEST) or of large ones (from LARGE)."""
    return {g: seeds for g, seeds in times.items() if (g <= SMALLEST if small else g >= LARGE)}


def inverse_growth(found: Collapsing, what: str) -> Verdict:
    """Whether times grow like a/scale towards 0: R^2 of a/scale + c above 0.98 and a log-log slope of -1 +- 0.1."""
    if few := _too_few(found, small=True):
        return few
    parts = []
    for loss, all_times in found.times.items():
        x, y = means(part(all_times, small=True))
        fit, slope = fit_inverse(x, y), log_slope(x, y)
        holds = fit.r2 > 0.98 and abs(slope + 1) <= 0.1
        parts.append(exact(holds, f"{what}, {loss} ({found.unit}): slope {slope:.3f}, R2 of a/gamma + c {fit.r2:.4f}"))
    return all_of(parts)


def exponential_growth(found: Collapsing, what: str) -> Verdict:
    """Whether times grow exponentially rather than by a power, BCE's with a smaller exponent (bootstrap over seeds)."""
    if few := _too_few(found, small=False):
        return few
    parts, rates = [], {}
    for loss, all_times in found.times.items():
        times = part(all_times, small=False)
        x, y = means(times)
        fit, power = fit_exponential(x, y), fit_power(x, y)
        said = f"{what}, {loss} ({found.unit}): k {fit.b:.3f}, AIC {fit.aic:.1f} against {power.aic:.1f} of a power"
        lead = power.aic - fit.aic
        parts.append(exact(lead > 0, said) if abs(lead) >= ALIKE else Verdict("inconclusive", f"{said}: both fit"))
        runs = min(map(len, times.values()))
        rates[loss] = [fit_exponential(list(times), [t[run] for t in times.values()]).b for run in range(runs)]
    difference = float(np.mean(rates["BCE"]) - np.mean(rates["CE"]))
    if min(map(len, rates.values())) < 2:
        return all_of([*parts, Verdict("inconclusive", "one seed gives no interval of the exponents", difference)])
    low, high = bootstrap(lambda a, b: float(a.mean() - b.mean()), rates["BCE"], rates["CE"])
    outcome = exact(high < 0, f"k_BCE - k_CE {difference:.3f} [{low:.3f}, {high:.3f}]")
    if low <= 0 <= high:
        outcome = Verdict("inconclusive", outcome.detail)
    return all_of([Verdict(outcome.outcome, outcome.detail, difference, (low, high)), *parts])


def _too_few(found: Collapsing, *, small: bool) -> Verdict | None:
    counts = {loss: len(part(times, small=small)) for loss, times in found.times.items()}
    if min(counts.values()) >= ENOUGH:
        return None
    said = ", ".join(f"{loss} {count}" for loss, count in counts.items())
    return Verdict("inconclusive", f"fewer than {ENOUGH} scales collapsed at every seed: {said} ({found.unit})")


def means(times: Times) -> tuple[list[float], list[float]]:
    """Scales and the mean over seeds; the spread of starts at one scale says nothing of the growth with the scale."""
    return list(times), [sum(seeds) / len(seeds) for seeds in times.values()]
