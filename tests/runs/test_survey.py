"""Folders of runs in every state, as `survey` and `look` see them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lastlayer._core.files import write_json
from lastlayer.runs import (
    Comparison,
    DamagedFileError,
    RunFolder,
    look,
    read_comparison,
    run_folders,
    survey,
    write_comparison,
)


def trial(seed: int) -> dict[str, Any]:
    return {"loss": {"name": "sln"}, "seed": seed}


def start(root: Path, seed: int) -> RunFolder:
    run = RunFolder(root / f"run-{seed}")
    run.path.mkdir(parents=True)
    run.start(trial(seed))
    return run


def finish(run: RunFolder) -> None:
    result = {"trial": run.trial(), "history": [{"epoch": 0}, {"epoch": 30}]}
    run.finish(result, {"w": torch.zeros(100)}, {"s": torch.zeros(100)})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Seed 0 done, 1 interrupted after epoch 7, 2 failed, 3 asked for and missing, 99 asked for by nobody."""
    finish(start(tmp_path, 0))
    interrupted = start(tmp_path, 1)
    for epoch in (6, 7):
        interrupted.append_metrics({"epoch": epoch})
    start(tmp_path, 2).fail({"error": "the loss is not finite"})
    start(tmp_path, 99)
    (tmp_path / "notes").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "lock").touch()
    asked = {f"run-{seed}": trial(seed) for seed in range(4)}
    write_comparison(Comparison(tmp_path / "compare-1.json", "one", "lastlayer compare", asked))
    return tmp_path


def test_a_survey_tells_every_run_and_every_trial_that_was_asked_for(root: Path) -> None:
    found = survey(root)
    assert {run.path.name: run.state for run in found.runs} == {
        "begun": "missing", "run-0": "done", "run-1": "interrupted", "run-2": "failed", "run-99": "interrupted",
        "run-3": "missing",
    }  # fmt: skip
    runs = {run.path.name: run for run in found.runs}
    assert [runs[f"run-{seed}"].epoch for seed in range(4)] == [30, 7, None, None]
    assert [runs[f"run-{seed}"].trial for seed in range(4)] == [trial(seed) for seed in range(4)]
    assert [run.path.name for run in found.runs if run.result is not None] == ["run-0"]
    assert runs["run-2"].reason == "the loss is not finite"
    assert run_folders(root) == [root / f"run-{seed}" for seed in (0, 1, 2, 99)]
    (comparison,) = found.comparisons
    assert (comparison.title, comparison.command, comparison.damage) == ("one", "lastlayer compare", "")
    assert list(comparison.trials) == ["run-0", "run-1", "run-2", "run-3"]


def test_a_run_that_a_process_works_on_is_running_even_before_it_has_written_its_trial(root: Path) -> None:
    for name in ("run-1", "run-4"):
        with RunFolder(root / name).locked():
            seen = look(root / name, trial(4))
            assert (seen.state, seen.reason) == ("running", "")
            assert seen.trial == trial(1 if name == "run-1" else 4)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("file", "only_thorough"),
    [("result.json", False), ("trial.json", True), ("weights.safetensors", True), ("snapshots.safetensors", True)],
)
def test_a_damaged_file_of_a_finished_run_is_told_with_what_to_do(root: Path, file: str, only_thorough: bool) -> None:
    path = root / "run-0" / file
    cut(path)
    seen = look(root / "run-0", trial(5), thorough=True)
    assert (seen.state, seen.result) == ("damaged", None)
    assert str(path) in seen.reason
    assert "Delete the folder and run the command again" in seen.reason
    assert seen.trial == (trial(5) if file == "trial.json" else trial(0))  # what can still be read, else what was asked
    assert look(root / "run-0").state == ("done" if only_thorough else "damaged")


def test_a_run_without_its_weights_is_done(root: Path) -> None:
    (root / "run-0" / "weights.safetensors").unlink()
    assert look(root / "run-0", thorough=True).state == "done"


def test_a_damaged_trial_of_an_unfinished_run_leaves_nothing_to_tell_but_the_damage(root: Path) -> None:
    cut(root / "run-1" / "trial.json")
    seen = look(root / "run-1")
    assert (seen.state, seen.trial) == ("damaged", {})
    assert "trial.json" in seen.reason


def test_a_result_without_a_trial_is_damaged(root: Path) -> None:
    write_json(root / "run-0" / "result.json", {"files": {}})
    assert "no 'trial' in it" in look(root / "run-0").reason


def test_a_comparison_file_is_read_as_it_was_written_and_damage_is_told(root: Path) -> None:
    file = root / "compare-1.json"
    content = read_comparison(file)
    write_comparison(content)
    assert read_comparison(file) == content
    write_json(file, {"trials": [{"identity": "run-0"}]})
    with pytest.raises(DamagedFileError, match=r"compare-1\.json is no comparison file: KeyError\('trial'\)"):
        read_comparison(file)
    cut(file)
    (comparison,) = survey(root).comparisons
    assert "compare-1.json is damaged" in comparison.damage
    assert not comparison.trials


def test_goals_and_tuning_are_kept_and_older_files_do_not_say_them(root: Path) -> None:
    old = read_comparison(root / "compare-1.json")
    assert (old.goals, old.tuning) == ((), None)
    tuning = {
        "ce": {"lr": [0.1, 0.3], "weight_decay": [1e-4], "tuned": ["lr"], "tried": 4, "edge": False, "over": "four"},
        "sln": {"lr": [0.01], "weight_decay": [1e-4], "tuned": [], "tried": 0, "edge": False, "why_not": "--no-tune"},
    }
    new = Comparison(root / "compare-2.json", "two", "lastlayer compare", old.trials, ("balanced", "accuracy"), tuning)
    write_comparison(new)
    assert read_comparison(new.file) == new
    assert [one.tuning for one in survey(root).comparisons] == [None, tuning]
    write_comparison(Comparison(new.file, "two", "lastlayer compare", old.trials, tuning={}))
    assert read_comparison(new.file).tuning == {}
