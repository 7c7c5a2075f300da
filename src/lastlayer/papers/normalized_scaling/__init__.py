"""Classification and feature learning in normalized spaces (paper 003): what decides its claims."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lastlayer.papers.engine.claims import Verdict, above, all_of, check, exact, mean, redrawn
from lastlayer.papers.engine.record import Done
from lastlayer.papers.engine.store import NotRunError, Observations, Record
from lastlayer.papers.normalized_scaling.theory import (
    CLASSES,
    LOSSES,
    TOLERANCES,
    Collapsing,
    check_run,
    exponential_growth,
    inverse_growth,
    network_times,
    sphere_times,
)
from lastlayer.reports.statistics import Difference, paired, sign_test, welch
from lastlayer.runners import Placement
from lastlayer.theory.minima import normalized_binary_cross_entropy

PAPER = "normalized_scaling"
COLLAPSE = ("nc1", "nc2", "nc3")
ON_THE_LINES = ("positive_mean", "positive_std", "negative_mean", "negative_std", "accuracy", "compactness")
THRESHOLDS = {"accuracy": 0.9975, "compactness": 0.9975, "separability": 0.5525}  # Figs 14 and 15
OPEN_SET = ("accuracy", "auroc", "oscr", "probability_auroc", "probability_oscr")

# What is measured on finished runs


def first_epochs(done: Done, plan: Placement) -> Iterator[Record]:
    """First epochs that reach the thresholds of Figs 14 and 15 and the tolerances of Eq. 217; infinite if none does."""
    for labels, seed, folder in done:
        history = folder.result()["history"]
        values = {f"train.epochs_to_{name}": _first(history, name, least) for name, least in THRESHOLDS.items()}
        for tolerance in TOLERANCES:
            values[f"train.epochs_to_{tolerance:g}"] = _first(history, "collapse_gap", tolerance)
        yield Record(labels, seed, int(history[-1]["epoch"]), values)


def _first(history: Sequence[Mapping[str, Any]], name: str, bound: float) -> float:
    sign = -1 if name == "collapse_gap" else 1
    return next((float(one["epoch"]) for one in history if sign * one["train"][name] >= sign * bound), math.inf)


def over_splits(done: Done, plan: Placement) -> Iterator[Record]:
    """The splits of an open set once more, as the seeds of one line, so that they have a mean and can be paired."""
    for labels, seed, folder in done:
        last = folder.result()["history"][-1]
        values = {f"test.{name}": last["test"][name] for name in OPEN_SET if name in last["test"]}
        place = 1000 * seed + int(labels["split"])  # so that further seeds of a split do not replace the first
        yield Record({**labels, "split": "all"}, place, int(last["epoch"]), values)


# Theory, collapse and biases


@check("003-01", f"{PAPER}.minima")
def minima(computed: Observations) -> Verdict:
    """Numerical minima at the closed forms, BCE's bias at b*, and CE blind to a common bias."""
    gaps, bias = computed.column("minimum.gap"), max(computed.column("minimum.bias_error", loss="BCE"))
    gap, shift = max(gaps), max(computed.column("minimum.shift", loss="CE"))
    holds = gap < 1e-10 and bias < 1e-6 and shift < 1e-10
    return exact(holds, f"{len(gaps)} problems: gap {gap:.2g}, |b - b*| {bias:.2g}, CE under a common bias {shift:.2g}")


def _collapse_arms(cnn: Observations, vit: Observations) -> Iterator[tuple[Observations, dict[str, str]]]:
    """ResNet-18 and the ViT on CIFAR-10, each with both optimisers."""
    for optimizer in ("SGD", "AdamW"):
        yield cnn, {"model": "ResNet-18", "optimizer": optimizer}
        yield vit, {"dataset": "CIFAR-10", "optimizer": optimizer}


