"""Paper 000, Soft Logit Normalization: its claims, and what its tables measure beyond the training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lastlayer.losses import default_tau
from lastlayer.papers._claims import check
from lastlayer.papers._evidence import (
    Difference,
    Verdict,
    above,
    all_of,
    equivalent,
    exact,
    holm_above,
    paired,
    redrawn,
    spearman,
    welch,
)
from lastlayer.papers._observations import NotRunError, Observations, Store
from lastlayer.papers._sln_figures import figure_dynamics, figure_fig1
from lastlayer.papers._sln_theory import dynamics, theorem1

__all__ = ["dynamics", "figure_dynamics", "figure_fig1", "theorem1"]

SIGNIFICANT = 0.025  # one-sided, as a 95 % interval has it
CLASSES = {
    "CIFAR-10": 10,
    "CIFAR-100": 100,
    "ImageNet-1K": 1000,
    "Tiny-ImageNet-32, 50 classes": 50,
    "Tiny-ImageNet-32": 200,
}
SCORES = {"CoLA": "test.matthews", "MRPC": "test.f1", "QQP": "test.f1"}  # accuracy for the others


def _accuracy(observed: Observations, **labels: str) -> dict[int, float]:
    """Test accuracy in points, by seed."""
    return {seed: 100 * value for seed, value in observed.values("test.accuracy", **labels).items()}


def _table1(store: Store, loss: str, model: str = "ResNet-20") -> dict[int, float]:
    return _accuracy(store.evidence("sln.table1"), dataset="CIFAR-10", model=model, loss=loss)


@check("000-01", "sln.table1")
def sln_beats_ce(store: Store) -> Verdict:
    """Welch interval above 0 over at least five seeds each."""
    verdict = above(welch(_table1(store, "SLN"), _table1(store, "CE")), 0.0, "SLN - CE (published +0.77)")
    count = min(len(_table1(store, loss)) for loss in ("SLN", "CE"))
    if count < 5:
        return Verdict("inconclusive", f"{verdict.detail}; five needed", verdict.difference, verdict.interval)
    return verdict


@check("000-02", "sln.table1")
def ln_is_like_ce(store: Store) -> Verdict:
    """Two one-sided tests at 5 % with a margin of 0.4 points."""
    return equivalent(welch(_table1(store, "LN"), _table1(store, "CE")), 0.4, "LN - CE within 0.4 (published +0.24)")


@check("000-03", "sln.table1")
def sln_is_best_of_its_kind(store: Store) -> Verdict:
    """SLN above each of the three, Holm over the comparisons."""
    sln = _table1(store, "SLN")
    others = {loss: welch(sln, _table1(store, loss)) for loss in ("LN", "L-Softmax", "M-Softmax")}
    return _all_above(others, "SLN - ")


@check("000-04", "sln.table1")
def small_matches_large(store: Store) -> Verdict:
    """Non-inferiority of ResNet-20 with SLN to ResNet-56 with CE, margin 0.5; margin 0 told beside it."""
    difference = welch(_table1(store, "SLN"), _table1(store, "CE", "ResNet-56"))
    verdict = above(difference, -0.5, "SLN with ResNet-20 - CE with ResNet-56, margin 0.5 (published -0.49)")
    strict = above(difference).outcome
    return Verdict(verdict.outcome, f"{verdict.detail}; at margin 0: {strict}", verdict.difference, verdict.interval)


@check("000-05", "sln.table1_classes")
def gain_grows_with_classes(store: Store) -> Verdict:
    """Gain at many classes above 0, and above the gain at ten."""
    observed = store.evidence("sln.table1_classes")
    many = _other_than("CIFAR-10", "dataset", observed)
    gains = {
        name: welch(_accuracy(observed, dataset=name, loss="SLN"), _accuracy(observed, dataset=name, loss="CE"))
        for name in (many, "CIFAR-10")
    }
    groups = [
        _accuracy(observed, dataset=name, loss=loss).values() for name in (many, "CIFAR-10") for loss in ("SLN", "CE")
    ]
    larger = redrawn(lambda m: m[0] - m[1] > m[2] - m[3], groups, f"at 10 classes {gains['CIFAR-10'].mean:+.3g}")
    return all_of([above(gains[many], 0.0, f"gain at {CLASSES[many]} classes"), larger])


@check("000-06", "sln.table1")
def sln_matches_distillation(store: Store) -> Verdict:
    """Non-inferiority to distillation from our own ResNet-56, margin 0.3."""
    difference = welch(_table1(store, "SLN"), _table1(store, "KD from ResNet-56"))
    return above(difference, -0.3, "SLN - KD, margin 0.3 (published -0.09)")


@check("000-07", "sln.table4")
def temperature(store: Store) -> Verdict:
    """tau 0.2 against 1 hurts CE and helps LN and SLN; the best tau of both within a step of 0.2."""
    observed = store.evidence("sln.table4")
    parts = []
    for loss, sign in (("CE", -1), ("LN", 1), ("SLN", 1)):
        low, high = (_accuracy(observed, loss=loss, tau=tau) for tau in ("0.2", "1.0"))
        order = (low, high) if sign > 0 else (high, low)
        parts.append(above(welch(*order), 0.0, f"{loss}, tau {'0.2 - 1' if sign > 0 else '1 - 0.2'}"))
        if sign > 0:
            parts.append(_best(observed, ("0.1", "0.2", "0.4"), f"best tau of {loss}", "tau", loss=loss))
    return all_of(parts)


@check("000-08", "sln.table5")
def tau_rule(store: Store) -> Verdict:
    """For each number of classes the best tau of the grid is the rule's, or the next to it."""
    observed = store.evidence("sln.table5")
    parts = []
    for name in observed.points("dataset"):
        grid = sorted(observed.points("tau"), key=float)
        rule = default_tau(CLASSES[name])
        nearest = min(range(len(grid)), key=lambda k: abs(math.log(float(grid[k]) / rule)))
        near = grid[max(nearest - 1, 0) : nearest + 2]
        parts.append(_best(observed, near, f"{CLASSES[name]} classes, rule {rule:.3g}: best tau", "tau", dataset=name))
    return _needing(parts, 3, "numbers of classes")


