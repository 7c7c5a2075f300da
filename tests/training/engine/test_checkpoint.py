"""Checkpoints written in the background: what was asked for, in order, and never a later state. TensorBoard logs."""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from lastlayer.runs import RunFolder
from lastlayer.training import Trial
from lastlayer.training.engine.checkpoint import Saver, make_logger

Run = TypeVar("Run", bound=RunFolder)


class Reached:
    """Stands in for an event of a GPU that has reached it."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _events_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Reached)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Both ways to write; the one for a GPU with tensors that stay on the host."""
    return torch.device(request.param)


def started(path: Path, kind: type[Run] = RunFolder) -> Run:
    folder = kind(path)
    folder.path.mkdir()
    folder.start({"seed": 0})
    return folder


class Waiting(RunFolder):
    """A run whose disk does not write before it `may`."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.may = threading.Event()
        self.written: list[int] = []

    def save_checkpoint(self, epoch: int, state: Mapping[str, Any]) -> None:
        assert self.may.wait(10)
        self.written.append(epoch)
        super().save_checkpoint(epoch, state)


class Full(RunFolder):
    """A run whose disk is full."""

    def save_checkpoint(self, epoch: int, state: Mapping[str, Any]) -> None:
        raise OSError("no space left on device")


def test_what_is_written_is_the_state_when_it_was_asked_for(tmp_path: Path, device: torch.device) -> None:
    folder = started(tmp_path / "run")
    whole = torch.arange(6.0).reshape(2, 3)
    state: dict[str, Any] = {"network": {"weight": whole[1]}, "history": [{"epoch": 1}], "rate": (0.9, 0.99)}
    with Saver(folder, device) as saver:
        saver.save(1, {"epoch": 1}, state)
        whole.zero_()
        state["history"].append({"epoch": 2})
        saver.wait()
    written = folder.load_checkpoint()
    assert written is not None
    assert torch.equal(written["network"]["weight"], torch.tensor([3.0, 4.0, 5.0]))
    assert written["network"]["weight"].untyped_storage().nbytes() == 12  # not the tensor it was a slice of
    assert (written["history"], written["rate"]) == ([{"epoch": 1}], (0.9, 0.99))
    assert folder.metrics() == [{"epoch": 1}]


def test_training_goes_on_while_a_thread_writes_and_leaving_waits_for_it(tmp_path: Path) -> None:
    folder = started(tmp_path / "run", Waiting)
    with Saver(folder, torch.device("cuda")) as saver:
        saver.save(1, {"epoch": 1}, {"epoch": 1})
        assert folder.load_checkpoint() is None
        folder.may.set()
    assert folder.load_checkpoint() == {"epoch": 1}


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_training(tmp_path: Path, device: torch.device) -> None:
    def save() -> None:
        with Saver(started(tmp_path / "run", Full), device) as saver:
            saver.save(1, {"epoch": 1}, {"epoch": 1})
            saver.wait()

    with pytest.raises(OSError, match="no space left"):
        save()


def test_without_a_folder_nothing_is_written(device: torch.device) -> None:
    with Saver(None, device) as saver:
        saver.save(1, {"epoch": 1}, {"weight": torch.ones(1)})
        saver.wait()


def test_beside_a_gpu_checkpoints_come_no_faster_than_they_are_written_and_metrics_miss_none(tmp_path: Path) -> None:
    folder = started(tmp_path / "run", Waiting)
    with Saver(folder, torch.device("cuda")) as saver:
        for epoch in range(1, 10):
            saver.save(epoch, {"epoch": epoch}, {"epoch": epoch}, must=epoch == 9)
        assert not saver.is_idle
        folder.may.set()
        saver.wait()
        assert saver.is_idle
    assert folder.written == [1, 9]
    assert [line["epoch"] for line in folder.metrics()] == list(range(1, 10))


def test_a_checkpoint_is_due_again_after_fifty_times_what_the_last_took_or_ten_minutes(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    written: list[int] = []

    class Slow(RunFolder):
        def save_checkpoint(self, epoch: int, state: Mapping[str, Any]) -> None:
            written.append(epoch)
            now[0] += 2 if epoch < 6 else 100

    with Saver(started(tmp_path / "run", Slow), device) as saver:
        for epoch, moment in ((1, 100), (2, 200), (3, 201.9), (4, 202), (5, 303.9), (6, 304), (7, 1003), (8, 1004)):
            now[0] = moment
            saver.save(epoch, {"epoch": epoch}, {"epoch": epoch})
            saver.wait()
    assert written == [1, 4, 6, 8]  # due at 202 and 304, a hundred seconds after their ends; then after ten minutes


def test_lines_of_metrics_become_scalars_of_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with make_logger(tmp_path, Trial(seed=3)) as log:
        log({"epoch": 2, "loss": 0.5, "test": {"accuracy": 0.25}})
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"ce-seed3-{Trial(seed=3).identity}"
    events = EventAccumulator(str(folder)).Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "test/accuracy"}
    assert [(event.step, event.value) for event in events.Scalars("test/accuracy")] == [(2, 0.25)]


def test_without_a_folder_nothing_is_logged_and_without_tensorboard_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with make_logger(None, Trial()) as log:
        log({"epoch": 1})
    with pytest.raises(ImportError, match=r"lastlayer\[tensorboard\]"), make_logger(tmp_path, Trial()):
        pass
