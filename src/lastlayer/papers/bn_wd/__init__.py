"""Neural collapse with batch norm and weight decay (paper 004): what decides its claims."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from lastlayer.papers.engine.claims import Verdict, above, all_of, check, counted, exact, mean, redrawn
from lastlayer.papers.engine.store import NotRunError, Observations
from lastlayer.reports.statistics import spearman, welch

INTERPOLATES = 0.995  # training accuracy at which a run counts as interpolating its data
FEWEST = 3  # places that a rank correlation needs to say anything
FIRST_EPOCHS = 30
WITH, WITHOUT = "with BN", "without BN"
BETTER = {"intra_min": 1, "intra_mean": 1, "inter_max": -1, "inter_mean": -1}  # which direction is more collapse


@check("004-01", "bn_wd.theorem1")
def bounds_hold(computed: Observations) -> Verdict:
    """No perturbed frame breaks a bound. How many bounds say anything is reported."""
    frames, broken = (int(sum(computed.column(f"computed.{name}"))) for name in ("frames", "violations"))
    shares = [
        f"{name.replace('_', '-')} {mean(computed.column(f'computed.useful_{name}')):.0%}"
        for name in ("intra", "self_duality", "inter")
    ]
    detail = f"{broken} violations on {frames} frames; bounds that say something: {', '.join(shares)}"
    if frames < 1000:
        return Verdict("inconclusive", f"{detail}; 1000 frames needed")
    return exact(broken == 0, detail)


@check("004-02", "bn_wd.theorem2")
def minimum_reached(computed: Observations) -> Verdict:
    """Free features reach the corrected m_reg with equal norms, and do not reach the printed one."""
    rows = computed.final()
    off = max(abs(row["computed.reached"] - row["computed.minimum"]) for row in rows)
    norms = max(abs(row["computed.gamma_norm"] / row["computed.weight_norm"] - 1) for row in rows)
    printed = min(abs(row["computed.reached"] - row["computed.printed"]) for row in rows)
    detail = f"off by at most {off:.1e}, norms by {norms:.1e}; the printed formula by at least {printed:.3g}"
    return exact(off < 1e-8 and norms < 1e-4 and printed > 1e-8, detail)


@check("004-03", "bn_wd.lemma4")
def norm_is_fixed(computed: Observations) -> Verdict:
    """Exact normalisation gives the norm to rounding. What eps and running statistics cost is reported."""
    error, eps, evaluation = (
        max(computed.column(f"computed.{name}")) for name in ("error", "error_eps", "error_evaluation")
    )
    detail = f"relative error {error:.1e}; with eps 1e-5 {eps:.1e}, in evaluation mode {evaluation:.2g}"
    return exact(error < 1e-12, detail)


@check("004-04", "bn_wd.fig2")
def collapse_grows_with_decay(seen: Observations) -> Iterator[Verdict]:
    """With BN, weight decay and both measures have a rank correlation, over decays that interpolate."""
    for labels in _settings(seen, "data", "model"):
        yield from _trends(seen, {"bn": WITH, **labels}, "decay", 1)


@check("004-05", "bn_wd.fig2")
def strongest_with_batch_norm(seen: Observations) -> Iterator[Verdict]:
    """The best decay with BN collapses more than the best without. Without BN, decay does not help reliably."""
    for labels in _settings(seen, "data", "model"):
        arms = [{"bn": arm, **labels} for arm in (WITH, WITHOUT)]
        both = [_places(seen, arm, "decay", "intra_min", interpolating=False) for arm in arms]
        best = [max(places.values(), key=mean) for places in both]
        yield above(welch(*best), what=f"best min intra with - without BN, {_named(labels)}")
        yield _correlation(both[1], f"decay and min intra without BN, {_named(labels)}", -1, -0.5)


@check("004-06", "bn_wd.fig3")
def collapse_follows_the_loss(seen: Observations) -> Iterator[Verdict]:
    """Over epochs: with BN, collapse ranks as the training loss does. Without BN it is over early. Means over seeds."""
    for labels in _settings(seen, "setting"):
        ranks, late = [], []
        for row in seen.final(bn=WITH, **labels):
            intra = seen.curve("train.intra_min", row.seed, **row.labels)
            loss = seen.curve("train.nll", row.seed, **row.labels)
            distance = {epoch: 1 - value for epoch, value in intra.items() if epoch > 0}
            ranks.append(spearman([loss[epoch] for epoch in distance], distance.values()))
        for row in seen.final(bn=WITHOUT, **labels):
            intra = seen.curve("train.intra_min", row.seed, **row.labels)
            early = max(epoch for epoch in intra if epoch <= FIRST_EPOCHS)
            last = intra[max(intra)]
            late.append(abs(last - intra[early]) / max(abs(last - intra[min(intra)]), 1e-12))
        detail = f"{_named(labels)}: {mean(ranks):.3f} with BN (least {min(ranks):.3f}, {len(ranks)} seeds)"
        yield redrawn(lambda means: means[0] > 0.9, [ranks], detail)
        detail = f"{_named(labels)}: {mean(late):.0%} of the change late without BN, {len(late)} seeds"
        yield redrawn(lambda means: means[0] < 0.2, [late], detail)


@check("004-07", "bn_wd.fig4")
def smaller_norm_collapses_more(seen: Observations) -> Verdict:
    """The frozen entry and both measures have a rank correlation in at least three of the four settings."""
    settings = [all_of([*_trends(seen, labels, "entry", -1)]) for labels in _settings(seen, "data", "model")]
    if len(settings) < 4:
        raise NotRunError(f"{seen.artifact} ({seen.size}): {len(settings)} of 4 settings run")
    holds, unclear = (sum(one.outcome == outcome for one in settings) for outcome in ("reproduced", "inconclusive"))
    verdict = counted(holds, 4, 3, "settings")
    outcome = "inconclusive" if holds < 3 <= holds + unclear else verdict.outcome
    return Verdict(outcome, "; ".join([verdict.detail, *(one.detail for one in settings)]))


@check("004-08", "bn_wd.fig5")
def vgg_with_batch_norm(seen: Observations) -> Iterator[Verdict]:
    """With BN all four measures are better at five of six decays, and two follow the decay (rank correlation 0.8)."""
    for labels in _settings(seen, "dataset", "model"):
        pairs = [
            [_places(seen, {"bn": arm, **labels}, "decay", measure, interpolating=False) for arm in (WITH, WITHOUT)]
            for measure in BETTER
        ]
        decays = sorted(set.intersection(*(set(places) for pair in pairs for places in pair)))
        groups = [places[decay] for decay in decays for pair in pairs for places in pair]
        holds = _all_better([mean(group) for group in groups])
        detail = counted(holds, 6, 5, f"{_named(labels)}, decays at which all four are better").detail
        if holds < 5 <= holds + 6 - len(decays):
            yield Verdict("inconclusive", f"{detail}; {6 - len(decays)} decays at which a run learned nothing")
        else:
            yield redrawn(lambda means: _all_better(means) >= 5, groups, detail)
        yield from _trends(seen, {"bn": WITH, **labels}, "decay", 1, interpolating=False)


@check("004-09", "bn_wd.fig6")
def many_classes(seen: Observations) -> Iterator[Verdict]:
    """As weight decay grows, max inter goes up for VGG and down for ResNet (sign of the rank correlation)."""
    for model, sign in (("VGG-11", 1), ("VGG-19", 1), ("ResNet-18", -1)):
        for labels in _settings(seen, "dataset"):
            places = _places(seen, {"model": model, **labels}, "decay", "inter_max", interpolating=False)
            yield _correlation(places, f"{model}, max inter", sign, 0.0)


def _settings(seen: Observations, *axes: str) -> Iterator[dict[str, str]]:
    """Every combination of the points of these axes that occur."""
    for combination in itertools.product(*(seen.points(axis) for axis in axes)):
        yield dict(zip(axes, combination, strict=True))


def _places(
    seen: Observations, labels: Mapping[str, str], axis: str, measure: str, *, interpolating: bool
) -> dict[float, dict[int, float]]:
    """Values by seed and by place on an axis, for places that were run (and, if asked, interpolate)."""
    found: dict[float, dict[int, float]] = {}
    run = False
    for place in seen.points(axis):
        try:
            values = seen.values(f"train.{measure}", **{axis: place}, **labels)
            accuracy = seen.values("train.accuracy", **{axis: place}, **labels)
        except NotRunError:
            continue
        run = True
        if not interpolating or mean(accuracy) >= INTERPOLATES:
            found[float(place)] = values
    if not run:
        raise NotRunError(f"{seen.artifact} ({seen.size}): no finished run of {_named(labels)}")
    return {place: values for place, values in found.items() if not math.isnan(mean(values))}


def _trends(
    seen: Observations, labels: Mapping[str, str], axis: str, sign: int, *, interpolating: bool = True
) -> Iterator[Verdict]:
    """Whether collapse, by two measures, has a rank correlation with an axis that, times the sign, is above 0.8."""
    for measure in ("intra_min", "inter_max"):
        places = _places(seen, labels, axis, measure, interpolating=interpolating)
        yield _correlation(places, f"{axis} and {measure}, {_named(labels)}", sign * BETTER[measure], 0.8)


def _correlation(places: Mapping[float, Mapping[int, float]], what: str, sign: int, bar: float) -> Verdict:
    """Whether the rank correlation of places with the means over seeds there, times the sign, is above a bar."""
    if len(places) < FEWEST:
        return Verdict("inconclusive", f"{what}: {len(places)} places, {FEWEST} needed")
    rank = spearman(places, map(mean, places.values()))
    if math.isnan(rank):
        return Verdict("inconclusive", f"{what}: the same at all {len(places)} places, no rank")
    detail = f"{what}: {rank:+.2f} over {len(places)}"
    return redrawn(lambda means: sign * spearman(places, means) > bar, places.values(), detail)


def _all_better(means: Sequence[float]) -> int:
    """At how many decays all measures are better with BN. Means come by decay and measure, with and without BN."""
    signs = itertools.cycle(BETTER.values())
    gains = [next(signs) * (means[at] - means[at + 1]) for at in range(0, len(means), 2)]
    return sum(min(gains[first : first + len(BETTER)]) > 0 for first in range(0, len(gains), len(BETTER)))


def _named(labels: Mapping[str, str]) -> str:
    return ", ".join(labels.values())
