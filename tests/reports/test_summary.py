import csv
import statistics

import pytest

from lastlayer.reports import load, summarise, verdict, write_csv

from . import factory
from .factory import trial


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


def test_runs_that_failed_alike_are_said_together(tmp_path):
    for seed in range(3):
        factory.failed(tmp_path, trial("sln", seed), "broke" if seed < 2 else "burnt")
    factory.failed(tmp_path, trial("ce"), "broke")
    told = {(label, seeds) for _, label, seeds, reason in summarise(load(tmp_path)).problems_by_reason()}
    assert told == {("ce", "seed 0"), ("sln", "seeds 0, 1"), ("sln", "seed 2")}


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


def test_csv_holds_every_value_and_every_run(tmp_path):
    for seed in range(2):
        factory.done(tmp_path, trial("ce", seed))
        factory.done(tmp_path, trial("sln", seed), train={"nc1": 0.1 + 0.2 + seed})
    factory.failed(tmp_path, trial("sln", 2))
    path = tmp_path / "values.csv"
    write_csv(summarise(load(tmp_path)), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    done = [row for row in rows if row["status"] == "done"]
    assert len(done) == 4 * (2 * len(factory.MEASURED) + 1)
    (one,) = [r for r in done if (r["group"], r["seed"], r["split"], r["measure"]) == ("sln", "1", "train", "nc1")]
    assert float(one["value"]) == 0.1 + 0.2 + 1
    assert [(row["group"], row["seed"]) for row in rows if row["status"] == "failed"] == [("sln", "2")]
