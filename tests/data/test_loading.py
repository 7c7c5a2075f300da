"""Loading by name and by path, options, and reading once what several trials want."""

import weakref
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data


def test_unknown_option_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"'digits' has no option 'sede' \(.*'seed'\?\); it has test_fraction, seed"):
        data.load("digits", sede=1)
    with pytest.raises(ValueError, match=r"'mnist' has no option 'size'; it has none"):
        data.load("mnist", size=3)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither nothing.npz nor .*nothing.npz exists"):
        data.load("nothing.npz", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing/here"):
        data.load("nothing/here", tmp_path)
    assert data.check("nothing.npz", tmp_path).status == "missing"


def test_options_of_paths_are_checked_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "points.npz", x=np.random.rand(10, 3), y=np.arange(10) % 2)
    with pytest.raises(ValueError, match=r"points.npz has no option 'tset_fraction' \(.* 'test_fraction'\?\)"):
        data.load(tmp_path / "points.npz", tset_fraction=0.1)
    with pytest.raises(ValueError, match=r"test_fraction must be a number like 0.2, got 'half'"):
        data.load(tmp_path / "points.npz", test_fraction="half")
    with pytest.raises(ValueError, match=r"has no option 'sise' \(did you mean 'size'\?\)"):
        data.load(tmp_path, sise=3)


def test_options_of_texts_are_refused_for_other_data() -> None:
    for options in ({"tokenizer": "some"}, {"length": 5}):
        with pytest.raises(ValueError, match=f"digits is no data set of texts: it takes no {next(iter(options))}"):
            data.load("digits", **options)


def test_a_reader_of_ones_own_may_have_an_option_called_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "signals.py").write_text(
        "from lastlayer import data\n"
        "def made(*, length: int = 3):\n"
        "    return data.load('gaussian', num_classes=2, dim=length)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert data.load("signals:made", length=5).in_shape == (5,)


def test_a_data_set_is_read_once_while_somebody_wants_it_so() -> None:
    with data.reading_once():
        first, other = data.load("iris"), data.load("iris", seed=1)
        assert other is not first
        with data.reading_once():
            assert data.load("iris") is first
        assert data.load("iris") is first  # the inner context closed nothing
        data.load("wine")  # a third one: `other` is the least recently used one and is dropped
        assert data.load("iris") is first
        assert data.load("iris", seed=1) is not other
    assert data.load("iris") is not first


def test_nothing_is_held_when_the_last_context_closes() -> None:
    with data.reading_once():
        held = weakref.ref(data.load("iris").train)
        assert held() is not None
    assert held() is None
