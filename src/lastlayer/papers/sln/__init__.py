"""Soft Logit Normalization (paper 000): what decides its claims. Accuracies are in percentage points."""

import math
from collections.abc import Iterator, Mapping, Sequence

from lastlayer.losses import default_tau
from lastlayer.papers.engine.claims import Outcome, Verdict, above, all_of, check, equivalent, exact, mean, redrawn
from lastlayer.papers.engine.store import NotRunError, Observations
from lastlayer.papers.sln.theory import LOGIT_DIFFERENCES
from lastlayer.reports.statistics import Difference, holm_above, paired, spearman, spread, welch

SIGNIFICANT = 0.025  # one-sided, as in a 95 % interval
CLASSES = {
    "CIFAR-10": 10,
    "CIFAR-100": 100,
    "ImageNet-1K": 1000,
    "Tiny-ImageNet-32, 50 classes": 50,
    "Tiny-ImageNet-32": 200,
}
SCORES = {"CoLA": "test.matthews", "MRPC": "test.f1", "QQP": "test.f1"}  # the other tasks use accuracy


def _accuracy(observed: Observations, **labels: str) -> dict[int, float]:
    return observed.values("test.accuracy%", **labels)


def _cifar10(table: Observations, loss: str, model: str = "ResNet-20") -> dict[int, float]:
    return _accuracy(table, dataset="CIFAR-10", model=model, loss=loss)


@check("000-01", "sln.table1")
def sln_beats_ce(table: Observations) -> Verdict:
    """SLN above CE, with at least five seeds each."""
    sln, ce = (_cifar10(table, loss) for loss in ("SLN", "CE"))
    verdict = above(welch(sln, ce), 0.0, "SLN - CE (published +0.77)")
    return verdict.but("inconclusive", "; five needed") if min(len(sln), len(ce)) < 5 else verdict


@check("000-02", "sln.table1")
def ln_is_like_ce(table: Observations) -> Verdict:
    """LN and CE within 0.4 of each other."""
    difference = welch(_cifar10(table, "LN"), _cifar10(table, "CE"))
    return equivalent(difference, 0.4, "LN - CE within 0.4 (published +0.24)")


@check("000-03", "sln.table1")
def sln_is_best_of_its_kind(table: Observations) -> Verdict:
    """SLN above each of the three other losses that work on logits."""
    sln = _cifar10(table, "SLN")
    others = {loss: welch(sln, _cifar10(table, loss)) for loss in ("LN", "L-Softmax", "M-Softmax")}
    return _all_above(others, "SLN - ")


@check("000-04", "sln.table1")
def small_matches_large(table: Observations) -> Verdict:
    """ResNet-20 with SLN at most 0.5 below ResNet-56 with CE. The verdict at margin 0 is told beside it."""
    difference = welch(_cifar10(table, "SLN"), _cifar10(table, "CE", "ResNet-56"))
    verdict = above(difference, -0.5, "SLN with ResNet-20 - CE with ResNet-56, margin 0.5 (published -0.49)")
    return verdict.but(verdict.outcome, f"; at margin 0: {above(difference).outcome}")


@check("000-05", "sln.table1_classes")
def gain_grows_with_classes(table: Observations) -> Iterator[Verdict]:
    """With many classes SLN gains, and more than with ten."""
    many = _other_than("CIFAR-10", "dataset", table)
    runs = {
        (name, loss): _accuracy(table, dataset=name, loss=loss) for name in (many, "CIFAR-10") for loss in ("SLN", "CE")
    }
    gains = {name: welch(runs[name, "SLN"], runs[name, "CE"]) for name in (many, "CIFAR-10")}
    yield above(gains[many], 0.0, f"gain at {CLASSES[many]} classes")
    detail = f"at 10 classes {gains['CIFAR-10'].mean:+.3g}"
    yield redrawn(lambda m: m[0] - m[1] > m[2] - m[3], runs.values(), detail)


@check("000-06", "sln.table1")
def sln_matches_distillation(table: Observations) -> Verdict:
    """SLN at most 0.3 below distillation from our own ResNet-56."""
    difference = welch(_cifar10(table, "SLN"), _cifar10(table, "KD from ResNet-56"))
    return above(difference, -0.3, "SLN - KD, margin 0.3 (published -0.09)")


