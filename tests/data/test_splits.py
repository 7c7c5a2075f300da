"""Hold-out, subsets, long tail and open set."""

import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer import data
from lastlayer.data import Dataset, Split, splits


def toy(counts: list[int], name: str = "toy", test: int = 4) -> Dataset:
    """Every input is unique: its class and its number in the class."""

    def split(sizes: list[int], offset: float) -> Split:
        rows = [(float(k), offset + i) for k, size in enumerate(sizes) for i in range(size)]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        return Split(torch.tensor(rows)[order], torch.tensor([int(row[0]) for row in rows])[order])

    names = tuple(f"c{k}" for k in range(len(counts)))
    return Dataset(name, split(counts, 0.0), split([test] * len(counts), 1000.0), names)


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_stratified_is_a_partition_with_equal_shares(labels: list[int], fraction: float, seed: int) -> None:
    target = torch.tensor(labels)
    kept, held = data.stratified(target, fraction, seed)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    for k in set(labels):
        n, taken = labels.count(k), int((target[held] == k).sum())
        assert taken == (0 if n == 1 else min(max(1, round(fraction * n)), n - 1))


def test_stratified_refuses_shares_outside_0_1() -> None:
    for fraction in (0.0, 1.0, -0.5):
        with pytest.raises(ValueError, match=r"strictly between 0 and 1"):
            data.stratified(torch.tensor([0, 0]), fraction)
    with pytest.raises(ValueError, match=r"label -2 was found"):
        data.stratified(torch.tensor([0, -2]), 0.5)


def test_hold_out() -> None:
    dataset = data.hold_out(toy([20, 10]), 0.1, seed=4)
    assert dataset.validation is not None
    assert dataset.train_counts.tolist() == [18, 9]
    assert dataset.validation.target.bincount().tolist() == [2, 1]
    assert dataset.notes == ("validation: 0.1 of each class of train, seed 4",)
    rows = torch.cat((dataset.train.inputs, dataset.validation.inputs))
    assert len(rows.unique(dim=0)) == 30
    with pytest.raises(ValueError, match=r"has a validation set already"):
        data.hold_out(dataset)


def test_subset_first_random_and_per_class() -> None:
    dataset = toy([10, 10, 10])
    assert torch.equal(data.subset(dataset, 12).train.inputs, dataset.train.inputs[:12])
    random = data.subset(dataset, 25, test=5, seed=1)
    assert len(random.train.inputs.unique(dim=0)) == 25
    assert len(random.test) == 5
    assert torch.equal(random.train.inputs, data.subset(dataset, 25, seed=1).train.inputs)
    first = data.subset(dataset, per_class=2)
    assert first.train_counts.tolist() == [2, 2, 2]
    for k in range(3):
        rows = dataset.train.inputs[dataset.train.target == k][:2]
        assert torch.equal(first.train.inputs[first.train.target == k], rows)
    drawn = data.subset(dataset, per_class=3, seed=7)
    assert drawn.train_counts.tolist() == [3, 3, 3]
    assert drawn.notes == ("random (seed 7) 3 training samples of each class",)


def test_subset_refusals() -> None:
    dataset = toy([10, 3])
    with pytest.raises(ValueError, match=r"not both"):
        data.subset(dataset, 3, per_class=1)
    with pytest.raises(ValueError, match=r"class 1 \(c1\) has 3 training samples, per_class=4"):
        data.subset(dataset, per_class=4)
    few = r"toy: 2 of 13 training samples leave [12] of 3 classes without any, such as c\d: ask for more samples$"
    for seed in (None, 0):
        with pytest.raises(ValueError, match=few):
            data.subset(toy([5, 4, 4]), train=2, seed=seed)
    with pytest.raises(ValueError, match=r"has 13 train samples, train=14"):
        data.subset(dataset, 14)
    with pytest.raises(ValueError, match=r"test=0"):
        data.subset(dataset, test=0)


@pytest.mark.parametrize(("imbalance", "total"), [(10, 20431), (50, 13996), (100, 12406)])
def test_long_tail_totals_of_cifar10_lt(imbalance: int, total: int) -> None:
    target = torch.arange(10).repeat(5000)
    dataset = Dataset("c10", Split(target[:, None].float(), target), Split(torch.zeros(1, 1), target[:1]), ("x",) * 10)
    tailed = data.long_tail(dataset, imbalance, seed=0)
    assert len(tailed.train) == total
    assert tailed.train_counts[0] == 5000
    assert tailed.train_counts.tolist() == sorted(tailed.train_counts.tolist(), reverse=True)


