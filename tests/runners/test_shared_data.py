"""Data is read once per process, whichever runner: the file is overwritten once it was read, and is not missed.

Worker processes: test_processes.py.
"""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest

from lastlayer.runners import Placement, run_trials
from lastlayer.runners.shared_data import SharedData
from lastlayer.training import DataChoice, ModelChoice, Schedule, Trial


@pytest.fixture
def file(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    arrays = {f"x_{part}": generator.standard_normal((60, 4)).astype(np.float32) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(60) % 3 for part in ("train", "test")}
    np.savez(tmp_path / "points.npz", **arrays)
    return tmp_path / "points.npz"


def trials(file: Path, **changes: object) -> list[Trial]:
    trial = Trial(
        DataChoice(str(file)),
        ModelChoice("mlp", {"width": 4}),
        schedule=Schedule(epochs=3),
        batch_size=20,
        evaluations=1,
    )
    return [dataclasses.replace(trial, seed=seed, **changes).resolved() for seed in range(4)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"workers": 1}, {"runner": "pack", "pack": 1}, {"runner": "pack"}],
    ids=["in this process", "one after another in a pack", "in a pack"],
)
def test_data_is_read_once(options: dict[str, object], file: Path, tmp_path: Path) -> None:
    waiting = trials(file)
    placement = Placement(tmp_path / "runs", "cpu", report_seconds=0.0, **options)  # type: ignore[arg-type]
    for event in run_trials(waiting, placement):
        assert event.kind != "failed", event.message
        if event.kind == "progress":
            file.write_bytes(b"overwritten")
    assert [placement.folder(trial).status for trial in waiting] == ["done"] * 4


def test_other_choices_from_the_same_files_read_them_once_too(file: Path, tmp_path: Path) -> None:
    one, two = trials(file)[0], trials(file, data=DataChoice(str(file), train=30))[1]
    for event in run_trials([one, two], Placement(tmp_path / "runs", "cpu", workers=1)):
        assert event.kind != "failed", event.message
        if event.kind == "progress":
            file.write_bytes(b"overwritten")


@pytest.mark.parametrize("options", [{"workers": 1}, {"runner": "pack"}], ids=["in this process", "in a pack"])
def test_data_that_cannot_be_read_fails_its_trials_and_no_other(
    options: dict[str, object], file: Path, tmp_path: Path
) -> None:
    bad = trials(file)[:1]
    good = [dataclasses.replace(bad[0], data=DataChoice("iris"), seed=seed).resolved() for seed in range(2)]
    file.write_bytes(b"overwritten")
    placement = Placement(tmp_path / "runs", "cpu", **options)  # type: ignore[arg-type]
    ends = {e.index: e for e in run_trials([good[0], *bad, good[1]], placement) if e.kind in ("done", "failed")}
    assert [ends[index].kind for index in range(3)] == ["done", "failed", "done"]
    assert "points.npz" in ends[1].message
    assert "points.npz" in placement.folder(bad[0]).failure()["error"]


def test_what_was_read_last_is_kept_and_moved_once() -> None:
    moved: list[str] = []

    def move(dataset: object) -> object:
        moved.append(dataset.name)  # type: ignore[attr-defined]
        return dataset

    shared = SharedData(move=move)  # type: ignore[arg-type]
    first = shared.load(DataChoice("iris"))
    assert shared.load(DataChoice("iris")) is first
    assert shared.load(DataChoice("iris", train=30)) is not first
    assert len(moved) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shared.load(DataChoice("no such data")) is None
    given = SharedData(given=first)
    assert given.load(DataChoice("wine")) is first
