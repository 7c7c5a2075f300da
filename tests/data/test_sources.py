"""What is known of each data set, fetching, and data sets of one's own."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data
from lastlayer.data import Remote, sources

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


def test_get_without_a_place_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"imagenet32 must be fetched by hand: https://image-net.org"):
        data.get("imagenet32", tmp_path)
    with pytest.raises(ValueError, match=r"digits comes with this package"):
        data.get("digits", tmp_path)


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
    # private: what a test registers must be gone afterwards
    monkeypatch.setattr(sources._SOURCES, "_parts", dict(sources._SOURCES._parts))

    @data.register("mine", summary="three points", licence="mine", remotes=(Remote((), ""),))
    def mine(*, shift: float = 0.0) -> data.Dataset:
        dataset = data.load("gaussian", num_classes=2)
        moved = data.Split(dataset.train.inputs + shift, dataset.train.target)
        return replace(dataset, train=moved)

    dataset = data.load("mine", shift=3.0)
    assert dataset.name == "mine"
    assert dataset.licence == "mine"
    assert "mine" in data.available()


def test_a_reader_of_ones_own_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_data.py").write_text(
        "from lastlayer import data\n"
        "def halves(*, seed: int = 0):\n"
        "    return data.load('gaussian', num_classes=2, seed=seed)\n"
        "def files(root):\n"
        "    return data.load(root / 'points.npz')\n"
    )
    np.savez(tmp_path / "points.npz", x=np.zeros((4, 2)), y=np.array([0, 0, 1, 1]))
    monkeypatch.syspath_prepend(tmp_path)
    dataset = data.load("my_data:halves", seed=3)
    assert dataset.name == "my_data:halves"
    assert dataset.checksums == data.load("gaussian", num_classes=2, seed=3).checksums
    assert data.find("my_data:halves") is None
    assert not data.describe("my_data:halves").needs_files
    assert data.load("my_data:files", tmp_path).in_shape == (2,)
    with pytest.raises(ValueError, match=r"data set 'my_data:halves' has no option 'sede' \(did you mean 'seed'\?\)"):
        data.load("my_data:halves", sede=3)
    with pytest.raises(ValueError, match=r"data set 'my_data:half': .* no callable 'half' \(did you mean 'halves'\?\)"):
        data.load("my_data:half")
    with pytest.raises(ValueError, match=r"data set 'no_such:half': module 'no_such' cannot be imported"):
        data.find("no_such:half")


def test_every_paragraph_of_the_file_is_of_a_registered_set() -> None:
    with Path(sources.__file__).with_name("sources.toml").open("rb") as file:
        content = tomllib.load(file)
    assert set(content) <= set(data.available())
    for name, facts in content.items():
        source = data.describe(name)
        assert (source.summary, dict(source.checksums)) == (facts["summary"], facts.get("checksums", {}))
        assert (source.size is None) == (not source.needs_files)