@pytest.mark.parametrize(("imbalance", "total"), [(10, 19573), (50, 12608), (100, 10847)])
def test_long_tail_totals_of_cifar100_lt(imbalance: int, total: int) -> None:
    target = torch.arange(100).repeat(500)
    dataset = Dataset(
        "c100", Split(target[:, None].float(), target), Split(torch.zeros(1, 1), target[:1]), ("x",) * 100
    )
    assert len(data.long_tail(dataset, imbalance).train) == total


def test_long_tail_of_unequal_classes() -> None:
    dataset = toy([30, 10, 20])
    tailed = data.long_tail(dataset, 10)
    assert tailed.train_counts.tolist() == [10, 3, 1]
    assert len(tailed.test) == len(dataset.test)
    assert data.long_tail(dataset, 9, n_max=27).train_counts.tolist() == [27, 9, 3]
    assert torch.equal(tailed.train.inputs, data.long_tail(dataset, 10).train.inputs)
    assert not torch.equal(tailed.train.inputs, data.long_tail(dataset, 10, seed=1).train.inputs)
    with pytest.raises(ValueError, match=r"imbalance, .*, must be >= 1"):
        data.long_tail(dataset, 0.5)
    with pytest.raises(ValueError, match=r"class 2 \(c2\) should keep 0 of 20"):
        data.long_tail(dataset, 100)
    with pytest.raises(ValueError, match=r"class 1 \(c1\) should keep 29 of 10"):
        data.long_tail(dataset, 1.0, n_max=29)


def test_open_set_relabels_known_classes_and_keeps_unknown_ones_apart() -> None:
    dataset = toy([5] * 6)
    opened = data.open_set(dataset, known_classes=[4, 0, 2])
    assert opened.unknown is not None
    assert opened.class_names == ("c4", "c0", "c2")
    for split in (opened.train, opened.test):
        original = split.inputs[:, 0].long()
        assert torch.equal(torch.tensor([4, 0, 2])[split.target], original)
    assert sorted(opened.unknown.target.unique().tolist()) == [1, 3, 5]
    assert torch.equal(opened.unknown.inputs[:, 0].long(), opened.unknown.target)
    assert (opened.unknown.inputs[:, 1] >= 1000).all()  # test samples only


def test_open_set_draws_by_seed_and_says_so() -> None:
    dataset = toy([5] * 10)
    opened = data.open_set(dataset, unknown=4, seed=3)
    again = data.open_set(dataset, unknown=4, seed=3)
    assert opened.num_classes == 6
    assert opened.class_names == again.class_names
    assert any(data.open_set(dataset, unknown=4, seed=s).class_names != opened.class_names for s in range(3))
    assert "drawn with seed 3" in opened.notes[0]


def test_open_set_keeps_the_validation_set_known() -> None:
    opened = data.open_set(data.hold_out(toy([10] * 4), 0.2), known_classes=[3, 1])
    assert opened.validation is not None
    assert opened.validation.target.bincount().tolist() == [2, 2]


@pytest.mark.parametrize(
    ("name", "split", "known"),
    [("mnist", 0, [2, 4, 5, 9, 8, 3]), ("svhn", 4, [4, 9, 2, 7, 1, 0]), ("cifar10", 2, [1, 5, 7, 3, 9, 4])],
)
def test_published_splits(name: str, split: int, known: list[int]) -> None:
    opened = data.open_set(toy([2] * 10, name), split=split)
    assert opened.class_names == tuple(f"c{k}" for k in known)
    assert opened.notes == (f"open set: ARPL split {split}; 4 unknown classes",)


def test_published_cifar_plus_50() -> None:
    for split in range(5):
        opened = data.open_set(toy([2] * 10, "cifar10"), split=split, unknown_from=toy([1] * 100, "cifar100", test=1))
        assert opened.unknown is not None
        assert opened.num_classes == 4
        assert len(opened.unknown.target.unique()) == 50


def test_published_splits_are_lists_of_different_classes() -> None:
    content = tomllib.loads(Path(splits.__file__).with_name("arpl.toml").read_text())
    sizes = dict.fromkeys(("mnist", "svhn", "cifar10"), (6, 10))
    sizes |= {"cifar10+cifar100": (4, 10), "tiny-imagenet": (20, 200)}
    assert set(content["known"]) == set(sizes)
    for name in content["known"]:
        count, highest = sizes[name]
        lists = data.known_classes(*name.split("+"))
        assert len(lists) == 5
        for classes in lists:
            assert len(set(classes)) == len(classes) == count
            assert max(classes) < highest
    for classes in content["unknown"]["cifar10+cifar100"]:
        assert len(set(classes)) == len(classes) == 50
        assert max(classes) < 100


