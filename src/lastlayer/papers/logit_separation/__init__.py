"""The Principle of Logit Separation (paper 002): what decides its claims, and the batch term of one of its losses."""

from collections.abc import Iterator, Sequence

import torch

from lastlayer.losses import batch_max_margin
from lastlayer.papers.engine.claims import Verdict, above, check, exact, mean, redrawn
from lastlayer.papers.engine.record import Done, on_training_samples
from lastlayer.papers.engine.store import Observations, Record
from lastlayer.papers.logit_separation.theory import ALIGNED, NAMES, NOT_ALIGNED
from lastlayer.reports.statistics import paired, welch
from lastlayer.runners import Placement

ALL_LOGITS = "CE with all logits"
MEASURES = ("auprc", "precision_at_90", "precision_at_99")
DATASETS = ("MNIST", "CIFAR-10")
CLOSE = 1.01  # a violation within this factor of the threshold counts as just above it


def batch_term(done: Done, plan: Placement) -> Iterator[Record]:
    """The batch's part of batch max-margin on the training set: the mean over its batches, in the order of the data."""
    for run in on_training_samples(done, plan):
        logits, target, size = run.train.logits, run.train.target, run.trial.batch_size
        terms = [
            batch_max_margin(logits[start : start + size], target[start : start + size], sample_term=False)
            for start in range(0, len(target) - size + 1, size)
        ]
        values = {"train.batch_term": float(torch.stack(terms).mean())}
        yield Record(run.labels, run.seed, run.trial.schedule.epochs, values)


@check("002-01", "logit_separation.counterexamples")
def not_aligned(computed: Observations) -> Verdict:
    """Both losses fall below every epsilon while a false logit exceeds a true one."""
    rows = computed.final()
    holds = [row["computed.loss"] <= float(row.labels["epsilon"]) and row["computed.gap"] < 0 for row in rows]
    least = max(row["computed.gap"] for row in rows)
    return exact(all(holds), f"{sum(holds)} of {len(holds)} losses and epsilons; gap at most {least:.3g}")


@check("002-02", "logit_separation.alignment")
def aligned(computed: Observations) -> Verdict:
    """No optimised violation is below a threshold, and each loss has one just above it."""
    sets, below = (int(sum(computed.column(f"computed.{name}"))) for name in ("sets", "below"))
    nearest = max(min(computed.column("computed.ratio", loss=loss)) for loss in ALIGNED)
    detail = f"{below} of {sets} violating sets below the threshold; nearest {nearest:.6f} of it"
    return exact(below == 0 and nearest <= CLOSE, detail)


@check("002-03", "logit_separation.table1")
def better_on_mnist(table: Observations) -> Iterator[Verdict]:
    """All fifteen cells beat the better of the two losses that are not aligned. The hardest measure has intervals."""
    groups = [_of(table, "MNIST", loss, measure) for measure in MEASURES for loss in NAMES]
    cells = len(ALIGNED) * len(MEASURES)
    detail = f"{_better_cells([mean(group) for group in groups])} of {cells} cells better on MNIST"
    yield redrawn(lambda means: _better_cells(means) == cells, groups, detail)
    best = max((_of(table, "MNIST", loss, "precision_at_99") for loss in NOT_ALIGNED), key=mean)
    for loss in ALIGNED:
        # paired by seed: both saw the samples in the same order
        difference = paired(_of(table, "MNIST", loss, "precision_at_99"), best)
        yield above(difference, what=f"P@0.99 of {loss}")


@check("002-04", "logit_separation.table1")
def improvement(table: Observations) -> Verdict:
    """At least 80 % of the relative improvements lie between 20 and 35 %."""
    groups = [_of(table, dataset, loss, measure) for dataset in DATASETS for measure in MEASURES for loss in NAMES]
    total = len(DATASETS) * len(MEASURES) * len(ALIGNED)
    means = [mean(group) for group in groups]
    inside, over = _gains_within(means, 0.2, 0.35), _gains_within(means, 0.2, 1.0)
    detail = f"{inside} of {total} improvements in 20-35 % (80 % needed); {over} of {total} are at least 20 %"
    return redrawn(lambda means: _gains_within(means, 0.2, 0.35) >= 0.8 * total, groups, detail)