@check("000-07", "sln.table4")
def temperature(table: Observations) -> Iterator[Verdict]:
    """tau 0.2 instead of 1 hurts CE and helps LN and SLN, whose best tau is at most one step of the grid from 0.2."""
    for loss in ("CE", "LN", "SLN"):
        low, high = (_accuracy(table, loss=loss, tau=tau) for tau in ("0.2", "1.0"))
        if loss == "CE":
            yield above(welch(high, low), 0.0, f"{loss}, tau 1 - 0.2")
        else:
            yield above(welch(low, high), 0.0, f"{loss}, tau 0.2 - 1")
            yield _best(table, ("0.1", "0.2", "0.4"), f"best tau of {loss}", "tau", loss=loss)


@check("000-08", "sln.table5")
def tau_rule(table: Observations) -> Verdict:
    """For each number of classes the best tau of the grid is the one nearest to the rule, or a neighbour of it."""
    parts = []
    for name in table.points("dataset"):
        grid = sorted(table.points("tau"), key=float)
        rule = default_tau(CLASSES[name])
        nearest = min(range(len(grid)), key=lambda k: abs(math.log(float(grid[k]) / rule)))
        near = grid[max(nearest - 1, 0) : nearest + 2]
        parts.append(_best(table, near, f"{CLASSES[name]} classes, rule {rule:.3g}: best tau", "tau", dataset=name))
    joined = all_of(parts)
    return joined.but("inconclusive", "; 3 numbers of classes are needed") if 0 < len(parts) < 3 else joined


@check("000-09", "sln.fig7")
def gamma_range(sweep: Observations) -> Verdict:
    """The mean over gamma 0.6 to 0.8 is not below any other gamma minus its standard error. The best gamma is in it."""
    values = {gamma: _accuracy(sweep, dataset="CIFAR-10", gamma=gamma) for gamma in sweep.points("gamma")}
    good = [gamma for gamma in values if 0.6 <= float(gamma) <= 0.8]
    if len(good) < 3 or len(values) < 11 or min(len(one) for one in values.values()) < 2:
        return Verdict("inconclusive", f"two seeds of eleven gammas are needed, {len(values)} gammas are there")

    errors = {gamma: spread([*one.values()])[1] / math.sqrt(len(one)) for gamma, one in values.items()}

    def outside(means: Sequence[float]) -> list[str]:
        """Gammas outside the range that are above its mean, and the best gamma if it is outside."""
        by_gamma = dict(zip(values, means, strict=True))
        middle = sum(by_gamma[gamma] for gamma in good) / len(good)
        better = {gamma for gamma in values if middle < by_gamma[gamma] - errors[gamma]}
        return sorted((better | {max(by_gamma, key=lambda gamma: by_gamma[gamma])}) - set(good))

    means = {gamma: mean(one) for gamma, one in values.items()}
    best, wrong = max(means, key=lambda gamma: means[gamma]), outside(list(means.values()))
    detail = f"mean of [0.6, 0.8] {mean([means[gamma] for gamma in good]):.2f}, best gamma {best}"
    detail += f" with {means[best]:.2f}" + (f", above the range: {', '.join(wrong)}" if wrong else "")
    return redrawn(lambda m: not outside(m), values.values(), detail)


@check("000-10", "sln.fig1")
def difference_follows_accuracy(models: Observations) -> Verdict:
    """On the test set, accuracy and logit difference have a rank correlation above 0.8 over models, at three gammas."""
    rows = models.final()
    found = {}
    for gamma, measure in LOGIT_DIFFERENCES.items():
        pairs = [(row["test.accuracy"], row[f"test.{measure}"]) for row in rows]
        found[gamma] = spearman(*zip(*pairs, strict=True)) if len(pairs) > 2 else math.nan
    kinds = len({row.labels["model"] for row in rows})
    if kinds < 3:
        return Verdict("inconclusive", f"{kinds} architectures; three are needed")
    detail = ", ".join(f"gamma {gamma}: {value:.2f}" for gamma, value in found.items())
    return exact(min(found.values()) > 0.8, f"Spearman over {len(rows)} models, test set: {detail}")


@check("000-11", "sln.fig6")
def sln_is_most_compact(models: Observations) -> Iterator[Verdict]:
    """The intra-inter ratio of ResNet-20 with SLN is below that of four others, on both splits."""
    for split in ("test", "train"):
        measure = f"{split}.intra_inter_ratio"
        sln = models.values(measure, model="ResNet-20", loss="SLN")
        for model in ("ResNet-20", "ResNet-32"):
            for loss in ("CE", "LN"):
                other = models.values(measure, model=model, loss=loss)
                yield above(welch(other, sln), 0.0, f"{split}: {loss} with {model} - SLN")


