"""Neural collapse with batch norm and weight decay: what decides its claims."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from lastlayer.papers._bn_wd_figures import figure_during
from lastlayer.papers._bn_wd_theory import perturbed_frames, quadratic_mean_norm, through_batch_norm
from lastlayer.papers._claims import check
from lastlayer.papers._evidence import Verdict, above, all_of, counted, exact, redrawn, spearman, welch
from lastlayer.papers._observations import NotRunError, Observations, Store

__all__ = ["figure_during", "perturbed_frames", "quadratic_mean_norm", "through_batch_norm"]

INTERPOLATES = 0.995  # training accuracy from which on the data count as interpolated
FEWEST = 3  # places a rank correlation needs to say anything
FIRST_EPOCHS = 30
WITH, WITHOUT = "with BN", "without BN"
BETTER = {"intra_min": 1, "intra_mean": 1, "inter_max": -1, "inter_mean": -1}  # which way of each measure of VGG


@check("004-01", "bn_wd.theorem1")
def bounds_hold(store: Store) -> Verdict:
    """No perturbed frame breaks a bound; how many bounds say anything is reported."""
    rows = store.evidence("bn_wd.theorem1").final()
    frames, broken = (int(sum(row[f"computed.{name}"] for row in rows)) for name in ("frames", "violations"))
    shares = [
        f"{name.replace('_', '-')} {sum(row[f'computed.useful_{name}'] for row in rows) / len(rows):.0%}"
        for name in ("intra", "self_duality", "inter")
    ]
    detail = f"{broken} violations on {frames} frames; bounds that say something: {', '.join(shares)}"
    if frames < 1000:
        return Verdict("inconclusive", f"{detail}; 1000 frames needed")
    return exact(broken == 0, detail)


@check("004-02", "bn_wd.theorem2")
def minimum_reached(store: Store) -> Verdict:
    """Free features reach the corrected m_reg with equal norms, and not the printed one."""
    rows = store.evidence("bn_wd.theorem2").final()
    off = max(abs(row["computed.reached"] - row["computed.minimum"]) for row in rows)
    norms = max(abs(row["computed.gamma_norm"] / row["computed.weight_norm"] - 1) for row in rows)
    printed = min(abs(row["computed.reached"] - row["computed.printed"]) for row in rows)
    detail = f"off by at most {off:.1e}, norms by {norms:.1e}; the printed formula by at least {printed:.3g}"
    return exact(off < 1e-8 and norms < 1e-4 and printed > 1e-8, detail)


@check("004-03", "bn_wd.lemma4")
def norm_is_fixed(store: Store) -> Verdict:
    """Exact normalisation gives the norm to rounding; what eps and running statistics cost is reported."""
    rows = store.evidence("bn_wd.lemma4").final()
    error, eps, evaluation = (
        max(row[f"computed.{name}"] for row in rows) for name in ("error", "error_eps", "error_evaluation")
    )
    return exact(
        error < 1e-12, f"relative error {error:.1e}; with eps 1e-5 {eps:.1e}, in evaluation mode {evaluation:.2g}"
    )


@check("004-04", "bn_wd.fig2")
def collapse_grows_with_decay(store: Store) -> Verdict:
    """With BN: rank correlations of weight decay with both measures, over decays that interpolate."""
    seen = store.evidence("bn_wd.fig2")
    parts = []
    for labels in _settings(seen, "data", "model"):
        cells = {"bn": WITH, **labels}
        parts.append(_trend(seen, cells, "decay", "intra_min", 1))
        parts.append(_trend(seen, cells, "decay", "inter_max", -1))
    return all_of(parts)


@check("004-05", "bn_wd.fig2")
def strongest_with_batch_norm(store: Store) -> Verdict:
    """The best decay with BN collapses more than the best without; without BN decay does not help reliably."""
    seen = store.evidence("bn_wd.fig2")
    parts = []
    for labels in _settings(seen, "data", "model"):
        best = []
        for arm in (WITH, WITHOUT):
            places = _places(seen, {"bn": arm, **labels}, "decay", "intra_min", interpolating=False)
            top = max(places, key=lambda decay: _mean(places[decay]))
            label = next(name for name in seen.points("decay") if float(name) == top)
            best.append(seen.values("train.intra_min", bn=arm, decay=label, **labels))
        parts.append(above(welch(*best), what=f"best min intra with - without BN, {_named(labels)}"))
        places = _places(seen, {"bn": WITHOUT, **labels}, "decay", "intra_min", interpolating=False)
        parts.append(_correlation(places, lambda rank: rank < 0.5, f"decay and min intra without BN, {_named(labels)}"))
    return all_of(parts)


@check("004-06", "bn_wd.fig3")
def collapse_follows_the_loss(store: Store) -> Verdict:
    """Over epochs: with BN collapse ranks as the training loss; without BN it is over early; means over seeds."""
    seen = store.evidence("bn_wd.fig3")
    parts = []
    for labels in _settings(seen, "setting"):
        name = _named(labels)
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
        rank, moved = sum(ranks) / len(ranks), sum(late) / len(late)
        said = f"{name}: {rank:.3f} with BN (least {min(ranks):.3f}, {len(ranks)} seeds)"
        parts.append(redrawn(lambda means: means[0] > 0.9, [ranks], said))
        said = f"{name}: {moved:.0%} of the change late without BN, {len(late)} seeds"
        parts.append(redrawn(lambda means: means[0] < 0.2, [late], said))
    return all_of(parts)


@check("004-07", "bn_wd.fig4")
def smaller_norm_collapses_more(store: Store) -> Verdict:
    """Rank correlations of the frozen entry with both measures, in three of the four settings."""
    seen = store.evidence("bn_wd.fig4")
    said, holds, unclear = [], 0, 0
    for labels in _settings(seen, "data", "model"):
        both = [_trend(seen, labels, "entry", "intra_min", -1), _trend(seen, labels, "entry", "inter_max", 1)]
        outcome = all_of(both).outcome
        holds += outcome == "reproduced"
        unclear += outcome == "inconclusive"
        said += [part.detail for part in both]
    verdict = counted(holds, 4, 3, "settings")
    detail = "; ".join([verdict.detail, *said])
    if len(said) < 8:
        raise NotRunError(f"{seen.artifact} ({seen.size}): {len(said) // 2} of 4 settings run")
    return Verdict("inconclusive" if holds < 3 <= holds + unclear else verdict.outcome, detail)


@check("004-08", "bn_wd.fig5")
def vgg_with_batch_norm(store: Store) -> Verdict:
    """All four measures better with BN at five of six decays, and a monotone trend (rank correlation 0.8) with BN."""
    seen = store.evidence("bn_wd.fig5")
    parts = []
    for labels in _settings(seen, "dataset", "model"):
        pairs = [
            [_places(seen, {"bn": arm, **labels}, "decay", measure, interpolating=False) for arm in (WITH, WITHOUT)]
            for measure in BETTER
        ]
        decays = sorted(set.intersection(*(set(places) for pair in pairs for places in pair)))
        groups = [places[decay] for decay in decays for pair in pairs for places in pair]
        holds = _all_better([_mean(group) for group in groups])
        said = counted(holds, 6, 5, f"{_named(labels)}, decays at which all four are better").detail
        if holds < 5 <= holds + 6 - len(decays):
            verdict = Verdict("inconclusive", f"{said}; {6 - len(decays)} decays at which a run learned nothing")
        else:
            verdict = redrawn(lambda means: _all_better(means) >= 5, groups, said)
        parts.append(verdict)
        cells = {"bn": WITH, **labels}
        parts.append(_trend(seen, cells, "decay", "intra_min", 1, interpolating=False))
        parts.append(_trend(seen, cells, "decay", "inter_max", -1, interpolating=False))
    return all_of(parts)


@check("004-09", "bn_wd.fig6")
def many_classes(store: Store) -> Verdict:
    """The sign of the rank correlation of weight decay with max inter: up for VGG, down for ResNet."""
    seen = store.evidence("bn_wd.fig6")
    parts = []
    for model, sign in (("VGG-11", 1), ("VGG-19", 1), ("ResNet-18", -1)):
        for labels in _settings(seen, "dataset"):
            places = _places(seen, {"model": model, **labels}, "decay", "inter_max", interpolating=False)
            parts.append(_correlation(places, functools.partial(_has_sign, sign), f"{model}, max inter"))
    return all_of(parts)


def _settings(seen: Observations, *axes: str) -> Iterator[dict[str, str]]:
    """Every combination of labels of these axes that was run."""
    for combination in itertools.product(*(seen.points(axis) for axis in axes)):
        yield dict(zip(axes, combination, strict=True))


def _places(
    seen: Observations, labels: Mapping[str, str], axis: str, measure: str, *, interpolating: bool
) -> dict[float, list[float]]:
    """Values of all seeds by place on an axis, of the places that were run (and interpolate)."""
    found: dict[float, list[float]] = {}
    run = False
    for place in seen.points(axis):
        try:
            values = seen.values(f"train.{measure}", **{axis: place}, **labels)
            accuracy = seen.values("train.accuracy", **{axis: place}, **labels)
        except NotRunError:
            continue
        run = True
        if not interpolating or _mean(accuracy.values()) >= INTERPOLATES:
            found[float(place)] = list(values.values())
    if not run:
        raise NotRunError(f"{seen.artifact} ({seen.size}): no finished run of {_named(labels)}")
    return {place: values for place, values in found.items() if not math.isnan(_mean(values))}


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


def _trend(
    seen: Observations, labels: Mapping[str, str], axis: str, measure: str, sign: int, *, interpolating: bool = True
) -> Verdict:
    """Whether a measure's rank correlation with an axis, times the sign, is above 0.8."""
    places = _places(seen, labels, axis, measure, interpolating=interpolating)
    return _correlation(places, lambda rank: sign * rank > 0.8, f"{axis} and {measure}, {_named(labels)}")


def _correlation(places: Mapping[float, Collection[float]], holds: Callable[[float], bool], what: str) -> Verdict:
    """Whether the rank correlation of places with the means over seeds there is as wanted."""
    if len(places) < FEWEST:
        return Verdict("inconclusive", f"{what}: {len(places)} places, {FEWEST} needed")
    rank = spearman(places, map(_mean, places.values()))
    if math.isnan(rank):
        return Verdict("inconclusive", f"{what}: the same at all {len(places)} places, no rank")
    said = f"{what}: {rank:+.2f} over {len(places)}"
    return redrawn(lambda means: holds(spearman(places, means)), places.values(), said)


def _all_better(means: Sequence[float]) -> int:
    """At how many decays all measures are better with BN; means by decay and measure, with and without."""
    signs = itertools.cycle(BETTER.values())
    gains = [next(signs) * (means[at] - means[at + 1]) for at in range(0, len(means), 2)]
    return sum(min(gains[first : first + len(BETTER)]) > 0 for first in range(0, len(gains), len(BETTER)))


def _has_sign(sign: int, rank: float) -> bool:
    return sign * rank > 0


def _named(labels: Mapping[str, str]) -> str:
    return ", ".join(labels.values())
