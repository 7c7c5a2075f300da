"""Many trials in real processes: killed, failing, resumed to the same bits."""

import dataclasses
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lastlayer.runners import Event, Placement, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial, finish_fit, fit

TRIAL = Trial(
    data=DataChoice("digits", train=256),
    model=ModelChoice("mlp", {"width": 16}),
    schedule=Schedule(epochs=3),
    evaluations=1,
)


def seeds(count: int, **changes: object) -> list[Trial]:
    return [dataclasses.replace(TRIAL, seed=seed, **changes).resolved() for seed in range(count)]  # type: ignore[arg-type]


@dataclasses.dataclass
class Ran:
    """Four trials that ran in two worker processes; the first one diverges."""

    trials: list[Trial]
    placement: Placement
    events: list[Event]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The file of their data is overwritten as soon as each worker has read it."""
    folder = tmp_path_factory.mktemp("ran")
    file = folder / "points.npz"
    generator = np.random.default_rng(0)
    arrays = {f"x_{part}": generator.standard_normal((64, 4)).astype(np.float32) for part in ("train", "test")}
    np.savez(file, **arrays, **{f"y_{part}": np.arange(64) % 2 for part in ("train", "test")})
    steep = Optimiser(lr=1e4, weight_decay=0.0)
    bad = dataclasses.replace(TRIAL, data=DataChoice(str(file)), loss=LossChoice("mse"), optimiser=steep).resolved()
    trials = [bad, *seeds(3, data=DataChoice(str(file)))]
    placement = Placement(folder / "runs", "cpu", workers=2)
    events = []
    for event in run_trials(trials, placement):
        events.append(event)
        if {event.index for event in events if event.kind != "start"} == {0, 1}:
            file.write_bytes(b"overwritten")
    return Ran(trials, placement, events)


def test_processes_finish_every_trial_and_read_its_data_once_each(ran: Ran) -> None:
    kinds = [event.kind for event in ran.events if event.index > 0]
    assert kinds.count("done") == 3
    assert all(ran.placement.folder(trial).status == "done" for trial in ran.trials[1:])


def test_a_second_call_skips_what_is_done(ran: Ran) -> None:
    assert [event.kind for event in run_trials(ran.trials[1:], ran.placement)] == ["skip"] * 3


def test_a_failing_trial_does_not_stop_the_others_and_stays_failed_until_asked(ran: Ran) -> None:
    ends = {event.index: event for event in ran.events if event.kind in ("done", "failed")}
    assert [ends[index].kind for index in range(4)] == ["failed", "done", "done", "done"]
    assert "not finite" in ends[0].message
    again = list(run_trials(ran.trials, dataclasses.replace(ran.placement, workers=None)))
    assert [event.kind for event in again if event.index == 0] == ["failed"]
    assert "--retry-failed" in again[0].message
    retried = run_trials(ran.trials[:1], dataclasses.replace(ran.placement, retry_failed=True))
    assert next(retried).kind == "start"


def test_a_worker_that_is_killed_fails_its_trial_alone(tmp_path: Path) -> None:
    trials = [*seeds(1, schedule=Schedule(epochs=200)), *seeds(3)]
    killed = False
    ends: dict[int, str] = {}
    for event in run_trials(trials, Placement(tmp_path, "cpu", workers=2)):
        if event.kind == "progress" and event.index == 0 and not killed:
            first = min(multiprocessing.active_children(), key=lambda process: process.pid or 0)
            first.kill()
            killed = True
        if event.kind in ("done", "failed"):
            ends[event.index] = event.kind
            if event.kind == "failed":
                assert "process died" in event.message
    assert killed
    assert ends == {0: "failed", 1: "done", 2: "done", 3: "done"}


def in_a_process(work: Callable[..., None], *given: object) -> int | None:
    """The exit code of a process that does nothing else. It is forked, which starts at once."""
    process = multiprocessing.get_context("fork").Process(target=work, args=given)
    process.start()
    process.join(120)
    return process.exitcode


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fit_and_die(trial: Trial, folder: Path, when: str, what: str) -> None:
    replace = os.replace

    def replace_or_die(source: str, path: Path) -> None:
        if when == "before" and Path(path).name == what:
            die()
        replace(source, path)
        if when == "after" and Path(path).name == what:
            die()

    os.replace = replace_or_die  # type: ignore[assignment]
    for number, _ in enumerate(fit(trial, folder)):
        if when == "yield" and number == int(what):
            die()


# one after the other in the same run: the work of six epochs, and what is written after them
DEATHS = [
    ("before", "trial.json"),
    ("before", "checkpoint-0000.pt"),
    ("after", "checkpoint-0001.pt"),
    ("yield", "6"),  # in the middle of an epoch
    ("before", "checkpoint-0004.pt"),  # whose line of metrics is written
    ("after", "checkpoint-0006.pt"),
    ("before", "weights.safetensors"),
    ("before", "result.json"),
]


@pytest.mark.usefixtures("checkpoint_after_every_epoch")
def test_kill_nine_at_any_moment_and_resume_gives_the_same_bits(tmp_path: Path) -> None:
    trial = dataclasses.replace(TRIAL, schedule=Schedule(epochs=6), evaluations=3, loss=LossChoice("sln")).resolved()
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    finish_fit(fit(trial, whole))
    for when, what in DEATHS:
        assert in_a_process(fit_and_die, trial, cut.path, when, what) == -signal.SIGKILL, (when, what)
        assert cut.status == ("missing" if what == "trial.json" else "interrupted")
    assert in_a_process(fit_and_die, trial, cut.path, "never", "") == 0
    assert cut.status == "done"
    for name in ("weights", "snapshots"):
        one, other = whole.tensors(name), cut.tensors(name)
        assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = whole.result(), cut.result()
    assert first["measures"] == second["measures"]
    assert [line["epoch"] for line in cut.metrics()] == list(range(7))
    assert sorted(path.name for path in cut.path.iterdir()) == sorted(path.name for path in whole.path.iterdir())


def run_and_die(trials: list[Trial], placement: Placement) -> None:
    """Runs workers, and kills their parent when one of them has trained for some epochs."""
    for event in run_trials(trials, placement):
        if event.progress is not None and event.progress.epoch >= 3:
            die()


def test_workers_end_with_a_killed_parent_and_the_rest_comes_to_the_same_bits(tmp_path: Path) -> None:
    trials = seeds(2, schedule=Schedule(epochs=40), evaluations=20)  # each of which is told
    whole, cut = Placement(tmp_path / "whole", "cpu", workers=2), Placement(tmp_path / "cut", "cpu", workers=2)
    assert in_a_process(run_and_die, trials, cut) == -signal.SIGKILL
    for trial in trials:  # the lock falls when the worker is gone
        until = time.monotonic() + 120
        while cut.folder(trial).status == "running" and time.monotonic() < until:
            time.sleep(0.05)
        assert cut.folder(trial).status != "running"
    assert any(cut.folder(trial).status == "interrupted" for trial in trials)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as each of two workers has
    list(run_trials(trials, dataclasses.replace(cut, workers=1)))
    for trial in trials:
        finish_fit(fit(trial, whole.folder(trial)))
        one, other = whole.folder(trial), cut.folder(trial)
        assert one.result()["measures"] == other.result()["measures"]
        weights = other.tensors("weights")
        assert all(torch.equal(value, weights[name]) for name, value in one.tensors("weights").items())
