"""Loading by name and path, the data root, fetching and checking through the registry."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data
from lastlayer.data import registry
from lastlayer.data.download import Remote

NEEDED = {
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "tiny-imagenet",
    "imagenet32",
    "omniglot",
    "imagenet",
    "miniimagenet",
    "cola",
    "mrpc",
    "rte",
    "sst-2",
    "qnli",
    "qqp",
    "mnli",
    "mnli-mm",
    "digits",
    "wine",
    "breast-cancer",
    "iris",
    "conic-hull",
    "mlp-teacher",
    "gaussian",
}


def test_all_data_sets_are_there_and_described() -> None:
    assert set(data.available()) >= NEEDED
    for name in NEEDED:
        source = data.describe(name)
        assert source.summary
        if source.needs_files:
            assert source.homepage
            assert source.licence
            assert source.citation


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'cifra10' is unknown \(did you mean 'cifar10'\?\)"):
        data.load("cifra10")


def test_unknown_option_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"'digits' has no option 'sede' \(.*'seed'\?\); options: test_fraction, seed"):
        data.load("digits", sede=1)
    with pytest.raises(ValueError, match=r"'mnist' has no option 'size'; options: none"):
        data.load("mnist", size=3)


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"neither nothing.npz nor .*nothing.npz exists"):
        data.load("nothing.npz", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nothing/here"):
        data.load("nothing/here", tmp_path)
    assert data.check("nothing.npz", tmp_path).status == "missing"


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LASTLAYER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data.default_root() == tmp_path / "cache/lastlayer/data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.default_root() == tmp_path / ".cache/lastlayer/data"
    monkeypatch.setenv("LASTLAYER_DATA", str(tmp_path / "chosen"))
    assert data.default_root() == tmp_path / "chosen"
    (tmp_path / "chosen").mkdir()
    np.savez(tmp_path / "chosen/points.npz", x=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]))
    assert data.load("points").num_classes == 2


def test_get_without_a_place_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imagenet32 must be fetched by hand: https://image-net.org"):
        data.get("imagenet32", tmp_path)
    with pytest.raises(ValueError, match=r"digits comes with this package"):
        data.get("digits", tmp_path)


def test_get_fetches_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(registry, "fetch", lambda remote, root, progress: fetched.append(remote.path))
    assert data.get("mnist", tmp_path) == tmp_path
    assert len(fetched) == 4


def test_remotes_have_a_checksum_or_https() -> None:
    remotes = [remote for name in data.available() for remote in data.describe(name).remotes]
    assert len(remotes) > 10
    for remote in remotes:
        assert remote.md5 or remote.sha256 or all(url.startswith("https://") for url in remote.urls)
        assert not Path(remote.path).is_absolute()


def test_registering_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"registered twice"):
        data.register("mnist", summary="")(lambda root: None)  # type: ignore[arg-type, return-value]


def test_own_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_SOURCES", dict(registry._SOURCES))

    @data.register("mine", summary="three points", licence="mine", needs_files=False, remotes=(Remote((), ""),))
    def mine(*, shift: float = 0.0) -> data.Dataset:
        dataset = data.load("gaussian", num_classes=2)
        moved = data.Split(dataset.train.inputs + shift, dataset.train.target)
        return replace(dataset, train=moved)

    dataset = data.load("mine", shift=3.0)
    assert dataset.name == "mine"
    assert dataset.licence == "mine"
    assert "mine" in data.available()


def test_options_of_paths_are_checked_too(tmp_path: Path) -> None:
    np.savez(tmp_path / "points.npz", x=np.random.rand(10, 3), y=np.arange(10) % 2)
    with pytest.raises(ValueError, match=r"points.npz has no option 'tset_fraction' \(.* 'test_fraction'\?\)"):
        data.load(tmp_path / "points.npz", tset_fraction=0.1)
    with pytest.raises(ValueError, match=r"test_fraction must be a number like 0.2, got 'half'"):
        data.load(tmp_path / "points.npz", test_fraction="half")
    with pytest.raises(ValueError, match=r"has no option 'sise' \(did you mean 'size'\?\)"):
        data.load(tmp_path, sise=3)


def test_a_data_set_is_read_once_while_somebody_wants_it_so() -> None:
    with data.reading_once(keep=2):
        first, other = data.load("iris"), data.load("iris", seed=1)
        assert other is not first
        with data.reading_once():
            assert data.load("iris") is first
        assert data.load("iris") is first  # the inner context closed nothing
        data.load("wine")  # the third one: `other` was not used for longest and goes
        assert data.load("iris") is first
        assert data.load("iris", seed=1) is not other
    assert data.load("iris") is not first


def test_nothing_is_held_when_the_last_context_closes() -> None:
    with data.reading_once():
        held = weakref.ref(data.load("iris").train)
        assert held() is not None
    assert held() is None
