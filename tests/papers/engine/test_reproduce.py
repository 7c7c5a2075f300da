"""Running an artifact end to end on digits: selection, seeds, failures, and what is written down."""

import pytest

from lastlayer.papers import Store, artifact, lines, reproduce
from lastlayer.papers.engine.artifact import parse
from lastlayer.papers.engine.reproduce import all_trials, restricted
from lastlayer.runners import Placement, run_trials

TEXT = """
[settings]
"data" = { name = "digits", train = 200 }
"model" = { name = "mlp", options = { width = 16 } }
"schedule.epochs" = 3
"batch_size" = 50
"evaluations" = 3

[artifacts.table1]
where = "Table 1"
shows = "a test"
columns = { accuracy = "test.accuracy%", duality = "1-train.self_duality_mean" }
seeds = 2
curves = true
axes.loss."CE" = { "loss.name" = "ce" }
axes.loss."SLN" = { "loss.name" = "sln" }
select = { over = { "optimiser.lr" = [0.00001, 0.1] }, per = ["loss"] }
"""


@pytest.fixture
def plan(tmp_path):
    return Placement(tmp_path / "runs", "cpu", workers=1)


def test_settings_are_chosen_on_validation_and_results_written_down(tmp_path, plan):
    one, store, told = parse("sln", TEXT)["sln.table1"], Store(tmp_path), []
    observed = reproduce(one, "paper", plan, store, tell=told.append)
    assert [line.split(":")[0] for line in told] == ["CE", "SLN"]
    assert all("optimiser.lr=0.1" in line and "2 of 2 candidates" in line for line in told)
    assert len(observed.rows) == 2 * 2 * 4  # losses, seeds, evaluations with the start
    assert {row.facts["selected"] for row in observed.rows} == {"optimiser.lr=0.1"}
    assert observed.values("test.accuracy", loss="CE").keys() == {0, 1}
    ours = {line.labels["loss"]: line.entries for line in lines(one, observed)}
    mean = sum(observed.values("test.accuracy", loss="CE").values()) / 2
    assert ours["CE"]["accuracy"].mean == pytest.approx(100 * mean)
    assert ours["CE"]["accuracy"].count == 2
    assert ours["CE"]["accuracy"].published is None


def test_curves_of_some_measures_keep_the_rest_at_the_end_alone(tmp_path, plan):
    one = parse("sln", TEXT.replace("curves = true", 'curves = ["train.nc1"]'))["sln.table1"]
    observed = reproduce(one, "paper", plan, Store(tmp_path), only={"loss": ["CE"]}, seeds=[0])
    assert [set(row.values) for row in observed.rows[:-1]] == [{"train.nc1"}] * 3
    assert observed.curve("train.nc1", 0).keys() == {0, 1, 2, 3}
    assert "test.accuracy" in observed.rows[-1].values


def test_the_rows_of_a_computation_have_one_commit(tmp_path, plan, monkeypatch):
    """A commit made while it computes has no part in it; and git is asked once, not for each row."""
    commits = iter(["first", "second", "third"])
    machine = "lastlayer.papers.engine.reproduce.describe_machine"
    monkeypatch.setattr(machine, lambda: {"git": next(commits), "device": "cpu"})
    observed = reproduce(artifact("logit_separation.counterexamples"), "smoke", plan, Store(tmp_path))
    assert len(observed.rows) == 4
    assert {row.facts["commit"] for row in observed.rows} == {"first"}


def test_the_same_again_runs_nothing(tmp_path, plan):
    one, store = parse("sln", TEXT)["sln.table1"], Store(tmp_path)
    first = reproduce(one, "paper", plan, store)
    files = {path: path.stat().st_mtime_ns for path in plan.root.rglob("result.json")}
    assert reproduce(one, "paper", plan, store) == first
    assert {path: path.stat().st_mtime_ns for path in plan.root.rglob("result.json")} == files


def test_labels_and_seeds_can_be_restricted(tmp_path, plan):
    one = parse("sln", TEXT.replace("select = ", "# select = "))["sln.table1"]
    assert len(all_trials(one.grid("paper"))) == 4
    grid = restricted(one, "paper", {"loss": ["SLN"]}, [7])
    assert [(trial.loss.name, trial.seed) for trial in grid.trials()] == [("sln", 7)]
    with pytest.raises(ValueError, match="has no loss 'SLM'; it has 'CE', 'SLN'"):
        restricted(one, "paper", {"loss": ["SLM"]})
    with pytest.raises(ValueError, match="has no axis 'los'; it has loss"):
        restricted(one, "paper", {"los": ["SLN"]})
    assert len(all_trials(parse("sln", TEXT)["sln.table1"].grid("paper"))) == 4 + 4


