"""Files that the user names are checked before anything that takes long."""

import os
from pathlib import Path

import pytest

from lastlayer.cli._say import check_writable  # private: no command alone meets all of its cases


def test_a_file_that_may_not_be_written_is_told_with_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # for root everything may be written
    with pytest.raises(ValueError, match=r"^--csv .*a\.csv: it may not be written; name a file in another folder$"):
        check_writable("--csv", tmp_path / "a.csv")


def test_what_can_be_written_passes(tmp_path):
    (tmp_path / "old.csv").write_text("")
    for name in ("old.csv", "new.csv"):
        check_writable("--csv", tmp_path / name)
    check_writable("--json", Path("/dev/null"))
