"""The progress bar of a loop that takes long."""

import multiprocessing
import sys
from collections.abc import Iterator

import pytest

from lastlayer._core.progress import shown


def errors_go_to(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is captured be a terminal, or none."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if terminal else "0")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)


@pytest.mark.parametrize(
    ("terminal", "seconds", "seen"), [(True, -1.0, True), (True, 60.0, False), (False, -1.0, False)]
)
def test_a_bar_is_shown_in_a_terminal_when_it_takes_long(
    terminal: bool, seconds: float, seen: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors_go_to(terminal, monkeypatch)
    assert list(shown(range(5), "counting", 8, done=3, silent_seconds=seconds)) == [0, 1, 2, 3, 4]
    said = capsys.readouterr().err
    assert "counting" in said if seen else said == ""


def test_a_worker_leaves_the_terminal_to_its_parent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors_go_to(True, monkeypatch)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    assert list(shown(range(3), "counting", 3, silent_seconds=-1.0)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_the_items_may_fail() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("second")

    with pytest.raises(ValueError, match="second"):
        list(shown(items(), "counting", 2))
