"""On what a result was made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lastlayer
from lastlayer.training.machine import describe_machine, git_state


def git(folder: Path, *command: str) -> str:
    told = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *command]
    return subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of one file in the repository of something else."""
    folder = tmp_path / "src" / "lastlayer"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (tmp_path / "other.py").touch()
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "other.py")
    git(tmp_path, "commit", "-qm", "other")
    monkeypatch.setattr(lastlayer, "__file__", str(folder / "__init__.py"))
    monkeypatch.delenv("LASTLAYER_COMMIT", raising=False)
    return folder


def test_the_commit_is_that_of_the_source_alone(package: Path) -> None:
    """Installed into an environment inside a user's repository, it has none of its own."""
    assert git_state() is None
    git(package, "add", ".")
    git(package, "commit", "-qm", "ours")
    assert git_state() == git(package, "rev-parse", "HEAD")
    (package.parents[1] / "other.py").write_text("changed")
    assert git_state() == git(package, "rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed")
    assert git_state() == git(package, "rev-parse", "HEAD") + "+changes"


def test_asking_takes_no_lock_of_the_repository(package: Path) -> None:
    """`git status` writes its index where it may: a commit at that moment would fail."""
    git(package, "add", ".")
    git(package, "commit", "-qm", "ours")
    index = package.parents[1] / ".git" / "index"
    (package / "__init__.py").touch()  # known to be unchanged only after reading it, which git would note
    before = index.stat().st_mtime_ns
    assert git_state() == git(package, "rev-parse", "HEAD")
    assert index.stat().st_mtime_ns == before


def test_the_commit_can_be_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTLAYER_COMMIT", "abc")
    assert describe_machine()["git"] == "abc"


def test_where_there_is_no_git_there_is_no_commit(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert git_state() is None
