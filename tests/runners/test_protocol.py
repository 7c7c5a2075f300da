"""What every runner is told and tells, and runners of one's own. The example in the module's docstring is a doctest."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastlayer.runners import Event, Placement, Work, register, run_trials
from lastlayer.training import DataChoice, ModelChoice, Schedule, Trial

TRIAL = Trial(DataChoice("iris"), ModelChoice("mlp", {"width": 4}), schedule=Schedule(epochs=2), evaluations=1)


def seeds(count: int) -> list[Trial]:
    return [dataclasses.replace(TRIAL, seed=seed).resolved() for seed in range(count)]


def elsewhere(work: Work) -> Iterator[Event]:
    """Trains as on another machine, and tells what the run folders say."""
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
