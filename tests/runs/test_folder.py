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
    with pytest.warns(UserWarning, match=r"checkpoint-0003\.pt is damaged.*checkpoint before"):
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

    from lastlayer.runs.files import write_sealed

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