def test_unknown_from_another_set() -> None:
    opened = data.open_set(toy([3] * 3), unknown_from=toy([3] * 5, "other"))
    assert opened.unknown is not None
    assert opened.num_classes == 3
    assert len(opened.unknown) == 20
    some = data.open_set(toy([3] * 3), unknown_from=toy([3] * 5, "other"), unknown_classes=[4])
    assert some.unknown is not None
    assert some.unknown.target.unique().tolist() == [4]
    assert some.notes == ("open set: all classes known; 1 unknown classes from other",)


def test_open_set_refusals() -> None:
    dataset = toy([3] * 4)
    other = Split(torch.rand(1, 3), torch.tensor([0]))
    wrong_shape = Dataset("w", other, other, ("a",))
    cases: list[tuple[dict[str, object], str]] = [
        ({}, r"say which classes are unknown"),
        ({"unknown": 4}, r"has 4 classes, unknown=4"),
        ({"unknown": 3}, r"at least two known classes"),
        ({"unknown": 1, "known_classes": [0, 1]}, r"not both"),
        ({"known_classes": [0, 4]}, r"known classes \[0, 4\] must be different labels of toy, 0 to 3"),
        ({"known_classes": [0, 0]}, r"must be different"),
        ({"known_classes": [0, 1], "unknown_classes": [1, 2]}, r"classes \[1\] are both"),
        ({"known_classes": [0, 1, 2, 3]}, r"no class is left"),
        ({"split": 0}, r"no published open-set split for toy"),
        ({"split": 0, "unknown": 1}, r"split fixes the classes"),
        ({"unknown_from": wrong_shape}, r"w has torch.float32 inputs of shape \(3,\)"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            data.open_set(dataset, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"split is 0 to 4, not 5"):
        data.open_set(toy([2] * 10, "mnist"), split=5)


def test_the_first_classes_keep_their_samples_and_labels():
    whole = data.load("digits")
    part = data.subset(whole, classes=3)
    assert part.num_classes == 3
    assert part.class_names == whole.class_names[:3]
    for name in ("train", "test"):
        ours, all_of = getattr(part, name), getattr(whole, name)
        kept = [i for i, label in enumerate(all_of.target.tolist()) if label < 3]
        assert torch.equal(ours.target, all_of.target[kept])
        assert torch.equal(ours.inputs, all_of.inputs[kept])
    with pytest.raises(ValueError, match="has 10 classes, classes=11 were asked for"):
        data.subset(whole, classes=11)


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_test_every_sample_once_and_deal_classes_evenly(folds):
    digits = data.load("digits")
    parts = [data.fold(digits, i, folds) for i in range(folds)]
    rows = torch.cat([part.test.inputs.flatten(1) for part in parts])
    every = torch.cat([digits.train.inputs.flatten(1), digits.test.inputs.flatten(1)])
    assert torch.equal(rows.unique(dim=0, return_counts=True)[1], every.unique(dim=0, return_counts=True)[1])
    sizes = torch.tensor([len(part.test) for part in parts])
    assert sizes.sum() == len(every)
    assert sizes.max() - sizes.min() <= 1
    counts = torch.stack([part.test.target.bincount() for part in parts])
    assert (counts.amax(0) - counts.amin(0)).max() <= 1
    for part in parts:
        assert len(part.train) + len(part.test) == len(every)


def test_folds_beyond_the_last_are_shuffled_anew_and_repeat():
    iris = data.load("iris")
    assert torch.equal(data.fold(iris, 1).test.inputs, data.fold(iris, 1).test.inputs)
    assert not torch.equal(data.fold(iris, 6).test.inputs, data.fold(iris, 1).test.inputs)
    assert torch.equal(data.fold(iris, 6).test.inputs, data.fold(iris, 1, seed=1).test.inputs)


def test_statistics_of_a_fold_are_those_of_its_training_samples():
    part = data.fold(data.load("wine"), 2)
    x = part.train.inputs.double()
    assert part.mean == pytest.approx(x.mean(0).tolist())
    assert part.std == pytest.approx(x.std(0, correction=0).tolist())


def test_a_class_of_one_sample_stays_in_training():
    target = torch.tensor([0] * 9 + [1])
    split = data.Split(torch.randn(10, 2), target)
    made = data.Dataset("tiny", split, split.select(torch.arange(3)), ("a", "b"), random_test=0.2)
    for i in range(5):
        assert 1 in data.fold(made, i).train.target


@pytest.mark.parametrize(("index", "folds"), [(-1, 5), (0, 1)])
def test_folds_that_cannot_be(index, folds):
    with pytest.raises(ValueError, match="fold must be 0 or more"):
        data.fold(data.load("iris"), index, folds)


def test_a_test_set_of_its_own_is_not_dealt_into_folds():
    gaussian = data.load("gaussian")
    with pytest.raises(ValueError, match="test set of its own"):
        data.fold(gaussian, 0)