@check("003-02", f"{PAPER}.fig3", f"{PAPER}.fig5")
def collapse(cnn: Observations, vit: Observations) -> Verdict:
    """NC1 < 0.05, NC2 and NC3 < 0.1 in all eight arms."""
    parts, worst = [], dict.fromkeys(COLLAPSE, 0.0)
    for observed, arm in _collapse_arms(cnn, vit):
        for loss in LOSSES:
            found = {name: observed.values(f"train.{name}", loss=loss, **arm) for name in COLLAPSE}
            worst = {name: max(worst[name], mean(found[name])) for name in COLLAPSE}
            parts.append(redrawn(lambda m: m[0] < 0.05 and max(m[1:]) < 0.1, found.values(), f"{_spell(arm)} {loss}"))
    return _holding(parts, f"worst {', '.join(f'{name} {value:.3g}' for name, value in worst.items())}")


@check("003-03", f"{PAPER}.fig3", f"{PAPER}.fig5")
def faster(cnn: Observations, vit: Observations) -> Verdict:
    """The area under log NC1-3 over epochs 1-50 is lower for BCE, by measure and optimiser."""
    differences: dict[str, list[float]] = {}
    for observed, arm in _collapse_arms(cnn, vit):
        for name in COLLAPSE:
            seeds = [observed.values(f"train.{name}", loss=loss, **arm).keys() for loss in LOSSES]
            for seed in sorted(seeds[0] & seeds[1]):
                ce, bce = (_area(observed.curve(f"train.{name}", seed, loss=loss, **arm)) for loss in LOSSES)
                differences.setdefault(f"{name} {arm['optimizer']}", []).append(bce - ce)

    means = {pair: mean(found) for pair, found in differences.items()}
    said = ", ".join(f"{pair} {one:+.3g}" for pair, one in means.items())
    detail = f"area of BCE - CE: {said}: {sum(one < 0 for one in means.values())} of 6 lower, 5 needed"
    return redrawn(lambda drawn: sum(one < 0 for one in drawn) >= 5, differences.values(), detail)


def _area(curve: Mapping[int, float]) -> float:
    early = {epoch: value for epoch, value in curve.items() if 1 <= epoch <= 50}
    logs = torch.tensor(list(early.values()), dtype=torch.float64).clamp(min=1e-30).log()
    return float(torch.trapezoid(logs, torch.tensor(list(early), dtype=torch.float64)))


@check("003-04", f"{PAPER}.fig10", f"{PAPER}.fig11")
def biases(sweeps: Observations, five: Observations) -> Verdict:
    """CE keeps the mean of its initial biases, and BCE goes to b* from any. The worst run of each decides."""
    worst = dict.fromkeys(LOSSES, 0.0)
    for scale in ("4", "8"):
        for bias, observed in (("0", sweeps), ("5", five), ("10", sweeps)):
            aims = {"CE": float(bias), "BCE": normalized_binary_cross_entropy(CLASSES, float(scale)).bias}
            for optimizer in observed.points("optimizer"):
                for loss in LOSSES:
                    cell = {"gamma": scale, "bias": bias, "optimizer": optimizer, "loss": loss}
                    # the measured bias is added to the scores; the paper subtracts its own
                    off = [abs(-b - aims[loss]) for b in observed.values("train.bias_mean", **cell).values()]
                    worst[loss] = max(worst[loss], *off)
    kept, reached = worst.values()
    detail = f"worst |b - initial| of CE {kept:.3g} (0.01 allowed), |b - b*| of BCE {reached:.3g} (0.05 allowed)"
    return exact(kept < 0.01 and reached < 0.05, detail)


# The sweep of scales


@check("003-05", f"{PAPER}.table5")
def very_large_scale(sweep: Observations) -> Iterator[Verdict]:
    """At scale 64, A >= 99.9 with E_com and E_sep well below those at scale 8."""
    for arm in sweep.combinations("optimizer", "loss"):
        accuracy = sweep.values("train.accuracy", gamma="64", **arm)
        yield redrawn(lambda m: m[0] >= 0.999, [accuracy], f"{_spell(arm)}: A {100 * mean(accuracy):.2f}")
        for name, margin in (("compactness", 0.05), ("separability", 0.1)):
            low, high = (sweep.values(f"train.{name}", gamma=gamma, **arm) for gamma in ("64", "8"))
            yield _beyond(welch(high, low), margin, f"{name} 8 - 64")


