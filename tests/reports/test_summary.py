import math
import statistics

import pytest
import scipy.stats

from lastlayer.measures import MEASURES
from lastlayer.reports import load, summarise, verdict
from lastlayer.reports.summary import SECONDS, Cell, Column, compared, text_of_cell

from . import factory
from .factory import trial


def column(*groups, measure="accuracy"):
    """Groups as lists of values by seed."""
    cells = []
    for group in groups:
        by_seed = dict(group) if isinstance(group, dict) else dict(enumerate(group))
        finite = [value for value in by_seed.values() if math.isfinite(value)]
        mean = statistics.fmean(finite) if finite else math.nan
        cells.append(Cell(by_seed, mean, statistics.stdev(finite) if len(finite) > 1 else math.nan))
    return compared(Column("test", MEASURES.get(measure, SECONDS), tuple(cells)))


def standings(made):
    return [cell.standing for cell in made.cells]


def test_groups_mean_and_spread_over_seeds(tmp_path):
    accuracies = {"ce": [0.9, 0.92, 0.95], "sln": [0.91, 0.97, 0.93]}
    for loss, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": accuracy}, train={"accuracy": 1.0})
    summary = summarise(load(tmp_path))
    assert [group.label for group in summary.groups] == ["ce", "sln"]
    made = summary.column("test", "accuracy")
    for cell, values in zip(made.cells, accuracies.values(), strict=True):
        assert dict(cell.values) == dict(enumerate(values))
        assert (cell.mean, cell.std) == pytest.approx((statistics.fmean(values), statistics.stdev(values)))
        assert cell.n == 3
    assert summary.column("train", "accuracy").cells[0].std == 0.0
    assert summary.column("run", "seconds").cells[0].mean == 2.0
    assert summary.column("test", "oscr") is None
    assert {c.measure.name for c in summary.columns if c.split == "test"} == set(factory.MEASURED)


def test_no_run_is_dropped(tmp_path):
    trials = [trial(loss, seed) for loss in ("ce", "sln") for seed in range(3)]
    for one in trials[:3]:
        factory.done(tmp_path, one)
    factory.failed(tmp_path, trials[3])
    factory.cut(tmp_path, trials[4])
    factory.comparison(tmp_path, trials)
    summary = summarise(load(tmp_path))
    assert [group.label for group in summary.groups] == ["ce", "sln"]
    assert [len(group.done) for group in summary.groups] == [3, 0]
    assert [run.status for run in summary.problems] == ["failed", "interrupted", "missing"]
    assert all(summary.label_of(run) == "sln" for run in summary.problems)
    assert "nothing to compare it with" in verdict(summary)[0]


def test_nothing_is_done(tmp_path):
    factory.failed(tmp_path, trial())
    summary = summarise(load(tmp_path))
    assert summary.columns == ()
    assert "No run is finished" in verdict(summary)[0]


def test_a_run_whose_trial_cannot_be_read_is_a_problem_of_no_group(tmp_path):
    path = factory.cut(tmp_path, trial())
    (path / "trial.json").write_text("{")
    factory.done(tmp_path, trial(seed=1))
    summary = summarise(load(tmp_path))
    assert [run.status for run in summary.problems] == ["damaged"]
    assert summary.label_of(summary.problems[0]) == "unknown"


def test_groups_keep_the_order_of_a_comparison(tmp_path):
    trials = [trial(loss) for loss in ("sln", "bce", "ce")]
    for one in trials:
        factory.done(tmp_path, one)
    assert [group.label for group in summarise(load(tmp_path)).groups] == ["bce", "ce", "sln"]
    factory.comparison(tmp_path, trials)
    assert [group.label for group in summarise(load(tmp_path)).groups] == ["sln", "bce", "ce"]


def test_different_data_sets_cannot_be_compared(tmp_path):
    factory.done(tmp_path, trial(data="digits"))
    factory.done(tmp_path, trial(data="cifar10"))
    with pytest.raises(ValueError, match="cifar10, digits"):
        summarise(load(tmp_path))


def test_last_and_best_validation_results_are_separate(tmp_path):
    best = {"epoch": 5, "validation_accuracy": 0.8, "test": {"accuracy": 0.75}}
    factory.done(tmp_path, trial(), test={"accuracy": 0.7}, best=best)
    summary = summarise(load(tmp_path))
    assert summary.column("test", "accuracy").cells[0].mean == 0.7
    assert summary.column("best", "accuracy").cells[0].mean == 0.75
    assert summary.column("validation", "accuracy").cells[0].mean == 0.8


def test_below_five_seeds_the_best_and_what_is_near_it_and_never_a_winner():
    made = column([0.90, 0.91, 0.92], [0.91, 0.92, 0.93], [0.5, 0.51, 0.52])
    assert standings(made) == ["within", "best", "behind"]
    assert made.winner is None
    assert all(cell.p is None for cell in made.cells)
    lower = column([0.90, 0.91, 0.92], [0.91, 0.92, 0.93], [0.5, 0.51, 0.52], measure="nc1")
    assert standings(lower) == ["behind", "behind", "best"]


def test_four_seeds_far_apart_are_still_no_winner():
    assert standings(column([0.9, 0.91, 0.9, 0.91], [0.1, 0.11, 0.1, 0.11])) == ["best", "behind"]


