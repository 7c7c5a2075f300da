"""The Principle of Logit Separation: what decides its claims."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lastlayer.losses import batch_max_margin
from lastlayer.papers._claims import check
from lastlayer.papers._evidence import Verdict, above, all_of, exact, paired, redrawn, welch
from lastlayer.papers._finished import Done, on_training_samples
from lastlayer.papers._logit_separation_theory import ALIGNED, counterexamples, search_violations
from lastlayer.papers._observations import Observations, Row, Store
from lastlayer.runners import Placement

__all__ = ["batch_term", "counterexamples", "search_violations"]

NOT_ALIGNED = ("CE", "max-margin")
ALL_LOGITS = "CE with all logits"
MEASURES = ("auprc", "precision_at_90", "precision_at_99")
DATASETS = ("MNIST", "CIFAR-10")
CLOSE = 1.01  # a violation this near the threshold counts as just above it


def batch_term(done: Done, plan: Placement) -> list[Row]:
    """The batch's part of batch max-margin on the training set: the mean over its batches, in the order of the data."""
    rows = []
    for run in on_training_samples(done, plan):
        logits, target, size = run.train.logits, run.train.target, run.trial.batch_size
        terms = [
            batch_max_margin(logits[start : start + size], target[start : start + size], sample_term=False)
            for start in range(0, len(target) - size + 1, size)
        ]
        values = {"train.batch_term": float(torch.stack(terms).mean())}
        rows.append(Row(run.labels, run.seed, run.trial.schedule.epochs, values))
    return rows


@check("002-01", "logit_separation.counterexamples")
def not_aligned(store: Store) -> Verdict:
    """Both losses fall below every epsilon while a false logit exceeds a true one."""
    rows = store.evidence("logit_separation.counterexamples").final()
    holds = [row["computed.loss"] <= float(row.labels["epsilon"]) and row["computed.gap"] < 0 for row in rows]
    least = max(row["computed.gap"] for row in rows)
    return exact(all(holds), f"{sum(holds)} of {len(holds)} losses and epsilons; gap at most {least:.3g}")


@check("002-02", "logit_separation.alignment")
def aligned(store: Store) -> Verdict:
    """No optimised violation below a threshold, and for each loss one just above it."""
    rows = store.evidence("logit_separation.alignment").final()
    sets, below = (int(sum(row[f"computed.{name}"] for row in rows)) for name in ("sets", "below"))
    nearest = {loss: min(r["computed.ratio"] for r in rows if r.labels["loss"] == loss) for loss in ALIGNED}
    detail = f"{below} of {sets} violating sets below the threshold; nearest {max(nearest.values()):.6f} of it"
    return exact(below == 0 and max(nearest.values()) <= CLOSE, detail)


@check("002-03", "logit_separation.table1")
def better_on_mnist(store: Store) -> Verdict:
    """All fifteen cells below the better of the two losses that are not aligned; the hardest measure with intervals."""
    table = store.evidence("logit_separation.table1")
    parts = [_cells_better(table, "MNIST")]
    best = _best_not_aligned(table, "MNIST", "precision_at_99")
    for loss in ALIGNED:
        # paired by seed: both have the same order of samples
        difference = paired(_of(table, "MNIST", loss, "precision_at_99"), best)
        parts.append(above(difference, what=f"P@0.99 of {loss}"))
    return all_of(parts)


@check("002-04", "logit_separation.table1")
def improvement(store: Store) -> Verdict:
    """The share of relative improvements between 20 and 35 %."""
    table = store.evidence("logit_separation.table1")
    cells = [(dataset, measure) for dataset in DATASETS for measure in MEASURES]
    groups = [
        _of(table, dataset, loss, measure).values() for dataset, measure in cells for loss in (*NOT_ALIGNED, *ALIGNED)
    ]
    means = [sum(group) / len(group) for group in groups]
    inside, over = _gains_within(means, 0.2, 0.35), _gains_within(means, 0.2, 1.0)
    total = len(cells) * len(ALIGNED)
    detail = f"{inside} of {total} improvements in 20-35 % (80 % needed); {over} of {total} are at least 20 %"
    return redrawn(lambda drawn: _gains_within(drawn, 0.2, 0.35) >= 0.8 * total, groups, detail)


@check("002-05", "logit_separation.table1")
def accuracy_kept(store: Store) -> Verdict:
    """Accuracy of each aligned loss is less than 0.2 points below that of cross-entropy."""
    table = store.evidence("logit_separation.table1")
    parts = []
    for dataset in DATASETS:
        baseline = {seed: 100 * value for seed, value in _of(table, dataset, "CE", "accuracy").items()}
        for loss in ALIGNED:
            points = {seed: 100 * value for seed, value in _of(table, dataset, loss, "accuracy").items()}
            parts.append(above(welch(points, baseline), -0.2, f"{loss} on {dataset}"))
    return all_of(parts)


