"""Run folders: every status, the last two checkpoints, and damage."""

from pathlib import Path

import pytest
import torch

from lastlayer.runs import DamagedFileError, RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.start({"seed": 0})
    return folder


def test_statuses_follow_the_life_of_a_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.status == "missing"
    run.start({"seed": 0})
    assert run.status == "interrupted"
    with run.locked():
        assert run.status == "running"
        with pytest.raises(BlockingIOError, match="another process"), RunFolder(run.path).locked():
            pass
    run.fail({"error": "why"})
    assert run.status == "failed"
    run.start({"seed": 0})
    assert run.status == "interrupted"
    run.finish({"measures": {}}, {"w": torch.ones(2)}, {})
    assert run.status == "done"
    assert run.result()["measures"] == {}
    assert torch.equal(run.tensors("weights")["w"], torch.ones(2))


def test_tied_weights_are_kept_under_both_names(run: RunFolder) -> None:
    tied = torch.arange(6.0).view(2, 3)
    run.finish({}, {"first": tied, "second": tied, "a row of it": tied[1], "turned": tied.T}, {})
    found = run.tensors("weights")
    assert torch.equal(found["first"], tied)
    assert torch.equal(found["second"], tied)
    assert torch.equal(found["a row of it"], tied[1])
    assert torch.equal(found["turned"], tied.T)


def test_an_unfinished_run_has_no_result(run: RunFolder) -> None:
    with pytest.raises(FileNotFoundError, match="interrupted"):
        run.result()


def test_two_checkpoints_are_kept_and_a_damaged_one_falls_back_loudly(run: RunFolder) -> None:
    for epoch in range(4):
        run.save_checkpoint(epoch, {"epoch": epoch, "w": torch.full((3,), float(epoch))})
    kept = sorted(path.name for path in run.path.glob("checkpoint-*"))
    assert kept == ["checkpoint-0002.pt", "checkpoint-0003.pt"]
    newest = run.path / kept[1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"checkpoint-0003\.pt is damaged.*checkpoint before, checkpoint-0002"):
        state = run.load_checkpoint()
    assert state is not None
    assert state["epoch"] == 2


def test_no_whole_checkpoint_means_starting_over(run: RunFolder) -> None:
    assert run.load_checkpoint() is None
    (run.path / "checkpoint-0001.pt").write_bytes(b"sha256:00\nrubbish")
    with pytest.warns(UserWarning, match="damaged"):
        assert run.load_checkpoint() is None


def test_a_flipped_byte_in_the_weights_is_noticed(run: RunFolder) -> None:
    run.finish({}, {"w": torch.ones(100)}, {})
    path = run.path / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"weights\.safetensors"):
        run.tensors("weights")


def test_nothing_is_unpickled_but_tensors(run: RunFolder) -> None:
    import io
    import pickle

    from lastlayer._core.files import write_sealed

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, ("raise SystemExit('unpickled')",))

    buffer = io.BytesIO()
    torch.save({"epoch": Evil()}, buffer)
    write_sealed(run.path / "checkpoint-0001.pt", buffer.getvalue())
    with pytest.raises(pickle.UnpicklingError):
        run.load_checkpoint()


def test_a_line_cut_short_is_left_out_and_resuming_drops_later_epochs(run: RunFolder) -> None:
    for epoch in range(3):
        run.append_metrics({"epoch": epoch})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [line["epoch"] for line in run.metrics()] == [0, 1, 2]
    run.keep_metrics_before(2)
    assert [line["epoch"] for line in run.metrics()] == [0, 1]


def test_checkpoints_are_ordered_by_number_not_by_text(run: RunFolder) -> None:
    for epoch in (9998, 9999, 10000):
        run.save_checkpoint(epoch, {"epoch": epoch})
    state = run.load_checkpoint()
    assert state is not None
    assert state["epoch"] == 10000


def test_a_file_that_is_no_checkpoint_of_ours_is_left_alone(run: RunFolder) -> None:
    for name in ("checkpoint-x.pt", "checkpoint-0009 (copy).pt", "checkpoint-.pt"):
        (run.path / name).write_text("the user's own")
    for epoch in range(1, 4):
        run.save_checkpoint(epoch, {"epoch": epoch})
    state = run.load_checkpoint()
    assert state is not None
    assert state["epoch"] == 3
    assert len(list(run.path.glob("checkpoint-*.pt"))) == 3 + 2


def test_both_checkpoints_damaged_is_said_for_each(run: RunFolder) -> None:
    for epoch in (1, 2):
        run.save_checkpoint(epoch, {"epoch": epoch})
        (run.path / f"checkpoint-{epoch:04d}.pt").write_bytes(b"")
    with pytest.warns(UserWarning, match="is damaged") as said:
        assert run.load_checkpoint() is None
    first, second = (str(warning.message) for warning in said)
    assert "falling back to the checkpoint before, checkpoint-0001.pt" in first
    assert "starting over" in second


def test_damaged_checkpoints_do_not_push_out_those_of_the_run_that_went_on(run: RunFolder) -> None:
    for epoch in (7, 8):
        run.save_checkpoint(epoch, {"epoch": epoch})
        (run.path / f"checkpoint-{epoch:04d}.pt").write_bytes(b"cut")
    run.save_checkpoint(0, {"epoch": 0})
    run.save_checkpoint(3, {"epoch": 3})
    assert [path.name for path in sorted(run.path.glob("checkpoint-*"))] == ["checkpoint-0000.pt", "checkpoint-0003.pt"]
    assert run.load_checkpoint() == {"epoch": 3}


def test_what_a_killed_writer_left_is_cleared_when_the_run_goes_on(run: RunFolder) -> None:
    left = run.path / f".checkpoint-0001.pt.{'0123456789abcdef' * 2}"
    left.write_bytes(b"half")
    (run.path / ".note").write_text("of the user")
    with run.locked():
        assert not left.exists()
    assert (run.path / ".note").exists()


def test_someone_looking_at_the_status_does_not_turn_a_run_away(run: RunFolder) -> None:
    import fcntl
    import threading

    with run.locked():
        pass
    with (run.path / "lock").open() as file:  # as `status` does, though it lets go at once
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.1, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        with run.locked():
            pass


def test_a_damaged_trial_or_failure_does_not_stop_a_run(run: RunFolder) -> None:
    (run.path / "trial.json").write_text("{")
    run.fail({"error": "why"})
    (run.path / "failure.json").write_text('{"error": "changed"}')
    assert "failure.json is damaged" in run.failure()["error"]
    run.start({"seed": 0})
    assert run.trial() == {"seed": 0}


def test_another_trial_is_refused(run: RunFolder) -> None:
    with pytest.raises(ValueError, match="holds another trial"):
        run.start({"seed": 1})


def test_damaged_lines_of_metrics_are_left_out(run: RunFolder) -> None:
    run.append_metrics({"epoch": 0})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n{"epo\x00h": 1}\n[3]\n')
    run.append_metrics({"epoch": 2})
    assert [line["epoch"] for line in run.metrics()] == [0, 2]


def test_a_folder_of_runs_is_not_called_a_run_that_is_missing(run: RunFolder) -> None:
    with pytest.raises(FileNotFoundError, match=r"is a folder of 1 run: name it, .*run$"):
        RunFolder(run.path.parent).result()
    RunFolder(run.path.parent / "another").start({"seed": 1})
    with pytest.raises(FileNotFoundError, match=r"is a folder of 2 runs: name one of them, such as .*another$"):
        RunFolder(run.path.parent).result()
