"""What every runner is told and tells, runners of one's own, and data that is read once for many trials.

Worker processes: test_processes.py.
"""

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lastlayer.data import load
from lastlayer.runners import Event, Placement, Work, register, run_trials
from lastlayer.runners.protocol import SharedData
from lastlayer.training import DataChoice, ModelChoice, Schedule, Trial

TRIAL = Trial(DataChoice("iris"), ModelChoice("mlp", {"width": 4}), schedule=Schedule(epochs=2), evaluations=1)


def seeds(count: int) -> list[Trial]:
    return [dataclasses.replace(TRIAL, seed=seed).resolved() for seed in range(count)]


def elsewhere(work: Work) -> Iterator[Event]:
    """A runner that trains as if on another machine, and reports what the run folders say."""
    for index in work.waiting:
        yield Event(index, "start")
        if index != 1:
            list(dataclasses.replace(work, waiting=()).run(index))
        elif work.placement.retry_failed:
            work.folder(index).start(work.trials[index].to_dict())
            work.folder(index).fail({"error": "Traceback:\n  the node is gone"})
        yield work.outcome(index)


def test_a_runner_of_ones_own_is_named_by_its_path_and_told_what_waits(tmp_path: Path) -> None:
    placement = Placement(tmp_path, "cpu", runner=f"{__name__}:elsewhere", retry_failed=True)
    list(run_trials(seeds(1), placement))
    trials = seeds(3)
    told = [(event.index, event.kind, event.message) for event in run_trials(trials, placement)]
    assert told == [
        (0, "skip", "done already"),
        (1, "start", ""), (1, "failed", "the node is gone"),
        (2, "start", ""), (2, "done", ""),
    ]  # fmt: skip
    again = [(e.index, e.kind) for e in run_trials(trials, dataclasses.replace(placement, retry_failed=False))]
    assert again == [(0, "skip"), (1, "failed"), (2, "skip")]


def test_a_trial_that_left_nothing_in_its_run_folder_has_failed(tmp_path: Path) -> None:
    events = list(run_trials(seeds(2), Placement(tmp_path, "cpu", runner=f"{__name__}:elsewhere")))
    assert events[-1] == Event(1, "failed", message="it ended without a result")


def test_an_unknown_runner_is_refused_at_once_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'pac' is unknown \(did you mean 'pack'\?\); available: local, .*pack"):
        run_trials(seeds(1), Placement(tmp_path, "cpu", runner="pac"))
    with pytest.raises(ValueError, match="no callable 'elswhere'"):
        run_trials(seeds(1), Placement(tmp_path, "cpu", runner=f"{__name__}:elswhere"))


def test_a_name_is_registered_once() -> None:
    from lastlayer.runners import pack  # noqa: F401  it registers itself

    with pytest.raises(ValueError, match="runner 'pack' is registered twice"):
        register("pack")(elsewhere)


@pytest.mark.parametrize(
    ("device", "said"),
    [("gpu", "device must be auto, cpu, cuda"), ("mps", "must be auto"), ("cuda:99", "but this machine has")],
)
def test_a_device_that_is_not_there_is_refused_at_once(device: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run_trials(seeds(1), Placement(tmp_path, device))


@pytest.mark.parametrize("runner", ["local", "pack"])
def test_progress_is_told_as_often_as_asked(runner: str, tmp_path: Path) -> None:
    def told(seconds: float) -> list[int]:
        placement = Placement(tmp_path / str(seconds), "cpu", runner=runner, report_seconds=seconds)
        events = list(run_trials(seeds(1), placement))
        assert [event.kind for event in events if event.kind != "progress"] == ["start", "done"]
        return [event.progress.step for event in events if event.progress is not None]

    often, seldom = told(0.0), told(1e9)
    assert len(set(often)) == often[-1] + 1  # every step, and the start
    assert len(seldom) < len(often)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Data that a test overwrites once they were read: a runner reads them once per process, and does not miss them."""
    generator = np.random.default_rng(0)
    arrays = {f"x_{part}": generator.standard_normal((60, 4)).astype(np.float32) for part in ("train", "test")}
    arrays |= {f"y_{part}": np.arange(60) % 3 for part in ("train", "test")}
    np.savez(tmp_path / "points.npz", **arrays)
    return tmp_path / "points.npz"


def on_file(file: Path, **changes: object) -> list[Trial]:
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
def test_data_is_read_once_per_process(options: dict[str, object], file: Path, tmp_path: Path) -> None:
    waiting = on_file(file)
    placement = Placement(tmp_path / "runs", "cpu", report_seconds=0.0, **options)  # type: ignore[arg-type]
    for event in run_trials(waiting, placement):
        assert event.kind != "failed", event.message
        if event.kind == "progress":
            file.write_bytes(b"overwritten")
    assert [placement.folder(trial).status for trial in waiting] == ["done"] * 4


def test_other_choices_from_the_same_files_read_them_once_too(file: Path, tmp_path: Path) -> None:
    one, two = on_file(file)[0], on_file(file, data=DataChoice(str(file), train=30))[1]
    for event in run_trials([one, two], Placement(tmp_path / "runs", "cpu", workers=1)):
        assert event.kind != "failed", event.message
        if event.kind == "progress":
            file.write_bytes(b"overwritten")


@pytest.mark.parametrize("options", [{"workers": 1}, {"runner": "pack"}], ids=["in this process", "in a pack"])
def test_data_that_cannot_be_read_fails_its_trials_and_no_other(
    options: dict[str, object], file: Path, tmp_path: Path
) -> None:
    bad = on_file(file)[:1]
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


def test_each_trial_takes_its_own_fold_of_data_that_were_given() -> None:
    read = load("iris")
    given = SharedData(given=read)
    first, second = (given.load(DataChoice("the file", fold=fold, holdout=0.2)) for fold in (0, 1))
    assert first is not None
    assert second is not None
    assert first.validation is not None
    assert len(first.train) + len(first.test) + len(first.validation) == 150
    assert not torch.equal(first.test.inputs, second.test.inputs)
    assert given.load(DataChoice("the file")) is read