@check("002-06", "logit_separation.table1")
def as_good_as_all_logits(store: Store) -> Verdict:
    """One logit of an aligned model misses at most 1.1 times what all of cross-entropy's miss."""
    table = store.evidence("logit_separation.table1")
    parts = []
    for dataset in DATASETS:
        groups = [_of(table, dataset, ALL_LOGITS, "probability_auprc").values()]
        groups += [_of(table, dataset, loss, "auprc").values() for loss in ALIGNED]
        good = _as_good([sum(group) / len(group) for group in groups])
        parts.append(
            redrawn(lambda means: _as_good(means) >= 3, groups, f"{dataset}: {good} of {len(ALIGNED)}, 3 needed")
        )
    return all_of(parts)


@check("002-07", "logit_separation.table1_imagenet")
def many_classes(store: Store) -> Verdict:
    """Batch cross-entropy misses a fifth less than cross-entropy, and certainly less, on every data set run."""
    table = store.evidence("logit_separation.table1_imagenet")
    parts = []
    for dataset in table.points("dataset"):
        gain = 1 - _missed(table, dataset, "batch CE", "auprc") / _missed(table, dataset, "CE", "auprc")
        both = [_of(table, dataset, loss, "auprc") for loss in ("batch CE", "CE")]
        parts.append(above(welch(*both), what=f"AUPRC on {dataset}"))
        groups = [one.values() for one in both]
        parts.append(redrawn(lambda m: 1 - m[0] < 0.8 * (1 - m[1]), groups, f"relative improvement {gain:.3f}"))
    return all_of(parts)


@check("002-08", "logit_separation.sample_term")
def sample_term(store: Store) -> Verdict:
    """Without the term for each sample the batch's term stays higher on train and the AUPRC lower on test."""
    table = store.evidence("logit_separation.sample_term")
    with_, without = ({"arm": arm} for arm in ("with", "without"))
    loss = welch(table.values("train.batch_term", **without), table.values("train.batch_term", **with_))
    auprc = welch(table.values("test.auprc", **with_), table.values("test.auprc", **without))
    return all_of([above(loss, what="batch term, without - with"), above(auprc, what="AUPRC, with - without")])


@check("002-09", "logit_separation.table1")
def self_normalised(store: Store) -> Verdict:
    """Mean and spread of log Z under self-norm and NCE are below a fifth of those under cross-entropy."""
    table = store.evidence("logit_separation.table1")
    parts = []
    for name in ("log_partition_std", "log_partition_mean"):
        bar = {seed: 0.2 * abs(value) for seed, value in _of(table, "MNIST", "CE", name).items()}
        for loss in ("self-norm", "NCE"):
            ours = {seed: abs(value) for seed, value in _of(table, "MNIST", loss, name).items()}
            parts.append(above(welch(bar, ours), what=f"0.2 CE - {loss}, {name}"))
    return all_of(parts)


def _of(table: Observations, dataset: str, loss: str, measure: str) -> dict[int, float]:
    return table.values(f"test.{measure}", dataset=dataset, loss=loss)


def _missed(table: Observations, dataset: str, loss: str, measure: str) -> float:
    values = _of(table, dataset, loss, measure)
    return 1 - sum(values.values()) / len(values)


def _best_not_aligned(table: Observations, dataset: str, measure: str) -> dict[int, float]:
    best = min(NOT_ALIGNED, key=lambda loss: _missed(table, dataset, loss, measure))
    return _of(table, dataset, best, measure)


def _gains_within(means: Sequence[float], low: float, high: float) -> int:
    """How many aligned losses miss less, by such a share, than the better of the others; means by cell and loss."""
    found, many = 0, len(NOT_ALIGNED) + len(ALIGNED)
    for first in range(0, len(means), many):
        missed = [1 - mean for mean in means[first : first + many]]
        best = min(missed[: len(NOT_ALIGNED)])
        found += sum(low <= (1 - one / best if best > 0 else 0.0) <= high for one in missed[len(NOT_ALIGNED) :])
    return found


def _as_good(means: Sequence[float]) -> int:
    """How many aligned losses miss at most 1.1 times what the first mean misses."""
    return sum(1 - mean <= 1.1 * (1 - means[0]) for mean in means[1:])


def _cells_better(table: Observations, dataset: str) -> Verdict:
    losses = (*NOT_ALIGNED, *ALIGNED)
    groups = [_of(table, dataset, loss, measure).values() for measure in MEASURES for loss in losses]

    def better(means: Sequence[float]) -> int:
        rows = [means[first : first + len(losses)] for first in range(0, len(means), len(losses))]
        bars = [max(row[: len(NOT_ALIGNED)]) for row in rows]
        return sum(one > bar for row, bar in zip(rows, bars, strict=True) for one in row[len(NOT_ALIGNED) :])

    cells = len(ALIGNED) * len(MEASURES)
    found = better([sum(group) / len(group) for group in groups])
    return redrawn(lambda means: better(means) == cells, groups, f"{found} of {cells} cells better on {dataset}")
