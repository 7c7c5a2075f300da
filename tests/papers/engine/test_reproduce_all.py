"""Several artifacts at once: their trials run side by side, in an order that respects what waits for what."""

import dataclasses
import sys

import pytest

from lastlayer.data import CorruptFileError
from lastlayer.papers import Store, reproduce_all
from lastlayer.papers.engine.artifact import parse
from lastlayer.papers.engine.reproduce import all_trials
from lastlayer.runners import Placement, run_trials

TEXT = """
[settings]
"data" = { name = "digits", train = 200 }
"model" = { name = "mlp", options = { width = 16 } }
"schedule.epochs" = 10
"batch_size" = 50
"optimiser.lr" = 0.1
"evaluations" = 1

[artifacts.table1]
where = "Table 1"
shows = "a test"
columns = { accuracy = "test.accuracy%" }
axes.loss."CE" = { "loss.name" = "ce" }
axes.loss."SLN" = { "loss.name" = "sln" }
axes.loss."KD" = { "loss.name" = "kd" }
select = { per = ["loss"] }
cases = [
    { when = { loss = ["SLN"] }, select = { "optimiser.lr" = [0.01, 0.1] } },
    { when = { loss = ["KD"] }, teacher = { "model.options.width" = 32, "loss" = { name = "ce" } } },
]

[artifacts.table2]
where = "Table 2"
shows = "another"
columns = { accuracy = "test.accuracy%" }
axes.loss."CE" = { "loss.name" = "ce" }
axes.loss."BCE" = { "loss.name" = "bce" }

[artifacts.table3]
like = "table1"
shows = "a taught cell with something to choose"
cases = [
    { when = { loss = ["KD"] }, teacher = { "model.options.width" = 32, "loss" = { name = "ce" } }, select = { "optimiser.lr" = [0.01, 0.1] } },
]

[artifacts.hopeless]
like = "table1"
shows = "rates at which nothing trains"
cases = [{ when = { loss = ["SLN"] }, select = { "optimiser.lr" = [1e30] } }]

[artifacts.watched]
like = "table2"
shows = "what is looked at once more"
observe = "missing"
"""  # noqa: E501


@pytest.fixture
def plan(tmp_path):
    return Placement(tmp_path / "runs", "cpu", workers=1)


class Noting:
    """Trains, and notes in which batch what was trained; stops when so many trials are done."""

    def __init__(self, stop=None):
        self.batches, self.titles, self.stop, self.done = [], [], stop, 0

    def __call__(self, trials, plan, title):
        self.titles.append(title)
        self.batches.append([self.name(trial) for trial in trials])
        for event in run_trials(trials, plan):
            self.done += event.kind == "done"
            if self.done == self.stop:
                raise KeyboardInterrupt

    @staticmethod
    def name(trial):
        if trial.model.options["width"] == 32:
            return "teacher"
        return f"{trial.loss.name} {trial.optimiser.lr} tried" if trial.data.holdout else trial.loss.name


def test_two_artifacts_run_side_by_side_and_share_their_trials(tmp_path, plan):
    made, store, run = parse("sln", TEXT), Store(tmp_path), Noting()
    one, two = made["sln.table1"], made["sln.table2"]
    observed = reproduce_all([one, two], "paper", plan, store, run=run)
    assert run.batches == [["teacher", "sln 0.01 tried", "sln 0.1 tried", "ce", "bce"], ["sln", "kd"]]
    assert run.titles == ["sln.table1, sln.table2, paper", "sln.table1, paper"]
    for seen, losses in zip(observed, (("CE", "SLN", "KD"), ("CE", "BCE")), strict=True):
        assert all(seen.values("test.accuracy", loss=loss).keys() == {0} for loss in losses)
    assert observed[0].values("test.accuracy", loss="CE") == observed[1].values("test.accuracy", loss="CE")

    again = Noting()
    bare = Placement(tmp_path / "another", "cpu", workers=1)
    assert reproduce_all([one, two], "paper", bare, store, run=again) == observed
    assert not again.batches  # not even the teacher: everything is written down


