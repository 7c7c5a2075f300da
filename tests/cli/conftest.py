"""What the tests of commands share."""

from pathlib import Path

import pytest


@pytest.fixture
def folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
