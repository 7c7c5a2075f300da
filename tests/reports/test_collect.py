import os
import shutil

import pytest

from lastlayer._core.files import write_json
from lastlayer.reports import load, summarise
from lastlayer.runs import DamagedFileError, RunFolder

from . import factory
from .factory import trial


def statuses(runs):
    return {(run.trial.get("loss", {}).get("name"), run.seed): run.status for run in runs.runs}


def test_every_run_of_a_comparison_is_there_whatever_became_of_it(tmp_path):
    trials = [trial("ce", s) for s in range(3)] + [trial("sln", s) for s in range(3)]
    factory.done(tmp_path, trials[0])
    factory.failed(tmp_path, trials[1], "NaN at step 7")
    factory.cut(tmp_path, trials[2])
    damaged = factory.done(tmp_path, trials[3])
    text = (damaged / "result.json").read_text()
    (damaged / "result.json").write_text(text.replace("0.5", "0.6", 1))
    factory.cut(tmp_path, trials[4])
    factory.comparison(tmp_path, trials, title="T", command="C")
    with RunFolder(tmp_path / factory.identity(trials[4])).locked():
        runs = load(tmp_path)
    assert statuses(runs) == {
        ("ce", 0): "done", ("ce", 1): "failed", ("ce", 2): "interrupted",
        ("sln", 0): "damaged", ("sln", 1): "running", ("sln", 2): "missing",
    }  # fmt: skip
    assert (runs.title, runs.command) == ("T", "C")
    problems = {run.status: run.problem for run in runs.runs}
    assert "NaN at step 7" in problems["failed"]
    assert "--retry-failed" in problems["failed"]
    assert "epoch 3" in problems["interrupted"]
    assert "resume" in problems["interrupted"]
    assert str(damaged / "result.json") in problems["damaged"]
    assert "Delete the folder" in problems["damaged"]


def test_a_folder_without_comparison_gives_all_its_runs(tmp_path):
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss))
    (tmp_path / "notes").mkdir()
    assert statuses(load(tmp_path)) == {("ce", 0): "done", ("sln", 0): "done"}
    assert statuses(load(str(tmp_path / factory.identity(trial("ce"))))) == {("ce", 0): "done"}
    assert len(load([tmp_path / factory.identity(trial(loss)) for loss in ("ce", "sln", "ce")]).runs) == 2


def test_the_newest_comparison_counts_and_what_it_leaves_out_is_said(tmp_path):
    for loss in ("ce", "sln", "bce", "mse"):
        factory.done(tmp_path, trial(loss))
    old = factory.comparison(tmp_path, [trial("ce"), trial("bce")], name="zz")
    factory.comparison(tmp_path, [trial("sln"), trial("ce")], name="aa")
    os.utime(old, (1, 1))
    runs = load(tmp_path)
    assert [run.trial["loss"]["name"] for run in runs.runs] == ["sln", "ce"]
    assert any("newest of 2" in note for note in runs.notes)
    assert any("1 other run" in note and "any comparison" in note for note in runs.notes)  # mse
    assert len(load(tmp_path, "zz").runs) == len(load(tmp_path, old).runs) == len(load(old).runs) == 2
    assert load(tmp_path, "zz").runs[1].trial["loss"]["name"] == "bce"
    with pytest.raises(FileNotFoundError, match=r"no comparison yy.*compare-aa.json, compare-zz.json"):
        load(tmp_path, "yy")


def test_a_comparison_of_a_single_trial_does_not_hide_the_others(tmp_path):
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss))
        factory.comparison(tmp_path, [trial(loss)], name=loss)
    assert len(load(tmp_path).runs) == 2


def test_a_single_trial_that_was_never_started_is_still_listed(tmp_path):
    factory.comparison(tmp_path, [trial()])
    assert statuses(load(tmp_path)) == {("ce", 0): "missing"}


def test_runs_asked_for_without_their_defaults_stay_one_group(tmp_path):
    """A comparison may leave open what was tuned; the folders hold it."""
    factory.done(tmp_path, trial(seed=0, lr=0.1))
    resolved = [trial(seed=seed, lr=0.1) for seed in range(2)]
    file = factory.comparison(tmp_path, resolved)
    listed = [{"identity": factory.identity(one), "trial": trial(seed=one["seed"], lr=None)} for one in resolved]
    write_json(file, {"title": "A comparison", "command": "lastlayer compare", "trials": listed})
    first, second = load(tmp_path).runs
    assert first.key == second.key
    assert first.trial["optimiser"]["lr"] == 0.1


def test_seeds_that_test_on_other_folds_are_one_group(tmp_path):
    trials = [trial(loss, s, data="iris") for loss in ("ce", "sln") for s in range(3)]
    for content in trials:
        content["data"]["fold"] = content["seed"]
        factory.done(tmp_path, content)
    runs = load(tmp_path).runs
    assert len(runs) == 6
    assert {run.status for run in runs} == {"done"}
    assert [(group.label, sorted(group.done)) for group in summarise(load(tmp_path)).groups] == [
        ("ce", [0, 1, 2]), ("sln", [0, 1, 2]),
    ]  # fmt: skip


def test_several_folders_of_runs_give_all_their_runs(tmp_path):
    for folder, loss in (("a", "ce"), ("b", "sln")):
        for seed in range(2):
            factory.done(tmp_path / folder, trial(loss, seed))
    file = factory.comparison(tmp_path / "c", [trial("bce")])
    found = load([tmp_path / "a", tmp_path / "b", file, tmp_path / "nowhere"])
    assert [run.status for run in found.runs] == ["done"] * 4 + ["missing"] * 2


def test_a_trial_in_two_folders_counts_once_and_is_listed(tmp_path):
    path = factory.done(tmp_path, trial())
    shutil.copytree(path, tmp_path / "copy")
    runs = load(tmp_path).runs
    assert sorted(run.status for run in runs) == ["done", "repeated"]
    assert "the same trial as" in next(run.problem for run in runs if run.status == "repeated")


def test_a_damaged_trial_of_an_unfinished_run_is_listed(tmp_path):
    path = factory.cut(tmp_path, trial())
    (path / "trial.json").write_text("{")
    (run,) = load(tmp_path).runs
    assert run.status == "damaged"
    assert str(path / "trial.json") in run.problem
    assert run.seed is None


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"holds no runs.*trial.json"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no run folders"):
        load([])
    file = factory.comparison(tmp_path, [trial("ce"), trial("sln")])
    file.write_text(file.read_text().replace("ce", "cx", 1))
    with pytest.raises(DamagedFileError, match=r"compare-one.json.*compare` command again"):
        load(tmp_path)
    file.write_text("[]")
    with pytest.raises(DamagedFileError, match=r"compare-one\.json"):
        load(tmp_path)