@check("003-06", f"{PAPER}.table5")
def very_small_scale(sweep: Observations) -> Iterator[Verdict]:
    """At scale 0.1, A < A* < 95, with E_com and E_sep above those at scale 64."""
    for arm in sweep.combinations("optimizer", "loss"):
        biased, unbiased = (sweep.values(f"train.{name}accuracy", gamma="0.1", **arm) for name in ("", "unbiased_"))
        yield _beyond(paired(unbiased, biased), 0.0, f"{_spell(arm)}: A* - A")
        yield redrawn(lambda m: m[0] < 0.95, [unbiased], f"A* {100 * mean(unbiased):.2f}")
        for name in ("compactness", "separability"):
            low, high = (sweep.values(f"train.{name}", gamma=gamma, **arm) for gamma in ("64", "0.1"))
            yield _beyond(welch(high, low), 0.0, f"{name} 0.1 - 64")


@check("003-07", f"{PAPER}.table5")
def moderate_scale(sweep: Observations) -> Verdict:
    """At scales 4 and 8 the scores lie on the theory's lines, A >= 99.9 and E_com > 0.95."""
    parts = []
    for arm, scale in itertools.product(sweep.combinations("optimizer", "loss"), (4.0, 8.0)):
        found = [sweep.values(f"train.{name}", gamma=f"{scale:g}", **arm) for name in ON_THE_LINES]
        wrong = _off_the_lines(scale, [mean(values) for values in found])
        detail = f"{_spell(arm)} {scale:g}" + (f" ({', '.join(wrong)})" if wrong else "")
        parts.append(redrawn(functools.partial(_on_the_lines, scale), found, detail))
    return _holding(parts, "loss and scale")


def _on_the_lines(scale: float, means: Sequence[float]) -> bool:
    return not _off_the_lines(scale, means)


def _off_the_lines(scale: float, means: Sequence[float]) -> list[str]:
    """What is not as the theory says, among the means of ON_THE_LINES."""
    positive, positive_std, negative, negative_std, accuracy, compactness = means
    holds = {
        f"s+ {positive:.3g}": abs(positive - scale) < 0.05 * scale,
        f"s- {negative:.3g}": abs(negative + scale / (CLASSES - 1)) < 0.05 * scale,
        f"std s+ {positive_std:.3g}": positive_std < 0.1 * scale,
        f"std s- {negative_std:.3g}": negative_std < 0.1 * scale,
        f"A {100 * accuracy:.2f}": accuracy >= 0.999,
        f"E_com {compactness:.3f}": compactness > 0.95,
    }
    return [name for name, held in holds.items() if not held]


@check("003-08", f"{PAPER}.table5")
def better_features(sweep: Observations) -> Verdict:
    """At scales above 5, BCE's E_com is above CE's. E_sep is counted beside it."""
    parts, separate = [], []
    for arm in sweep.combinations("optimizer"):
        for gamma in ("6", "8", "16", "64"):
            ce, bce = (sweep.values("train.compactness", gamma=gamma, loss=loss, **arm) for loss in LOSSES)
            parts.append(_beyond(welch(bce, ce), 0.0, f"E_com {_spell(arm)} {gamma}"))
            ce, bce = (sweep.values("train.separability", gamma=gamma, loss=loss, **arm) for loss in LOSSES)
            separate.append(mean(bce) > mean(ce))
    found = all_of(parts)
    return found.but(found.outcome, f"; E_sep higher in {sum(separate)} of {len(separate)}")


