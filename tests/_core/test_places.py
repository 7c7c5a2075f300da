"""Where data sets and decoded images lie, by the environment."""

from pathlib import Path

import numpy as np
import pytest

from lastlayer import data
from lastlayer._core.places import default_root, image_cache


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