@check("000-12", "sln.theorem1")
def decomposition(computed: Observations) -> Verdict:
    """Errors at the level of rounding, and every coefficient positive."""
    error, cosine = (max(computed.column(f"theory.{name}")) for name in ("decomposition_error", "ln_cosine"))
    least = min(computed.column("theory.smallest_coefficient"))
    cases = int(sum(computed.column("theory.cases")))
    return exact(
        error < 1e-10 and least > 0 and cosine < 1e-12,
        f"worst error {error:.1e}, smallest c {least:.1e}, worst cosine with x - x* {cosine:.1e}, {cases} cases, "
        f"{', '.join(row.labels['classes'] for row in computed.final())} classes",
    )


@check("000-13", "sln.dynamics")
def toy_compression(toy: Observations) -> Iterator[Verdict]:
    """Fixed weights: points keep their place along the boundary under CE, and end on f1 + f2 = 0 under LN.

    SLN has the least ratio, with fixed and with trained weights.
    """
    drift = max(toy.values("toy.drift", weights="fixed", loss="CE").values())
    yield exact(drift < 1e-9, f"CE: drift {drift:.1e}")
    for tau in [tau for tau in toy.points("tau") if tau != "-"]:
        off = max(toy.values("toy.off_line", weights="fixed", loss="LN", tau=tau).values())
        said, holds = [f"LN |f1+f2|/|f| {off:.1e}"], off < 1e-3
        for weights in toy.points("weights"):
            sln, ln = (toy.values("toy.ratio", weights=weights, loss=loss, tau=tau) for loss in ("SLN", "LN"))
            ce = toy.values("toy.ratio", weights=weights, loss="CE")
            smallest = sum(sln[seed] < min(ln[seed], ce[seed]) for seed in sln)
            holds &= smallest == len(sln)
            said.append(f"SLN smallest in {smallest} of {len(sln)} with {weights} weights")
        yield exact(holds, f"tau {tau} {'holds' if holds else 'fails'}: {', '.join(said)}")


@check("000-14", "sln.table3")
def glue(table: Observations) -> Verdict:
    """SLN above CE on each task, paired by seed."""
    model = _other_than("BERT-LARGE", "model", table)
    differences = {}
    for task in table.points("task"):
        measure = f"{SCORES.get(task, 'test.accuracy')}%"
        differences[task] = paired(
            *(table.values(measure, model=model, task=task, loss=loss) for loss in ("SLN", "CE"))
        )
    return _all_above(differences, f"{model}, SLN - CE on ")


@check("000-15", "sln.table2")
def augmentation(table: Observations) -> Iterator[Verdict]:
    """SLN above plain CE, and within half a point of CE with mixup, cutmix and label smoothing."""
    model = _other_than("ResNet-101", "model", table)
    sln, ce, advanced = (
        _accuracy(table, model=model, loss=loss) for loss in ("SLN", "CE", "CE, advanced augmentation")
    )
    yield above(welch(sln, ce), 0.0, "SLN - CE")
    yield equivalent(welch(sln, advanced), 0.5, "SLN - CE with advanced augmentation, within 0.5")


def _all_above(differences: Mapping[str, Difference], what: str) -> Verdict:
    """Reproduced if each is above 0 after Holm's correction; not reproduced if one interval lies below 0."""
    joined = all_of([above(one, 0.0, what + name) for name, one in differences.items()])
    largest = max(holm_above(differences).values())
    outcome: Outcome = "reproduced" if largest < SIGNIFICANT else "inconclusive"
    if joined.outcome == "not reproduced":
        outcome = "not reproduced"
    return joined.but(outcome, f"; largest p by Holm {largest:.2g}")


def _other_than(point: str, axis: str, observed: Observations) -> str:
    """The first point of an axis that is not this one."""
    if others := [name for name in observed.points(axis) if name != point]:
        return others[0]
    raise NotRunError(f"{observed.artifact} ({observed.size}): no {axis} other than {point} was run")


def _best(observed: Observations, among: Sequence[str], what: str, axis: str, **labels: str) -> Verdict:
    """Whether the point of an axis with the highest mean accuracy is one of some points."""
    points = observed.points(axis)
    groups = [_accuracy(observed, **{axis: point}, **labels) for point in points]

    def best(means: Sequence[float]) -> str:
        return points[means.index(max(means))]

    return redrawn(lambda means: best(means) in among, groups, f"{what} {best([mean(group) for group in groups])}")
