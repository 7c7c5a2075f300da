"""Which samples each seed of a comparison is tested on."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from lastlayer import data, reports
from lastlayer.runs import RunFolder
from tests.cli.commands import lastlayer

pytestmark = pytest.mark.usefixtures("folder_of_its_own")

SHORT = ["--losses", "ce", "--seeds", "2", "--epochs", "1", "--set", "evaluations=1", "--no-tune"]


def results() -> list[dict[str, Any]]:
    found = [RunFolder(path.parent).result() for path in Path("runs").glob("*/result.json")]
    return sorted(found, key=lambda result: result["trial"]["seed"])


def compare(*options: str) -> str:
    code, said = lastlayer("compare", *SHORT, "--workers", "1", *options)
    assert code == 0, said
    return said


def test_seeds_test_on_different_folds_if_the_test_set_is_random_and_small() -> None:
    said = compare("--data", "iris")
    assert [result["trial"]["data"]["fold"] for result in results()] == [0, 1]
    assert "each seed tests on another fifth of each class, so that 60 samples are tested in all\n" in said
    assert "at random" not in said
    for result in results():
        assert result["data"]["notes"] == [f"test set: fold {result['trial']['data']['fold']} of 5, seed 0"]
    (group,) = reports.summarise(reports.load("runs")).groups
    assert sorted(group.done) == [0, 1]
    tested = [RunFolder(path.parent).tensors("rows")["target"] for path in Path("runs").glob("*/rows.safetensors")]
    assert [len(one) for one in tested] == [30, 30]


@pytest.mark.parametrize(("given", "fold"), [("2", 2), ("null", None)])
def test_all_seeds_may_test_on_the_same_samples(given: str, fold: int | None) -> None:
    said = compare("--data", "iris", "--set", f"data.fold={given}")
    assert {result["trial"]["data"].get("fold") for result in results()} == {fold}
    assert "each seed tests" not in said


def test_a_test_set_of_ones_own_or_of_many_samples_is_kept() -> None:
    random = numpy.random.default_rng(0)
    for name, shape in (("own", {"_train": 60, "_test": 20}), ("large", {"": 5_000})):
        arrays = {}
        for part, count in shape.items():
            arrays |= {f"x{part}": random.normal(size=(count, 2)), f"y{part}": numpy.arange(count) % 2}
        numpy.savez(f"{name}.npz", **arrays)
        compare("--data", f"{name}.npz", "--out", name, "--batch-size", "500")
        trials = [RunFolder(path.parent).trial() for path in Path(name).glob("*/trial.json")]
        assert [trial["data"].get("fold") for trial in trials] == [None, None]
    assert len(data.load("large.npz").test) == 1_000


def test_folds_of_features_are_chosen_by_linear_probe_too() -> None:
    random = numpy.random.default_rng(0)
    numpy.savez("some.npz", features=random.normal(size=(50, 3)), target=numpy.arange(50) % 2)
    code, said = lastlayer("linear-probe", "--features", "some.npz", *SHORT)
    assert code == 0, said
    assert "so that 20 samples are tested in all\n" in said
    assert [(result["trial"]["data"]["fold"], result["data"]["samples"]) for result in results()] == [
        (fold, {"train": 40, "test": 10}) for fold in (0, 1)
    ]


def test_a_class_without_a_test_sample_is_told() -> None:
    target = numpy.array([0, 1] * 30 + [2, 2])
    inputs = numpy.random.default_rng(0).normal(size=(len(target), 2))
    numpy.savez("rare.npz", x=inputs, y=target)
    said = compare("--data", "rare.npz", "--seeds", "5")
    assert "test set: 1 class has no sample in that of some seeds, and how they fare is not measured there\n" in said
    numpy.savez("lacking.npz", x_train=inputs, y_train=target, x_test=inputs[:9], y_test=numpy.zeros(9, int))
    said = compare("--data", "lacking.npz", "--out", "others")
    assert "test set: 2 of 3 classes have no sample in that, and how they fare is not measured there\n" in said


def test_a_fold_that_cannot_be_chosen_is_told_before_anything_is_trained() -> None:
    code, said = lastlayer("compare", *SHORT, "--data", "iris", "--train-samples", "3", "--set", "data.seed=0")
    assert code == 2
    assert said.startswith("lastlayer compare: iris: 3 of 1")
    assert not Path("runs").exists()