def test_failed_runs_and_runs_at_chance_are_kept_apart(tmp_path, plan):
    text = TEXT.replace("select = ", "# select = ").replace(
        '"loss.name" = "ce"', '"loss.name" = "ce", "optimiser.lr" = 1e30'
    )
    text = text.replace(
        '"loss.name" = "sln"', '"loss.name" = "sln", "optimiser.lr" = 1e-30, "optimiser.weight_decay" = 0.0'
    )
    one, told = parse("sln", text)["sln.table1"], []
    observed = reproduce(one, "paper", plan, Store(tmp_path), tell=told.append)
    assert {row.status for row in observed.rows if row.labels["loss"] == "CE"} == {"failed"}
    assert any("no result: CE, seed 0" in line for line in told)
    untrained = [row for row in observed.rows if row.labels["loss"] == "SLN"]
    assert {row.status for row in untrained} <= {"chance", "done"}
    for row in untrained:
        at_end = max(r.epoch for r in untrained if r.seed == row.seed)
        last = next(r for r in untrained if r.seed == row.seed and r.epoch == at_end)
        best = max(last.values["train.accuracy"], last.values["train.unbiased_accuracy"])
        assert (row.status == "chance") == (best <= 0.105)


def test_what_is_done_counts_when_the_rest_is_stopped(tmp_path, plan):
    one, store = parse("sln", TEXT.replace("select = ", "# select = "))["sln.table1"], Store(tmp_path)

    def stopped_after_one(trials, plan, title):
        for event in run_trials(trials, plan):
            if event.kind == "done":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(one, "paper", plan, store, run=stopped_after_one)
    assert store.read("sln.table1", "paper").values("test.accuracy", loss="CE").keys() == {0}


def test_a_bare_machine_goes_on_from_what_was_written_down(tmp_path, plan):
    one, store, told, ran = parse("sln", TEXT)["sln.table1"], Store(tmp_path), [], []
    reproduce(one, "paper", plan, store, only={"loss": ["CE"]}, seeds=[0])
    tried = store.read("sln.table1", "paper", tried=True)
    assert {row.labels["tried"] for row in tried.rows} == {"optimiser.lr=1e-05", "optimiser.lr=0.1"}
    assert not any(name.startswith("test.") for row in tried.rows for name in row.values)

    def noted(trials, plan, title):
        ran.extend((trial.loss.name, trial.seed, trial.data.holdout > 0) for trial in trials)
        for _ in run_trials(trials, plan):
            pass

    bare = Placement(tmp_path / "another", "cpu", workers=1)
    pieces = reproduce(one, "paper", bare, store, run=noted, tell=told.append)
    seed = tried.rows[0].seed
    assert ran == [("sln", seed, True)] * 2 + [("ce", 1, False), ("sln", 0, False), ("sln", 1, False)]
    assert any("is not run again" in line for line in told)
    whole = reproduce(one, "paper", Placement(tmp_path / "whole", "cpu", workers=1), Store(tmp_path / "fresh"))
    for loss in ("CE", "SLN"):
        assert pieces.values("test.accuracy", loss=loss) == whole.values("test.accuracy", loss=loss)


@pytest.mark.parametrize(("together", "again"), [("", [1]), ("together = true", [0, 1])])
def test_what_was_measured_more_is_not_measured_again_unless_runs_are_compared(tmp_path, plan, together, again):
    text = TEXT.replace("select = ", "# select = ") + f'observe = "first_epochs"\n{together}\n'
    one, store = parse("normalized_scaling", text)["normalized_scaling.table1"], Store(tmp_path)

    def stopped_after_one(trials, plan, title):
        for event in run_trials(trials, plan):
            if event.kind == "done":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(one, "paper", plan, store, only={"loss": ["CE"]}, run=stopped_after_one)
    ran = []

    def noted(trials, plan, title):
        ran.extend(trial.seed for trial in trials)
        for _ in run_trials(trials, plan):
            pass

    bare = Placement(tmp_path / "another", "cpu", workers=1)
    observed = reproduce(one, "paper", bare, store, only={"loss": ["CE"]}, run=noted)
    assert ran == again
    assert observed.values("train.epochs_to_accuracy", loss="CE").keys() == {0, 1}


def test_a_run_that_stands_in_two_lines_is_made_again_for_the_line_it_is_missing_from(tmp_path, plan):
    text = TEXT.replace("select = ", "# select = ") + '\naxes.loss."again" = { "loss.name" = "ce" }\n'
    one, store = parse("sln", text)["sln.table1"], Store(tmp_path)
    reproduce(one, "paper", plan, store, only={"loss": ["CE"]}, seeds=[0])
    bare = Placement(tmp_path / "another", "cpu", workers=1)
    observed = reproduce(one, "paper", bare, store, only={"loss": ["CE", "again"]}, seeds=[0])
    assert observed.values("test.accuracy", loss="again") == observed.values("test.accuracy", loss="CE")
    assert len(observed.values("test.accuracy", loss="CE")) == 1


def test_candidates_that_failed_are_written_down_and_passed_over(tmp_path, plan):
    one, store = parse("sln", TEXT.replace("[0.00001, 0.1]", "[1e30, 0.1]"))["sln.table1"], Store(tmp_path)
    reproduce(one, "paper", plan, store, only={"loss": ["CE"]}, seeds=[0])
    tried = store.read("sln.table1", "paper", tried=True)
    assert {row.labels["tried"]: row.status for row in tried.rows} == {
        "optimiser.lr=1e+30": "failed",
        "optimiser.lr=0.1": "done",
    }