@check("002-05", "logit_separation.table1")
def accuracy_kept(table: Observations) -> Iterator[Verdict]:
    """The accuracy of each aligned loss is less than 0.2 points below that of cross-entropy."""
    for dataset in DATASETS:
        baseline = _of(table, dataset, "CE", "accuracy%")
        for loss in ALIGNED:
            yield above(welch(_of(table, dataset, loss, "accuracy%"), baseline), -0.2, f"{loss} on {dataset}")


@check("002-06", "logit_separation.table1")
def as_good_as_all_logits(table: Observations) -> Iterator[Verdict]:
    """One logit of an aligned model misses at most 1.1 times what all logits of cross-entropy miss."""
    for dataset in DATASETS:
        groups = [_of(table, dataset, ALL_LOGITS, "probability_auprc")]
        groups += [_of(table, dataset, loss, "auprc") for loss in ALIGNED]
        good = _as_good([mean(group) for group in groups])
        yield redrawn(lambda means: _as_good(means) >= 3, groups, f"{dataset}: {good} of {len(ALIGNED)}, 3 needed")


@check("002-07", "logit_separation.table1_imagenet")
def many_classes(table: Observations) -> Iterator[Verdict]:
    """On every data set, batch cross-entropy misses a fifth less than cross-entropy, and certainly less."""
    for dataset in table.points("dataset"):
        both = [_of(table, dataset, loss, "auprc") for loss in ("batch CE", "CE")]
        gain = 1 - (1 - mean(both[0])) / (1 - mean(both[1]))
        yield above(welch(*both), what=f"AUPRC on {dataset}")
        yield redrawn(lambda m: 1 - m[0] < 0.8 * (1 - m[1]), both, f"relative improvement {gain:.3f}")


@check("002-08", "logit_separation.sample_term")
def sample_term(table: Observations) -> Iterator[Verdict]:
    """Without the term for each sample, the batch term stays higher in training and the AUPRC lower on test."""
    terms, auprc = (
        {arm: table.values(measure, arm=arm) for arm in ("with", "without")}
        for measure in ("train.batch_term", "test.auprc")
    )
    yield above(welch(terms["without"], terms["with"]), what="batch term, without - with")
    yield above(welch(auprc["with"], auprc["without"]), what="AUPRC, with - without")


@check("002-09", "logit_separation.table1")
def self_normalised(table: Observations) -> Iterator[Verdict]:
    """Mean and spread of log Z under self-norm and NCE are below a fifth of those under cross-entropy."""
    for name in ("log_partition_std", "log_partition_mean"):
        bar = {seed: 0.2 * abs(value) for seed, value in _of(table, "MNIST", "CE", name).items()}
        for loss in ("self-norm", "NCE"):
            ours = {seed: abs(value) for seed, value in _of(table, "MNIST", loss, name).items()}
            yield above(welch(bar, ours), what=f"0.2 CE - {loss}, {name}")


def _of(table: Observations, dataset: str, loss: str, measure: str) -> dict[int, float]:
    return table.values(f"test.{measure}", dataset=dataset, loss=loss)


# The following functions take the means of all losses of NAMES, for one cell (data set and measure) after the other.


def _cells(means: Sequence[float]) -> Iterator[tuple[Sequence[float], Sequence[float]]]:
    """The means of the losses that are not aligned, and of those that are, by cell."""
    for first in range(0, len(means), len(NAMES)):
        cell = means[first : first + len(NAMES)]
        yield cell[: len(NOT_ALIGNED)], cell[len(NOT_ALIGNED) :]


def _better_cells(means: Sequence[float]) -> int:
    """How many aligned losses are better than the best of the others."""
    return sum(one > max(others) for others, own in _cells(means) for one in own)


def _gains_within(means: Sequence[float], low: float, high: float) -> int:
    """How many aligned losses miss less than the best of the others, by a share between these two."""
    found = 0
    for others, own in _cells(means):
        best = min(1 - mean for mean in others)
        found += sum(low <= (1 - (1 - mean) / best if best > 0 else 0.0) <= high for mean in own)
    return found


def _as_good(means: Sequence[float]) -> int:
    """How many miss at most 1.1 times what the first one misses."""
    return sum(1 - mean <= 1.1 * (1 - means[0]) for mean in means[1:])