@check("003-11", f"{PAPER}.table5")
def critical_conditions(sweep: Observations) -> Iterator[Verdict]:
    """At scales 32 and 64 every sample of CE meets condition I, and every one of BCE condition II."""
    for arm in sweep.combinations("optimizer", "loss"):
        for gamma in ("32", "64"):
            one, two = (min(sweep.column(f"train.condition_{which}", gamma=gamma, **arm)) for which in ("one", "two"))
            holds = (one if arm["loss"] == "CE" else two) == 1.0
            yield exact(holds, f"{_spell(arm)} {gamma}: I {one:.5g}, II {two:.5g}")


# Times until collapse


@check("003-09", f"{PAPER}.sphere", if_run=(f"{PAPER}.fig16",))
def small_scales(sphere: Observations, networks: Observations | None) -> Iterator[Verdict]:
    """Up to scale 0.4, times until collapse go like a/scale, on the sphere model and in a network."""
    return _growth(sphere, networks, inverse_growth, small=True)


@check("003-10", f"{PAPER}.sphere", if_run=(f"{PAPER}.fig16",))
def large_scales(sphere: Observations, networks: Observations | None) -> Iterator[Verdict]:
    """From scale 5 on, times until collapse are exponential, with a smaller exponent for BCE."""
    return _growth(sphere, networks, exponential_growth, small=False)


def _growth(
    sphere: Observations, networks: Observations | None, judge: Callable[[Collapsing, str], Verdict], *, small: bool
) -> Iterator[Verdict]:
    yield judge(sphere_times(sphere, small=small), f"sphere, K = {CLASSES}")
    try:
        if networks is None:
            raise NotRunError(f"{PAPER}.fig16 has not been run at size small or paper")
        check_run(networks, small=small)
        found = network_times(networks, small=small)
        few = Verdict("inconclusive", "network: too few scales collapse within 0.3")
        yield few if found is None else judge(found, "network")
    except NotRunError as missing:
        yield Verdict("not run", str(missing))


# Long tail, open set, final ReLU, spread biases, balanced data


@check("003-12", f"{PAPER}.table2")
def long_tail(table: Observations) -> Iterator[Verdict]:
    """BCE above CE in balanced test accuracy at every imbalance. The detail also gives logit adjustment."""
    if missing := {"10", "50", "100"} - set(table.points("imbalance")):
        raise NotRunError(f"{table.artifact} ({table.size}): imbalance {', '.join(sorted(missing))} was not run")
    for cell in table.combinations("dataset", "model", "imbalance"):
        ce, bce, adjusted = (table.values("test.accuracy", loss=loss, **cell) for loss in (*LOSSES, "LA"))
        found = above(welch(bce, ce), 0.0, f"{_spell(cell)}:")
        yield found.but(found.outcome, f" (LA {mean(adjusted) - mean(ce):+.4g})")


@check("003-13", f"{PAPER}.table10")
def open_set(table: Observations) -> Iterator[Verdict]:
    """With a bias, BCE above CE in AUROC and OSCR, paired over splits: a sign test and a 95 % interval."""
    for dataset, bias, measure in itertools.product(table.points("dataset"), ("0", "5", "10"), ("auroc", "oscr")):
        ce, bce = (_of_splits(table, measure, dataset=dataset, bias=bias, loss=loss) for loss in LOSSES)
        found = above(paired(bce, ce), 0.0, f"{dataset} {bias} {measure}:")
        signs = sign_test(bce[split] - ce[split] for split in bce.keys() & ce.keys())
        refuted = found.outcome == "reproduced" and signs > 0.05
        yield found.but("inconclusive", f", sign test {signs:.3f}") if refuted else found