def test_seeds_that_agree_by_chance_have_the_usual_noise():
    # Without the median rule the first two would have no noise at all and the second would be behind.
    assert (
        standings(column([0.99, 0.99, 0.99], [0.98, 0.98, 0.98], [0.96, 0.98, 1.0], [0.9, 0.94, 0.98]))[1] == "within"
    )


def test_one_seed_says_nothing_but_which_is_highest():
    assert standings(column([0.9], [0.8], [0.7])) == ["best", "unknown", "unknown"]


def test_equal_means_are_all_best():
    assert standings(column([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5])) == ["best", "best", "behind"]


def test_no_direction_no_best():
    assert standings(column([1.0, 2.0], [5.0, 6.0], measure="seconds")) == [None, None]
    assert standings(column([1.0, 2.0])) == [None]


def test_undefined_values_are_shown_and_not_compared():
    made = column([0.9, 0.91, math.nan], [0.5, 0.52, 0.53], [0.4, 0.41, math.inf], [0.51, 0.52, 0.53])
    assert standings(made) == [None, "within", None, "best"]
    assert made.cells[0].n == 2
    assert text_of_cell(MEASURES["accuracy"], Cell({0: math.nan}, math.nan, math.nan)) == "undefined"


BEST = [0.90, 0.93, 0.91, 0.95, 0.92]
NEAR = [0.91, 0.92, 0.905, 0.945, 0.921]
LESS = [0.88, 0.90, 0.90, 0.93, 0.895]
WORST = [0.50, 0.55, 0.52, 0.54, 0.51]


def test_from_five_seeds_differences_are_paired_and_corrected():
    made = column(BEST, NEAR, LESS, WORST)
    raw = [scipy.stats.ttest_rel(other, BEST).pvalue for other in (NEAR, LESS, WORST)]
    ordered = sorted(raw)
    by_hand = {ordered[0]: 3 * ordered[0], ordered[1]: max(2 * ordered[1], 3 * ordered[0])}
    by_hand[ordered[2]] = max(ordered[2], by_hand[ordered[1]])
    assert [cell.p for cell in made.cells[1:]] == pytest.approx([by_hand[p] for p in raw])
    assert standings(made) == ["best", "within", "behind", "behind"]
    assert made.winner is None
    assert made.differs


def test_a_winner_beats_all_others_after_correction():
    made = column(BEST, LESS, WORST)
    assert standings(made) == ["winner", "behind", "behind"]
    assert made.winner == made.best == 0


def test_pairing_finds_what_unpaired_noise_would_hide():
    shifts = [value - 0.01 - 0.0005 * (seed % 2) for seed, value in enumerate(BEST)]
    assert standings(column(BEST, shifts)) == ["winner", "behind"]
    assert standings(column(BEST[:4], shifts[:4])) == ["best", "within"]


def test_a_group_that_is_not_there_in_full_prevents_a_winner():
    assert column(BEST, LESS, WORST[:4]).winner is None
    assert column(BEST, LESS, [*WORST[:4], math.nan]).winner is None
    assert column(BEST, LESS, []).winner is None
    other_seeds = {seed + 3: value for seed, value in enumerate(WORST)}
    assert standings(column(BEST, LESS, other_seeds)) == ["best", "behind", "behind"]


def test_columns_that_differ_come_before_those_that_tie(tmp_path):
    for loss, nc3 in (("ce", 0.1), ("sln", 0.9)):
        for seed in range(3):
            train = {"nc1": 0.5 + 0.1 * seed, "nc2": 0.5 + 0.1 * seed, "nc3": nc3 + 0.01 * seed}
            factory.done(tmp_path, trial(loss, seed), train=train, test={"accuracy": 0.9 + 0.01 * seed})
    summary = summarise(load(tmp_path))
    names = [one.measure.name for one in summary.leading("train", ("nc1", "nc2", "nc3"))]
    assert names == ["nc3", "nc1", "nc2"]
    sentences = verdict(summary)
    assert sentences[0].startswith("Test accuracy ties")
    assert "NC3 (train, ce best)" in sentences[1]
    assert "nothing is called a winner" in sentences[2]


def test_the_verdict_names_a_winner_only_from_five_seeds(tmp_path):
    for loss, shift in (("ce", 0.0), ("sln", 0.1)):
        for seed, noise in enumerate([0.0, 0.003, 0.001, 0.004, 0.002]):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": 0.8 + shift + noise * (1 + 10 * shift)})
    assert verdict(summarise(load(tmp_path)))[0].startswith("sln wins on test accuracy")
    few = [tmp_path / factory.identity(trial(loss, seed)) for loss in ("ce", "sln") for seed in range(4)]
    sentences = verdict(summarise(load(few)))
    assert sentences[0].startswith("sln has the highest test accuracy")
    assert not any("wins" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("name", "mean", "std", "text"),
    [
        ("accuracy", 0.97221, 0.00281, "0.9722 ±.0028"),
        ("nc1", 0.0123456, 0.004567, "0.0123 ±.0046"),
        ("nc1", 1.234e-7, 5.6e-8, "1.23e-07 ±6e-08"),
        ("nc1", 123.4, 12.3, "123 ±12"),
        ("accuracy", 0.5, math.nan, "0.5000"),
        ("logit_gap", -3.25, 1.5, "-3.25 ±1.50"),
    ],
)
def test_numbers_as_text(name, mean, std, text):
    assert text_of_cell(MEASURES[name], Cell({0: mean}, mean, std)) == text
