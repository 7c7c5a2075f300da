"""Are all losses created equal (paper 001): what decides its claims, and how its features are compared."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from lastlayer.geometry import equivalence
from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.claims import Verdict, above, check, exact, mean, of_interval, redrawn
from lastlayer.papers.engine.record import Done, on_training_samples
from lastlayer.papers.engine.store import NotRunError, Observations, Record
from lastlayer.reports.statistics import bootstrap, sign_test, welch
from lastlayer.runners import Placement

LOSSES = ("CE", "FL", "LS", "MSE")
LIMITS = {"nc1": 0.05, "nc2": 0.1, "nc3": 0.1}


def rotations(done: Done, plan: Placement) -> Iterator[Record]:
    """How far the class means of two runs are from equal up to rotation and scale, on their training samples.

    The two runs differ either in the loss or in the seed. Their label reads "CE and FL", or "CE and CE".
    """
    for a, b in itertools.combinations(list(on_training_samples(done, plan)), 2):
        first, second = a.labels["loss"], b.labels["loss"]
        if (first == second) != (a.seed == b.seed):
            residual = float(equivalence(a.train.features, b.train.features, a.train.target))
            seed = a.seed if first != second else 1000 * a.seed + b.seed  # each pair of seeds has its own number
            values = {"pair.equivalence": residual}
            yield Record({"loss": f"{first} and {second}"}, seed, a.trial.schedule.epochs, values)


@check("001-01", "equal_losses.theorem1")
def global_minimisers(computed: Observations) -> Verdict:
    """The best start has the objective, the frame and the class means of the closed form, for every loss, K and d."""
    gap, frame, means, bias, duality = (
        max(computed.column(f"computed.{name}"))
        for name in ("gap", "frame_error", "mean_sum", "bias_spread", "self_duality_error")
    )
    detail = (
        f"{len(computed.final())} problems: objective off by {gap:.1e}, W W' by {frame:.1e}, sum of means {means:.1e}, "
        f"spread of the bias {bias:.1e}, W - sqrt(n) means {duality:.1e}"
    )
    return exact(gap < 1e-10 and frame < 1e-6 and means < 1e-6, detail)


@check("001-02", "equal_losses.definition1")
def contrastive_property(computed: Observations) -> Verdict:
    """No logits below the bound, equality at equal false logits, and one minimiser t* <= 0 at every c of the grid."""
    broken, logits, several, positive, wrong = (
        int(sum(computed.column(f"computed.{name}")))
        for name in ("violations", "logits", "several_minimisers", "positive_minimisers", "disagreements")
    )
    equal = max(computed.column("computed.excess_at_equal"))
    tied = [row for row in computed.final() if "computed.tie_at" in row.values]
    ties = [f"K = {row.labels['classes']} at c = {row['computed.tie_at']:.6f}" for row in tied]
    detail = (
        f"{broken} violations of {logits}, off by {equal:.1e} at equal false logits; {several} c with several "
        f"minimisers, {positive} with t* > 0; known exception of FL: {', '.join(ties) or 'none among these K'}"
    )
    return exact(broken + several + positive + wrong == 0 and equal < 1e-12, detail)


@check("001-03", "equal_losses.theorem2")
def benign_landscape(computed: Observations) -> Verdict:
    """Every start of CE, LS and MSE ends at the global value. FL is counted."""
    rows = computed.final()
    convex = [row["computed.share"] for row in rows if row.labels["loss"] != "FL"]
    focal = [
        f"K = {row.labels['classes']}, c = {row.labels['c']}: {row['computed.share']:.0%}"
        for row in rows
        if row.labels["loss"] == "FL"
    ]
    detail = f"CE, LS, MSE: at least {min(convex):.0%} of the starts in {len(convex)} problems; FL {'; '.join(focal)}"
    return exact(min(convex) == 1.0, detail)


@check("001-04", "equal_losses.corollary2")
def strict_saddles(computed: Observations) -> Verdict:
    """Negative curvature at both saddles. In the logits, focal loss is convex from p = 0.2032 on."""
    rows = computed.final()
    saddles = [row for row in rows if "computed.curvature" in row.values]
    highest = max(row["computed.curvature"] for row in saddles)
    slope = max(row["computed.gradient"] for row in saddles)
    lowest = min(row["computed.logit_curvature"] for row in rows if "computed.logit_curvature" in row.values)
    detail = (
        f"{len(saddles)} saddles with curvature at most {highest:.3g} and gradient at most {slope:.1e}; "
        f"smallest eigenvalue in the logits {lowest:.1e}"
    )
    return exact(highest < -1e-8 and slope < 1e-6 and lowest >= -1e-12, detail)


@check("001-05", "equal_losses.fig1")
def all_collapse(seen: Observations) -> Iterator[Verdict]:
    """Under every loss NC1, NC2 and NC3 are small at the end, and lower than when the last third began."""
    for loss in LOSSES:
        for name, limit in LIMITS.items():
            curve = _by_epoch(seen, f"train.{name}", loss=loss)
            last = max(curve)
            before = min(epoch for epoch in curve if epoch >= 2 * last / 3)
            falls = [earlier - end for earlier, end in zip(curve[before], curve[last], strict=True)]
            detail = f"{loss} {name} {mean(curve[last]):.3g}{'' if mean(falls) > 0 else ', not falling'}"
            yield redrawn(functools.partial(_small_and_falling, limit), [curve[last], falls], detail)


def _small_and_falling(limit: float, means: Sequence[float]) -> bool:
    return means[0] < limit and means[1] > 0


@check("001-06", "equal_losses.fig1")
def equal_up_to_rotation(seen: Observations) -> Verdict:
    """On average, class means differ at most 1.5 times as much between losses as between seeds."""
    pairs = [f"{a} and {b}" for a, b in itertools.combinations(LOSSES, 2)]
    labels = [*pairs, *(f"{loss} and {loss}" for loss in LOSSES)]
    groups = [seen.values("pair.equivalence", loss=pair) for pair in labels]

    def residuals(means: Sequence[float]) -> tuple[float, float]:
        """Between losses, and between seeds."""
        return fmean(means[: len(pairs)]), fmean(means[len(pairs) :])

    means = [mean(group) for group in groups]
    (losses, seeds), (worst, pair) = residuals(means), max(zip(means, pairs, strict=False))
    detail = (
        f"residual between losses {losses:.3g}, between seeds {seeds:.3g}, ratio {losses / seeds:.3g}; "
        f"worst {pair} {worst:.3g}"
    )
    return redrawn(lambda drawn: residuals(drawn)[0] <= 1.5 * residuals(drawn)[1], groups, detail)


@check("001-07", "equal_losses.fig3")
def spread_shrinks(seen: Observations) -> Verdict:
    """Over losses, test accuracy spreads less in large and long runs than in small and short ones."""
    groups = [
        list(seen.values("best.accuracy%", loss=loss, **corner).values())
        for corner in (_corner(seen, 0), _corner(seen, -1))
        for loss in LOSSES
    ]

    def shrinks(*drawn: Sequence[float]) -> float:
        means = [mean(group) for group in drawn]
        small, large = means[: len(LOSSES)], means[len(LOSSES) :]
        return (max(small) - min(small)) - (max(large) - min(large))

    low, high = bootstrap(shrinks, *groups)
    difference = shrinks(*groups)
    detail = f"the spread shrinks by {difference:.3g} points [{low:.3g}, {high:.3g}]"
    found = Verdict(of_interval((low, high)), detail, difference, (low, high))
    return found if min(map(len, groups)) > 1 else found.but("inconclusive", "; one seed has no spread")


@check("001-08", "equal_losses.fig4")
def collapse_by_orders(seen: Observations) -> Iterator[Verdict]:
    """For each loss, NC1 of small and short runs is more than a hundred times that of large and long ones."""
    for loss in LOSSES:
        small, large = (
            {seed: math.log10(value) for seed, value in seen.values("train.nc1", loss=loss, **corner).items()}
            for corner in (_corner(seen, 0), _corner(seen, -1))
        )
        yield above(welch(small, large), 2.0, f"{loss}, orders of magnitude")


@check("001-09", "equal_losses.fig3")
def wider_and_longer(seen: Observations) -> Verdict:
    """For each loss, between the ends of both axes: wider is better at each length, longer at each width."""
    corners = itertools.product(LOSSES, _ends(seen, "width"), _ends(seen, "epochs"))
    groups = [seen.values("best.accuracy", loss=loss, width=width, epochs=long) for loss, width, long in corners]

    def differences(means: Sequence[float]) -> list[float]:
        four = [means[first : first + 4] for first in range(0, len(means), 4)]  # of each loss
        return [d for a, b, c, e in four for d in (c - a, e - b, b - a, e - c)]

    found = differences([mean(group) for group in groups])
    positive, p = sum(value > 0 for value in found), sign_test(found)  # sixteen of sixteen: p 1.5e-5
    detail = f"{positive} of {len(found)} differences above 0, least {100 * min(found):.2f} points; p {p:.2g}"
    return redrawn(lambda means: min(differences(means)) > 0, groups, detail)


@check("001-10", "equal_losses.fig5")
def focal_is_slowest(seen: Observations) -> Iterator[Verdict]:
    """NC1 is largest under FL in four fifths of the evaluations after the first third."""
    for dataset in seen.points("dataset"):
        curves = {loss: _by_epoch(seen, "train.nc1", loss=loss, dataset=dataset) for loss in LOSSES}
        measured = set.intersection(*(set(curve) for curve in curves.values()))
        epochs = sorted(epoch for epoch in measured if epoch > max(measured) / 3)
        groups = [curves[loss][epoch] for epoch in epochs for loss in ("FL", "CE", "LS", "MSE")]
        largest = _first_of_four([mean(group) for group in groups])
        detail = f"{dataset}: FL largest at {largest} of {len(epochs)} evaluations"
        yield redrawn(lambda means: _first_of_four(means) >= 0.8 * len(means) / 4, groups, detail)


def _first_of_four(means: Sequence[float]) -> int:
    """How often the first of four is the largest."""
    return sum(means[at] > max(means[at + 1 : at + 4]) for at in range(0, len(means), 4))


def _ends(seen: Observations, axis: str) -> tuple[str, str]:
    """The least and the greatest point of an axis at this size, whether or not they were run."""
    points = {cell.labels[axis] for cell in artifact(seen.artifact).grid(seen.size).cells}
    return min(points, key=float), max(points, key=float)


def _corner(seen: Observations, end: int) -> dict[str, str]:
    """The smallest (0) or largest (-1) width and length."""
    return {axis: _ends(seen, axis)[end] for axis in ("width", "epochs")}


def _by_epoch(seen: Observations, measure: str, **labels: str) -> dict[int, list[float]]:
    """The values of all seeds by epoch, for epochs at which all were measured."""
    curves = [seen.curve(measure, row.seed, **labels) for row in seen.final(**labels)]
    epochs = [epoch for epoch in curves[0] if all(epoch in curve for curve in curves)]
    if not epochs:
        raise NotRunError(f"{seen.artifact} ({seen.size}): the seeds of {labels} share no epoch")
    return {epoch: [curve[epoch] for curve in curves] for epoch in epochs}