@check("000-09", "sln.fig7")
def gamma_range(store: Store) -> Verdict:
    """The mean over gamma 0.6 to 0.8 no less than any other gamma minus its standard error, and the best among them."""
    observed = store.evidence("sln.fig7")
    values = {gamma: _accuracy(observed, dataset="CIFAR-10", gamma=gamma) for gamma in observed.points("gamma")}
    good = [gamma for gamma in values if 0.6 <= float(gamma) <= 0.8]
    if len(good) < 3 or len(values) < 11 or min(len(one) for one in values.values()) < 2:
        return Verdict("inconclusive", f"two seeds of eleven gammas are needed, {len(values)} gammas are there")

    def worse(means: Sequence[float]) -> list[str]:
        """Gammas above the range; the best one, where it is outside, too."""
        by_gamma = dict(zip(values, means, strict=True))
        middle = sum(by_gamma[gamma] for gamma in good) / len(good)
        best = max(by_gamma, key=lambda gamma: by_gamma[gamma])
        above_it = {gamma for gamma in values if middle < by_gamma[gamma] - _error(values[gamma])}
        return sorted((above_it | {best}) - set(good))

    means = {gamma: _mean(one) for gamma, one in values.items()}
    middle, best = sum(means[gamma] for gamma in good) / len(good), max(means, key=lambda gamma: means[gamma])
    detail = f"mean of [0.6, 0.8] {middle:.2f}, best gamma {best} with {means[best]:.2f}"
    if outside := worse(list(means.values())):
        detail += f", above the range: {', '.join(outside)}"
    return redrawn(lambda m: not worse(m), [one.values() for one in values.values()], detail)


@check("000-10", "sln.fig1")
def difference_follows_accuracy(store: Store) -> Verdict:
    """Spearman over trained models above 0.8 for three gammas, on the test set."""
    rows = store.evidence("sln.fig1").final()
    found = {}
    for gamma, measure in (("0.5", "logit_difference_50"), ("0.7", "logit_difference"), ("1", "logit_difference_100")):
        pairs = [(row["test.accuracy"], row[f"test.{measure}"]) for row in rows]
        found[gamma] = spearman(*zip(*pairs, strict=True)) if len(pairs) > 2 else math.nan
    kinds = len({row.labels["model"] for row in rows})
    detail = ", ".join(f"gamma {gamma}: {value:.2f}" for gamma, value in found.items())
    if kinds < 3:
        return Verdict("inconclusive", f"{kinds} architectures; three are needed")
    return exact(min(found.values()) > 0.8, f"Spearman over {len(rows)} models, test set: {detail}")


@check("000-11", "sln.fig6")
def sln_is_most_compact(store: Store) -> Verdict:
    """The ratio of ResNet-20 with SLN is below that of four others on both splits."""
    observed = store.evidence("sln.fig6")
    parts = []
    for split in ("test", "train"):
        measure = f"{split}.intra_inter_ratio"
        sln = observed.values(measure, model="ResNet-20", loss="SLN")
        for model in ("ResNet-20", "ResNet-32"):
            for loss in ("CE", "LN"):
                other = observed.values(measure, model=model, loss=loss)
                parts.append(above(welch(other, sln), 0.0, f"{split}: {loss} with {model} - SLN"))
    return all_of(parts)


@check("000-12", "sln.theorem1")
def decomposition(store: Store) -> Verdict:
    """Errors at rounding level, all coefficients positive."""
    rows = store.evidence("sln.theorem1").final()
    worst = {name: max(row[f"theory.{name}"] for row in rows) for name in ("decomposition_error", "ln_cosine")}
    least = min(row["theory.smallest_coefficient"] for row in rows)
    cases = int(sum(row["theory.cases"] for row in rows))
    holds = worst["decomposition_error"] < 1e-10 and least > 0 and worst["ln_cosine"] < 1e-12
    return exact(
        holds,
        f"worst error {worst['decomposition_error']:.1e}, smallest c {least:.1e}, worst cosine with x - x* "
        f"{worst['ln_cosine']:.1e}, {cases} cases, {', '.join(row.labels['classes'] for row in rows)} classes",
    )