def test_candidates_that_are_taught_wait_for_their_teacher(tmp_path, plan):
    one, run = parse("sln", TEXT)["sln.table3"], Noting()
    reproduce_all([one], "paper", plan, Store(tmp_path), run=run)
    assert run.batches == [["teacher", "ce", "sln"], ["kd 0.01 tried", "kd 0.1 tried"], ["kd"]]


def test_a_teacher_whose_run_is_gone_trains_beside_what_needs_none(tmp_path, plan):
    text = TEXT.replace('select = { per = ["loss"] }', 'select = { over = { "optimiser.lr" = [0.01, 0.1] } }')
    one, store = parse("sln", text)["sln.table1"], Store(tmp_path)
    reproduce_all([one], "paper", plan, store)
    store.path("sln.table1", "paper").unlink()  # the candidates are still written down
    run = Noting()
    reproduce_all([one], "paper", Placement(tmp_path / "another", "cpu", workers=1), store, run=run)
    assert run.batches == [["teacher", "ce", "sln"], ["kd"]]


@pytest.mark.parametrize(
    ("stop", "candidates", "first", "second"),
    [(2, 1, [], []), (4, 2, ["CE"], ["CE"]), (5, 2, ["CE"], ["CE", "BCE"]), (6, 2, ["CE", "SLN"], ["CE", "BCE"])],
)
def test_what_is_done_of_each_counts_when_they_are_stopped(tmp_path, plan, stop, candidates, first, second):
    made, store = parse("sln", TEXT), Store(tmp_path)
    both = [made["sln.table1"], made["sln.table2"]]
    with pytest.raises(KeyboardInterrupt):
        reproduce_all(both, "paper", plan, store, run=Noting(stop))
    assert len(store.read("sln.table1", "paper", tried=True).rows) == candidates
    for artifact, losses in zip(both, (first, second), strict=True):
        found = {row.labels["loss"] for row in store.read(artifact.name, "paper").rows if row.epoch == 10}
        assert found == set(losses)
    pieces = reproduce_all(both, "paper", plan, store)
    whole = reproduce_all(both, "paper", Placement(tmp_path / "whole", "cpu", workers=1), Store(tmp_path / "fresh"))
    for one, other in zip(pieces, whole, strict=True):
        seen, expected = ([(row.labels, row.values["test.nll"]) for row in part.rows] for part in (one, other))
        assert seen == expected


def test_a_run_that_another_artifact_has_written_down_is_not_made_again(tmp_path, plan):
    made, store = parse("sln", TEXT), Store(tmp_path)
    (first,) = reproduce_all([made["sln.table2"]], "paper", plan, store)
    bare, run, told = Placement(tmp_path / "another", "cpu", workers=1), Noting(), []
    (second,) = reproduce_all([made["sln.table1"]], "paper", bare, store, run=run, tell=told.append)
    assert "ce" not in [name for batch in run.batches for name in batch]
    assert second.values("test.nll", loss="CE") == first.values("test.nll", loss="CE")
    assert not any("no result" in line for line in told)
    assert told[0] == f"what {tmp_path / 'sln'} has already is not run again: delete the files there to do so"

    for more in ("curves = true", 'observe = "first_epochs"'):  # what a last row alone does not have
        text = TEXT.replace("[artifacts.table2]", f'[artifacts.fig9]\nlike = "table2"\n{more}\n[artifacts.table2]')
        run = Noting()
        one = parse("normalized_scaling", text)["normalized_scaling.fig9"]
        reproduce_all([parse("normalized_scaling", text)["normalized_scaling.table2"]], "paper", plan, store)
        reproduce_all([one], "paper", bare, store, run=run)
        assert run.batches == [["ce", "bce"]]
        store.path("normalized_scaling.fig9", "paper").unlink()


