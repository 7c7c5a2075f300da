"""Files of one run in the folder of another are refused by name, whichever files they are."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lastlayer
from lastlayer._core.files import read_sealed, write_json, write_sealed
from lastlayer.reports import load as runs_of
from lastlayer.runs import DamagedFileError, RunFolder, look, survey
from lastlayer.training import finish_fit, fit
from lastlayer.training.trial import DataChoice, LossChoice, ModelChoice, Schedule, Trial

DONE = (
    "trial.json",
    "result.json",
    "weights.safetensors",
    "snapshots.safetensors",
    "rows.safetensors",
    "metrics.jsonl",
)


def trial(loss: str) -> Trial:
    data, model = DataChoice("iris"), ModelChoice("mlp", {"width": 8})
    return Trial(data, model, loss=LossChoice(loss), schedule=Schedule(epochs=4), evaluations=1).resolved()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, checkpoint_share: Callable[[float], Any]) -> Path:
    """Runs of ce and mse, `done` and `cut` after three of four epochs, each in a folder named by its identity."""
    root = tmp_path_factory.mktemp("made")
    for loss in ("ce", "mse"):
        one = trial(loss)
        finish_fit(fit(one, root / "done" / one.identity))
        with checkpoint_share(float("inf")):
            steps = fit(one, root / "cut" / one.identity)
            while next(steps).epoch < 3:
                pass
            steps.close()
    return root


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


def reads(folder: Path) -> None:
    """Read everything of a finished run."""
    run = RunFolder(folder)
    run.trial()
    run.result()
    run.metrics()
    run.check_lengths()
    for name in ("weights", "snapshots", "rows"):
        run.tensors(name)  # type: ignore[arg-type]
    lastlayer.load(folder)


@pytest.mark.parametrize("files", [c for n in range(1, len(DONE) + 1) for c in itertools.combinations(DONE, n)])
def test_files_of_a_finished_run(folders: Path, files: tuple[str, ...]) -> None:
    """Every set of them, and all together too."""
    ours, theirs = (folders / "done" / trial(loss).identity for loss in ("ce", "mse"))
    reads(ours)
    for file in files:
        shutil.copy(theirs / file, ours / file)
    with pytest.raises(DamagedFileError) as caught:
        reads(ours)
    assert any(str(ours / file) in str(caught.value) for file in files)
    if "result.json" in files:
        (run,) = (run for run in runs_of(folders / "done").runs if run.path == ours)
        assert run.status == "damaged"
        assert f"result.json belongs to another run, {theirs.name}: this is {ours.name}" in run.problem
    states = {state.path: state.state for state in survey(folders / "done").runs}
    assert states[theirs] == "done"
    if set(files) & {"trial.json", "result.json", "metrics.jsonl"}:
        assert states[ours] == "damaged"


@pytest.mark.parametrize("file", ["trial.json", "metrics.jsonl", "checkpoint-0002.pt", "checkpoint-0003.pt"])
def test_files_of_a_run_that_goes_on(folders: Path, file: str) -> None:
    """What is not its own is left out by name, and the run ends with the same bits."""
    ours, theirs = (folders / "cut" / trial(loss).identity for loss in ("ce", "mse"))
    shutil.copy(theirs / file, ours / file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        finish_fit(fit(trial("ce"), ours))
    told = [
        str(one.message) for one in said if f"{ours / file} belongs to another run, {theirs.name}" in str(one.message)
    ]
    assert len(told) == (file not in ("trial.json", "checkpoint-0002.pt"))  # one is written anew, one is not looked at
    wanted = RunFolder(folders / "done" / ours.name).tensors("weights")
    assert all(torch.equal(value, wanted[name]) for name, value in RunFolder(ours).tensors("weights").items())
    reads(ours)


def test_both_checkpoints_of_another_run_mean_starting_over(folders: Path) -> None:
    ours, theirs = (folders / "cut" / trial(loss).identity for loss in ("ce", "mse"))
    for file in theirs.glob("checkpoint-*"):
        shutil.copy(file, ours / file.name)
    with pytest.warns(UserWarning, match="belongs to another run.*; starting over"):
        finish_fit(fit(trial("ce"), ours))
    wanted = RunFolder(folders / "done" / ours.name).tensors("weights")
    assert all(torch.equal(value, wanted[name]) for name, value in RunFolder(ours).tensors("weights").items())


def test_a_failure_of_another_run_is_not_believed(folders: Path) -> None:
    ours, theirs = (RunFolder(folders / "cut" / trial(loss).identity) for loss in ("ce", "mse"))
    theirs.fail({"error": "out of memory"})
    assert look(theirs.path).reason == "out of memory"
    shutil.copy(theirs.path / "failure.json", ours.path)
    assert "failure.json belongs to another run" in look(ours.path).reason


def test_a_folder_with_a_name_of_ones_own_is_known_by_its_trial(made: Path, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "mine", made / "done" / trial("mse").identity
    shutil.copytree(made / "done" / trial("ce").identity, ours)
    reads(ours)
    shutil.copy(theirs / "result.json", ours / "result.json")
    with pytest.raises(DamagedFileError, match=r"result\.json belongs to another run"):
        reads(ours)


def test_runs_from_before_files_said_whose_they_are(folders: Path) -> None:
    """They are read as they were. A checkpoint is used with a word."""
    ours = RunFolder(folders / "done" / trial("ce").identity)
    result = ours.result()
    del result["files"]["metrics.jsonl"]
    write_json(ours.path / "result.json", result)
    lines = (ours.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (ours.path / "metrics.jsonl").write_text("".join(lines[1:]))
    reads(ours.path)
    cut = RunFolder(folders / "cut" / trial("ce").identity)
    for path in cut.path.glob("checkpoint-*"):
        write_sealed(path, read_sealed(path)[0])
    with pytest.warns(UserWarning, match="checkpoint-0003.pt is from before checkpoints said whose they are"):
        finish_fit(fit(trial("ce"), cut.path))
    wanted = ours.tensors("weights")
    assert all(torch.equal(value, wanted[name]) for name, value in cut.tensors("weights").items())
