"""Checkpoints written in the background: what was asked for, in order, and never a later state."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from lastlayer.runs import RunFolder
from lastlayer.training.engine.checkpoint import Saver


class Reached:
    """Stands in for an event of a GPU that has reached it."""

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Both ways to write; the one for a GPU with tensors that stay on the host."""
    monkeypatch.setattr(torch.cuda, "Event", Reached)
    return torch.device(request.param)


def started(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.path.mkdir()
    folder.start({"seed": 0})
    return folder


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


def test_training_goes_on_while_a_thread_writes_and_leaving_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Reached)
    folder = started(tmp_path / "run")
    may_write = threading.Event()
    write = RunFolder.save_checkpoint

    def slowly(self: RunFolder, epoch: int, state: dict[str, Any]) -> None:
        assert may_write.wait(10)
        write(self, epoch, state)

    monkeypatch.setattr(RunFolder, "save_checkpoint", slowly)
    with Saver(folder, torch.device("cuda")) as saver:
        saver.save(1, {"epoch": 1}, {"epoch": 1})
        assert folder.load_checkpoint() is None
        may_write.set()
    assert folder.load_checkpoint() == {"epoch": 1}


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_training(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(RunFolder, "save_checkpoint", full)

    def save() -> None:
        with Saver(started(tmp_path / "run"), device) as saver:
            saver.save(1, {"epoch": 1}, {"epoch": 1})
            saver.wait()

    with pytest.raises(OSError, match="no space left"):
        save()


def test_without_a_folder_nothing_is_written(device: torch.device) -> None:
    with Saver(None, device) as saver:
        saver.save(1, {"epoch": 1}, {"weight": torch.ones(1)})
        saver.wait()


def test_beside_a_gpu_checkpoints_come_no_faster_than_they_are_written_and_metrics_miss_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Reached)
    folder = started(tmp_path / "run")
    may_write = threading.Event()
    written: list[int] = []
    monkeypatch.setattr(RunFolder, "save_checkpoint", lambda *given: written.append(given[1]) or may_write.wait(10))
    with Saver(folder, torch.device("cuda")) as saver:
        for epoch in range(1, 10):
            saver.save(epoch, {"epoch": epoch}, {"epoch": epoch}, must=epoch == 9)
        assert not saver.is_idle
        may_write.set()
        saver.wait()
        assert saver.is_idle
    assert written == [1, 9]
    assert [line["epoch"] for line in folder.metrics()] == list(range(1, 10))


def test_a_checkpoint_is_due_again_after_fifty_times_what_the_last_took_or_ten_minutes(
    tmp_path: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("lastlayer.training.engine.checkpoint.time.monotonic", lambda: now[0])
    written: list[int] = []

    def slowly(self: RunFolder, epoch: int, state: dict[str, Any]) -> None:
        written.append(epoch)
        now[0] += 2 if epoch < 6 else 100

    monkeypatch.setattr(RunFolder, "save_checkpoint", slowly)
    with Saver(started(tmp_path / "run"), device) as saver:
        for epoch, moment in ((1, 100), (2, 200), (3, 201.9), (4, 202), (5, 303.9), (6, 304), (7, 1003), (8, 1004)):
            now[0] = moment
            saver.save(epoch, {"epoch": epoch}, {"epoch": epoch})
            saver.wait()
    assert written == [1, 4, 6, 8]  # due at 202 and 304, a hundred seconds after their ends; then after ten minutes