@check("000-13", "sln.dynamics")
def toy_compression(store: Store) -> Verdict:
    """With fixed weights CE keeps the place along the boundary and LN ends on f1 + f2 = 0; SLN has the least ratio."""
    observed = store.evidence("sln.dynamics")
    drift = max(observed.values("toy.drift", weights="fixed", loss="CE").values())
    parts = [exact(drift < 1e-9, f"CE: drift {drift:.1e}")]
    for tau in [tau for tau in observed.points("tau") if tau != "-"]:
        off = max(observed.values("toy.off_line", weights="fixed", loss="LN", tau=tau).values())
        said, holds = [f"LN |f1+f2|/|f| {off:.1e}"], off < 1e-3
        for weights in observed.points("weights"):
            sln = observed.values("toy.ratio", weights=weights, loss="SLN", tau=tau)
            others = [
                observed.values("toy.ratio", weights=weights, loss="CE"),
                observed.values("toy.ratio", weights=weights, loss="LN", tau=tau),
            ]
            smallest = sum(all(sln[seed] < other[seed] for other in others) for seed in sln)
            holds &= smallest == len(sln)
            said.append(f"SLN smallest in {smallest} of {len(sln)} with {weights} weights")
        parts.append(exact(holds, f"tau {tau} {'holds' if holds else 'fails'}: {', '.join(said)}"))
    return all_of(parts)


@check("000-14", "sln.table3")
def glue(store: Store) -> Verdict:
    """Paired differences over seeds above 0 for each task, Holm over tasks."""
    observed = store.evidence("sln.table3")
    model = _other_than("BERT-LARGE", "model", observed)
    differences = {}
    for task in observed.points("task"):
        both = [
            observed.values(SCORES.get(task, "test.accuracy"), model=model, task=task, loss=loss)
            for loss in ("SLN", "CE")
        ]
        differences[task] = paired(*({seed: 100 * value for seed, value in one.items()} for one in both))
    return _all_above(differences, f"{model}, SLN - CE on ")


@check("000-15", "sln.table2")
def augmentation(store: Store) -> Verdict:
    """SLN above plain CE, and within half a point of CE with mixup, cutmix and label smoothing."""
    observed = store.evidence("sln.table2")
    model = _other_than("ResNet-101", "model", observed)
    sln, ce, advanced = (
        _accuracy(observed, model=model, loss=loss) for loss in ("SLN", "CE", "CE, advanced augmentation")
    )
    return all_of(
        [
            above(welch(sln, ce), 0.0, "SLN - CE"),
            equivalent(welch(sln, advanced), 0.5, "SLN - CE with advanced augmentation, within 0.5"),
        ]
    )


def _all_above(differences: Mapping[str, Difference], what: str) -> Verdict:
    """Reproduced where each is above 0 after Holm's correction, not reproduced where an interval lies below."""
    parts = {name: above(one, 0.0, what + name) for name, one in differences.items()}
    corrected = holm_above(differences)
    joined = all_of(list(parts.values()))
    detail = f"{joined.detail}; largest p by Holm {max(corrected.values()):.2g}"
    if any(part.outcome == "not reproduced" for part in parts.values()):
        return Verdict("not reproduced", detail, joined.difference, joined.interval)
    holds = max(corrected.values()) < SIGNIFICANT
    return Verdict("reproduced" if holds else "inconclusive", detail, joined.difference, joined.interval)


def _needing(parts: Sequence[Verdict], count: int, what: str) -> Verdict:
    joined = all_of(parts)
    if 0 < len(parts) < count:
        return Verdict("inconclusive", f"{joined.detail}; {count} {what} are needed")
    return joined


def _other_than(point: str, axis: str, observed: Observations) -> str:
    """The first point of an axis that is not this one."""
    for name in observed.points(axis):
        if name != point:
            return name
    raise NotRunError(f"{observed.artifact} ({observed.size}): no {axis} other than {point} was run")


def _best(observed: Observations, among: Sequence[str], what: str, axis: str, **labels: str) -> Verdict:
    """Whether the point of an axis with the highest mean accuracy is among some."""
    values = {point: _accuracy(observed, **{axis: point}, **labels) for point in observed.points(axis)}
    points = list(values)
    best = max(points, key=lambda point: _mean(values[point]))
    groups = [one.values() for one in values.values()]
    return redrawn(lambda means: points[means.index(max(means))] in among, groups, f"{what} {best}")


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


def _error(values: Mapping[int, float]) -> float:
    mean = _mean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values.values()) / (len(values) - 1) / len(values))
