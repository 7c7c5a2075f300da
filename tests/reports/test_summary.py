import csv
import statistics

import pytest

from lastlayer.reports import load, summarise, write_csv
from lastlayer.reports.summary import differing, labels_of, settings_of

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


def test_named_columns_come_in_the_order_of_the_names(tmp_path):
    factory.done(tmp_path, trial())
    names = [one.measure.name for one in summarise(load(tmp_path)).leading("train", ("nc3", "oscr", "nc1"))]
    assert names == ["nc3", "nc1"]


def test_runs_on_several_folds_are_one_group(tmp_path):
    for fold in range(3):
        data = {"name": "digits", "options": {}, "seed": 0, "fold": fold}
        factory.done(tmp_path, trial("ce", fold) | {"data": data}, test={"accuracy": 0.9 + 0.01 * fold})
    (group,) = summarise(load(tmp_path)).groups
    assert group.label == "ce"
    assert sorted(group.done) == [0, 1, 2]


def test_one_seed_on_several_folds_is_a_group_per_fold(tmp_path):
    """As the candidates of a search are."""
    for fold in range(3):
        data = {"name": "digits", "options": {}, "seed": 0, "fold": fold}
        factory.done(tmp_path, trial("ce", 0) | {"data": data})
    groups = summarise(load(tmp_path)).groups
    assert [group.label for group in groups] == [f"ce data.fold={fold}" for fold in range(3)]
    assert [len(group.done) for group in groups] == [1, 1, 1]


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


def keys(*trials):
    return [{name: value for name, value in one.items() if name != "seed"} for one in trials]


def test_the_loss_alone_where_it_says_enough():
    assert labels_of(keys(trial("ce"), trial("sln", lr=0.01), trial("bce"))) == ["ce", "sln", "bce"]


def test_what_differs_among_groups_of_the_same_loss():
    made = labels_of(keys(trial("ce"), trial("sln", options={"gamma": 0.5}), trial("sln", options={"gamma": 0.7})))
    assert made == ["ce", "sln gamma=0.5", "sln gamma=0.7"]
    assert labels_of(keys(trial(lr=0.1), trial(lr=0.01))) == ["ce lr=0.1", "ce lr=0.01"]


def test_an_option_that_one_group_leaves_out():
    assert labels_of(keys(trial("sln"), trial("sln", options={"gamma": 0.5}))) == ["sln", "sln gamma=0.5"]


def test_the_name_of_a_part_is_called_by_the_part():
    other = {"name": "mlp", "options": {"name": "x"}}
    assert labels_of(keys(trial(), trial(model=other))) == ["ce", "ce options.name=x"]
    assert labels_of(keys(trial(), trial(model={"name": "cnn", "options": {}}))) == ["ce model=mlp", "ce model=cnn"]


def test_settings_with_the_same_last_name_are_told_apart():
    a = trial(model={"name": "mlp", "options": {"scale": 1}}, head={"name": "normalized", "options": {"scale": 8}})
    b = trial(model={"name": "mlp", "options": {"scale": 2}}, head={"name": "normalized", "options": {"scale": 16}})
    assert labels_of(keys(a, b)) == ["ce model.scale=1 head.scale=8", "ce model.scale=2 head.scale=16"]


@pytest.mark.parametrize(("a", "b"), [(None, 0.1), ([0.5], [0.6]), (True, 1), (0.1, 0.1000001)])
def test_labels_are_unique(a, b):
    made = labels_of(keys(trial(lr=a), trial(lr=b)))
    assert made[0] != made[1]


def test_differing_keeps_the_order_and_sees_absent_settings():
    assert differing([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None}]) == ["b", "c"]
    assert differing([{"a": None}, {"a": "none"}]) == []  # shown alike, so no column tells them apart
    assert settings_of({"loss": {"name": "ce", "options": {"x": {"y": 1}}}}) == {"loss.name": "ce", "loss.x": {"y": 1}}