@pytest.mark.parametrize(("loss", "batches"), [("SLN", 2), ("CE", 2), ("KD", 2), (None, 1)])
def test_what_is_not_run_again_is_said_before_anything_trains(tmp_path, plan, loss, batches):
    """SLN has its rate chosen first: whether its run counts again is only known when the candidates are done."""
    made, store, told = parse("sln", TEXT), Store(tmp_path), []
    one = made["sln.table1"]
    reproduce_all([one], "paper", plan, store, only={one.name: {"loss": [loss]}} if loss else {})
    store.path(one.name, "paper", tried=True).unlink(missing_ok=True)
    bare, trained = Placement(tmp_path / "another", "cpu", workers=1), []

    def run(trials, plan, title):
        assert any("is not run again" in line for line in told)
        trained.append(trials)
        for _ in run_trials(trials, plan):
            pass

    reproduce_all([one], "paper", bare, store, run=run, tell=told.append)
    assert len(trained) == batches
    assert sum("is not run again" in line for line in told) == 1
    fresh = []
    reproduce_all([one], "paper", bare, Store(tmp_path / "fresh"), tell=fresh.append)
    assert not any("is not run again" in line for line in fresh)


def kept(store, name):
    return {row.labels["loss"] for row in store.read(f"sln.{name}", "paper").rows}


def test_an_artifact_that_cannot_go_on_is_named_and_the_others_are_finished(tmp_path, plan):
    made, store, told = parse("sln", TEXT), Store(tmp_path), []
    several = [made[f"sln.{name}"] for name in ("hopeless", "table1")]
    with pytest.raises(ValueError, match="every setting tried for sln failed"):
        reproduce_all(several, "paper", plan, store, only={"sln.hopeless": {"loss": ["CE", "SLN"]}}, tell=told.append)
    assert f"sln.hopeless: stopped: every setting tried for sln failed: see lastlayer status {plan.root}" in told
    assert all(line.startswith(("sln.hopeless: ", "sln.table1: ")) for line in told)
    assert (kept(store, "hopeless"), kept(store, "table1")) == ({"CE"}, {"CE", "SLN", "KD"})
    assert {row.status for row in store.read("sln.hopeless", "paper", tried=True).rows} == {"failed"}


def lacking(text, name):
    """An artifact like table2, one of its losses on other data or by another model."""
    return parse(
        "sln",
        TEXT
        + f"""
[artifacts.{name}]
like = "table2"
shows = "what cannot be run here"
cases = [{{ when = {{ loss = ["BCE"] }}, settings = {{ {text} }} }}]
""",
    )[f"sln.{name}"]


@pytest.mark.parametrize(
    ("needs", "error", "said"),
    [
        ('"data" = { name = "mnist" }', FileNotFoundError, "mnist: no train-images.* lastlayer data get mnist"),
        ('"data" = { name = "digits", unknown_from = "mnist" }', FileNotFoundError, "lastlayer data get mnist"),
        ('"model" = { name = "timm:x" }', ImportError, r"model 'timm:x' needs timm.* pip install 'lastlayer\[timm\]'"),
    ],
)
def test_what_is_not_at_hand_is_said_before_anything_trains(tmp_path, plan, monkeypatch, needs, error, said):
    """No trial is left failed, which would stay so when the data is there; what needs none of it runs."""
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    plan = dataclasses.replace(plan, data_root=tmp_path / "empty")
    store, told, run = Store(tmp_path), [], Noting()
    one, two = lacking(needs, "elsewhere"), parse("sln", TEXT)["sln.table2"]
    with pytest.raises(error, match=f"(?s){said}.*\nor leave it out with --only"):
        reproduce_all([one], "paper", plan, store, run=run, tell=told.append)
    assert (run.batches, kept(store, "elsewhere")) == ([], set())
    assert not plan.root.exists()
    with pytest.raises(error):
        reproduce_all([one, two], "paper", plan, store, run=run, tell=told.append)
    assert any(line.startswith("sln.elsewhere: stopped: ") for line in told)
    assert run.batches == [["ce", "bce"]]
    reproduce_all([one], "paper", plan, store, only={"sln.elsewhere": {"loss": ["CE"]}}, run=run)
    assert kept(store, "elsewhere") == {"CE"}
    assert len(run.batches) == 1  # table2 had trained it


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("mnist", "mnist/train-images-idx3-ubyte", "train-images-idx3-ubyte"),
        ("omniglot", "omniglot/images_background/readme.txt", "images_evaluation is missing"),
    ],
    ids=["damaged", "half"],
)
def test_data_that_is_not_whole_fails_no_trial(tmp_path, plan, name, file, said):
    """That the first file of a data set is there does not say that its download was not interrupted."""
    plan = dataclasses.replace(plan, data_root=tmp_path / "data")
    path = tmp_path / "data" / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    run, store = Noting(), Store(tmp_path)
    with pytest.raises((FileNotFoundError, CorruptFileError), match=f"{said}.*\nor leave it out with --only"):
        reproduce_all([lacking(f'"data" = {{ name = "{name}" }}', "partly")], "paper", plan, store, run=run)
    assert run.batches == []
    assert not plan.root.exists()