@check("003-14", f"{PAPER}.table10")
def without_bias(table: Observations) -> Iterator[Verdict]:
    """Without a bias, BCE's AUROC is three points below its own with one, and below CE's, paired over splits."""
    for dataset in table.points("dataset"):
        bare, biased = (_of_splits(table, "auroc", dataset=dataset, bias=bias, loss="BCE") for bias in ("none", "0"))
        other = _of_splits(table, "auroc", dataset=dataset, bias="none", loss="CE")
        yield above(paired(biased, bare), 0.03, f"{dataset}: BCE with - without bias")
        yield above(paired(other, bare), 0.0, f"{dataset}: CE - BCE without bias")


def _of_splits(table: Observations, measure: str, **labels: str) -> dict[int, float]:
    return table.values(f"test.{measure}", split="all", **labels)


@check("003-15", f"{PAPER}.relu")
def final_relu(table: Observations) -> Iterator[Verdict]:
    """With a final ReLU the mean positive score is below 0.98 of the scale; without, at least 0.99 of it."""
    for arm in table.combinations("optimizer", "loss"):
        scores = (table.column("train.positive_mean", relu=relu, **arm) for relu in ("with", "without"))
        groups = [[score / 8 for score in found] for found in scores]
        detail = f"{_spell(arm)}: s+ / gamma {mean(groups[0]):.4f} with, {mean(groups[1]):.4f} without"
        yield redrawn(lambda means: means[0] < 0.98 and means[1] >= 0.99, groups, detail)


@check("003-16", f"{PAPER}.fig8")
def spread_biases(table: Observations) -> Iterator[Verdict]:
    """At scale 8 and bias variances 1, 4 and 6 both scores spread less under BCE: sign test over variance and seed."""
    for sign in ("positive", "negative"):
        differences = []
        for arm, variance in itertools.product(table.combinations("optimizer"), ("1", "4", "6")):
            cell = {"gamma": "8", "variance": variance, **arm}
            ce, bce = (table.values(f"train.{sign}_std", loss=loss, **cell) for loss in LOSSES)
            differences += [ce[seed] - bce[seed] for seed in sorted(ce.keys() & bce.keys())]
        better, worse = sign_test(differences), sign_test(-d for d in differences)
        lower = sum(d > 0 for d in differences)
        detail = f"{sign} std lower for BCE in {lower} of {len(differences)}, p {better:.3g}"
        yield exact(better < 0.05, detail) if min(better, worse) < 0.05 else Verdict("inconclusive", detail)


@check("003-17", f"{PAPER}.table9")
def balanced(table: Observations) -> Iterator[Verdict]:
    """On each data set, BCE at most 0.3 points below CE, paired over network, optimiser and seed."""
    for dataset in table.points("dataset"):
        by_loss: dict[str, dict[int, float]] = {loss: {} for loss in LOSSES}
        for number, arm in enumerate(table.combinations("model", "optimizer")):
            for loss in LOSSES:
                for seed, value in table.values("test.accuracy", dataset=dataset, loss=loss, **arm).items():
                    by_loss[loss][1000 * number + seed] = value
        yield above(paired(by_loss["BCE"], by_loss["CE"]), -0.003, f"{dataset}: BCE - CE")


def _beyond(difference: Difference, margin: float, what: str) -> Verdict:
    """Whether a difference exceeds a margin: by its interval, or plainly if there is only one seed."""
    if min(difference.count) >= 2:
        return above(difference, margin, what)
    return exact(difference.mean > margin, f"{what} {difference.mean:+.4g}, one seed")


def _spell(arm: Mapping[str, str]) -> str:
    """The labels of a cell in one line."""
    return " ".join(arm.values())


def _holding(parts: Sequence[Verdict], what: str) -> Verdict:
    """Reproduced if every cell is. Names the cells that are not, or not clearly."""
    said = [f"{what}: {sum(part.outcome == 'reproduced' for part in parts)} of {len(parts)} hold"]
    for outcome, word in (("not reproduced", "not"), ("inconclusive", "not clearly")):
        if cells := [part.detail for part in parts if part.outcome == outcome]:
            said.append(f"{word} {', '.join(cells)}")
    return Verdict(all_of(parts).outcome, "; ".join(said))
