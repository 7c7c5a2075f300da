"""Where files lie by the environment; atomic writes, checksums and locks."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastlayer import data
from lastlayer._core.files import (
    DamagedFileError,
    default_root,
    image_cache,
    is_locked,
    locked,
    read_json,
    read_sealed,
    write_atomically,
    write_json,
    write_sealed,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, 2.5, None], "y": {"z": "ß"}})
    assert read_json(tmp_path / "a.json") == {"x": [1, 2.5, None], "y": {"z": "ß"}}
    write_sealed(tmp_path / "b", b"with\nnewlines\n\x00")
    assert read_sealed(tmp_path / "b") == (b"with\nnewlines\n\x00", "")
    write_sealed(tmp_path / "b", b"with\nnewlines\n\x00", "somebody's")
    assert read_sealed(tmp_path / "b") == (b"with\nnewlines\n\x00", "somebody's")


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40] + b"#" + b[41:], lambda b: b"", lambda b: b + b"x"]
)
def test_damage_is_named_with_both_checksums(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "sealed"
    write_sealed(path, bytes(range(256)), "own")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedFileError, match="sealed is damaged: SHA-256 expected"):
        read_sealed(path)


def test_an_edited_json_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"accuracy": 0.9})
    path.write_text(path.read_text().replace("0.9", "0.99"))
    with pytest.raises(DamagedFileError):
        read_json(path)
    path.write_text("{}")
    with pytest.raises(DamagedFileError):
        read_json(path)
    for other in ("[1, 2", "[1]", "null", '"sha256"', "[" * 100_000):
        path.write_text(other)
        with pytest.raises(DamagedFileError, match=r"a\.json is damaged: "):
            read_json(path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, failing_disk: Callable[..., Any]) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with failing_disk(), pytest.raises(OSError, match=r"No space left on device: '.*a'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file" / "below", b"")


def test_nan_survives(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": float("nan")})
    assert json.dumps(read_json(tmp_path / "a.json")["x"]) == "NaN"


HOLDS_A_LOCK = """
import sys
from pathlib import Path
from lastlayer._core.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_holds_a_lock_and_kill_9_frees_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "lock"
    assert not is_locked(path)
    command = [sys.executable, "-c", HOLDS_A_LOCK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert is_locked(path)
        with pytest.raises(BlockingIOError, match="another process holds"), locked(path, seconds=0.05):
            pass
        threading.Timer(0.2, other.kill).start()
        with locked(path, waiting="waiting for it"):
            assert other.wait() == -signal.SIGKILL
            assert is_locked(path)
    assert "waiting for it" in capsys.readouterr().err
    assert not is_locked(path)


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), locked(tmp_path / "lock"):
        raise KeyError
    with locked(tmp_path / "lock", seconds=0):
        pass


@pytest.mark.parametrize(
    ("place", "variable", "folder"),
    [(default_root, "LASTLAYER_DATA", "data"), (image_cache, "LASTLAYER_CACHE", "images")],
)
def test_a_place_follows_its_variable_then_the_cache_then_the_home(
    place: object, variable: str, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert callable(place)
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert place() == tmp_path / "cache/lastlayer" / folder
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert place() == tmp_path / ".cache/lastlayer" / folder
    monkeypatch.setenv(variable, str(tmp_path / "chosen"))
    assert place() == tmp_path / "chosen"


def test_data_are_loaded_from_the_root_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LASTLAYER_DATA", str(tmp_path))
    np.savez(tmp_path / "points.npz", x=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]))
    assert data.load("points").num_classes == 2