def test_what_is_written_down_needs_no_data_set(tmp_path, plan):
    """Results made on another machine are shown on one that could not make them."""
    store = Store(tmp_path)
    one = parse("sln", TEXT)["sln.table1"]
    (first,) = reproduce_all([one], "paper", plan, store)
    elsewhere = parse("sln", TEXT.replace('"digits", train = 200', '"mnist"'))["sln.table1"]
    for row in (*first.rows, *store.read(one.name, "paper", tried=True).rows):
        assert row.facts["run"]
    identities = dict(
        zip(
            [trial.identity for trial in all_trials(one.grid("paper"))],
            [trial.identity for trial in all_trials(elsewhere.grid("paper"))],
            strict=True,
        )
    )
    for tried in (False, True):
        path = store.path(one.name, "paper", tried=tried)
        text = path.read_text()
        for ours, theirs in identities.items():
            text = text.replace(ours, theirs)
        path.write_text(text)
    run = Noting()
    empty = Placement(tmp_path / "another", "cpu", workers=1, data_root=tmp_path / "empty")
    assert len(reproduce_all([elsewhere], "paper", empty, store, run=run)[0].rows) == len(first.rows)
    assert not run.batches


@pytest.mark.parametrize("stop", [None, 2])
def test_an_error_in_what_one_observes_costs_the_others_nothing(tmp_path, plan, stop):
    made, store = parse("sln", TEXT), Store(tmp_path)
    with pytest.raises(AttributeError if stop is None else KeyboardInterrupt) as caught:
        reproduce_all([made["sln.watched"], made["sln.table2"]], "paper", plan, store, run=Noting(stop))
    assert kept(store, "table2") == {"CE", "BCE"}  # while the error, which a generator's end would wait for, is held
    assert caught.value
    assert kept(store, "watched") == set()


def test_a_taught_cell_that_has_changed_is_taught_where_its_teacher_is_not(tmp_path, plan):
    store, again, only = Store(tmp_path), Noting(), {"sln.table3": {"loss": ["KD"]}}
    reproduce_all([parse("sln", TEXT)["sln.table3"]], "paper", plan, store, only=only)
    measured = 'settings = { "evaluations" = 2 }, teacher = { "evaluations" = 1, '  # of the cell alone
    changed = parse("sln", TEXT.replace("teacher = { ", measured))["sln.table3"]
    bare = Placement(tmp_path / "another", "cpu", workers=1)
    observed = reproduce_all([changed], "paper", bare, store, only=only, run=again)[0]
    assert again.batches == [["teacher"], ["kd"]]
    assert {row.status for row in observed.rows} == {"done"}


def test_a_changed_cell_for_which_nothing_is_chosen_waits_for_its_teacher_alone(tmp_path, plan):
    store, again = Store(tmp_path), Noting()
    only = {"sln.table1": {"loss": ["KD"]}}
    reproduce_all([parse("sln", TEXT)["sln.table1"]], "paper", plan, store, only=only)
    changed = parse("sln", TEXT.replace('"evaluations" = 1', '"evaluations" = 2'))["sln.table1"]
    bare = Placement(tmp_path / "another", "cpu", workers=1)
    reproduce_all([changed], "paper", bare, store, only=only, run=again)
    assert again.batches == [["teacher"], ["kd"]]
