"""Parts of a data set: hold-out, subsets, long tail, open set. Tests: tests/data/test_splits.py."""

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.labels import long_tail_counts

from .dataset import Dataset, Split, joined

_TEST_SET = "test set: "  # how the note begins that says how the test set was drawn


def _shuffled(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _shuffled_by_class(target: Tensor, seed: int) -> list[Tensor]:
    """For each label from 0 to the highest, the indices of its samples in random order. Some may have none."""
    order = _shuffled(len(target), seed)
    by_class = order[target[order].argsort(stable=True)]
    return list(torch.split(by_class, target.bincount().tolist()))


def stratified(target: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Split the indices of labels (N,) at random into those kept and those held, each in increasing order.

    From a class with n samples we hold round(fraction n), but at least one and at most n - 1.

    Example:
        >>> kept, held = stratified(torch.tensor([0, 0, 0, 0, 1, 1]), 0.5)
        >>> len(kept), len(held)
        (3, 3)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be strictly between 0 and 1, not {fraction}")
    if len(target) and int(target.min()) < 0:
        raise ValueError(f"labels must not be negative; label {int(target.min())} was found")
    chosen = torch.zeros(len(target), dtype=torch.bool)
    for indices in _shuffled_by_class(target.cpu(), seed):
        wanted = max(1, round(fraction * len(indices)))
        chosen[indices[: min(wanted, max(len(indices) - 1, 0))]] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def random_test_set(whole: Split, fraction: float, seed: int) -> dict[str, Any]:
    """The fields of a `Dataset` that has no test set of its own: test samples are drawn by `stratified`."""
    kept, held = stratified(whole.target, fraction, seed)
    note = f"{_TEST_SET}{fraction:g} of each class at random, seed {seed}"
    return {"train": whole.select(kept), "test": whole.select(held), "notes": (note,), "random_test": fraction}


def fold(dataset: Dataset, index: int, folds: int = 5, seed: int = 0) -> Dataset:
    """Deal a data set without a test set of its own into folds, and test on the one with this index.

    Each class is dealt evenly. A class with one sample stays in the training set. `mean` and `std` are those of the new
    training samples. `seed` is that of the first shuffle: from index `folds` on, samples are shuffled anew.

    A data set that has a test set of its own is refused.

    Example:
        >>> from lastlayer import data
        >>> [len(fold(data.load("iris"), i).test) for i in range(5)]
        [30, 30, 30, 30, 30]
    """
    if dataset.random_test is None:
        raise ValueError(f"{dataset.name} has a test set of its own: it cannot be dealt into folds")
    if index < 0 or folds < 2:
        raise ValueError(f"fold must be 0 or more and folds 2 or more, got {index} and {folds}")
    whole = joined([dataset.train, dataset.test])
    by_class = _shuffled_by_class(whole.target, seed + index // folds)
    dealt = torch.cat([indices for indices in by_class if len(indices) > 1])  # in turn, so that folds are equally large
    is_test = torch.zeros(len(whole), dtype=torch.bool)
    is_test[dealt[index % folds :: folds]] = True
    drawn = f"{_TEST_SET}fold {index} of {folds}, seed {seed}"
    changed = dataset.replace(
        notes=(*(note for note in dataset.notes if not note.startswith(_TEST_SET)), drawn),
        train=whole.select((~is_test).nonzero().flatten()),
        test=whole.select(is_test.nonzero().flatten()),
        random_test=1 / folds,
    )
    return changed if dataset.mean is None else changed.with_statistics()


def hold_out(dataset: Dataset, fraction: float = 0.1, seed: int = 0) -> Dataset:
    """Take a validation set out of the training set: `fraction` of every class, drawn by `seed`.

    `mean` and `std` remain the statistics of all training samples. A data set that has a validation set is refused.

    Example:
        >>> from lastlayer import data
        >>> part = hold_out(data.load("digits"), 0.1)
        >>> len(part.train), len(part.validation)
        (1295, 143)
    """
    if dataset.validation is not None:
        raise ValueError(f"{dataset.name} has a validation set already")
    kept, held = stratified(dataset.train.target, fraction, seed)
    return dataset.replace(
        f"validation: {fraction:g} of each class of train, seed {seed}",
        train=dataset.train.select(kept),
        validation=dataset.train.select(held),
    )


def subset(
    dataset: Dataset,
    train: int | None = None,
    *,
    per_class: int | None = None,
    test: int | None = None,
    classes: int | None = None,
    seed: int | None = None,
) -> Dataset:
    """Fewer classes or samples: the first ones, or with an integer `seed` random ones.

    Args:
        train, test: number of samples, from the classes kept.
        per_class: number of training samples of each class, instead of `train`.
        classes: number of classes, the first in label order.

    ValueError if there are fewer classes or samples than asked for, or a class would have none.

    Example:
        >>> from lastlayer import data
        >>> len(subset(data.load("digits"), per_class=5).train)
        50
    """
    if train is not None and per_class is not None:
        raise ValueError("give train or per_class, not both")
    if classes is not None:
        if not 0 < classes <= dataset.num_classes:
            raise ValueError(f"{dataset.name} has {dataset.num_classes} classes, classes={classes} were asked for")
        splits = {part: getattr(dataset, part) for part in ("train", "test", "validation")}
        dataset = dataset.replace(
            f"first {classes} classes",
            class_names=dataset.class_names[:classes],
            **{part: s.select((s.target < classes).nonzero().flatten()) for part, s in splits.items() if s is not None},
        )
    how = "first" if seed is None else f"random (seed {seed})"
    changes, said = {}, []
    if per_class is not None:
        counts = dataset.train_counts
        if int(counts.min()) < per_class:
            k = int(counts.argmin())
            raise ValueError(
                f"{dataset.name}: class {k} ({dataset.class_names[k]}) has {int(counts[k])} training samples, "
                f"per_class={per_class} were asked for"
            )
        changes["train"] = dataset.train.select(_per_class(dataset.train.target, [per_class] * len(counts), seed))
        said.append(f"{how} {per_class} training samples of each class")
    for part, count, what in (("train", train, "training"), ("test", test, "test")):
        if count is not None:
            changes[part] = _first(dataset, part, count, seed)
            said.append(f"{how} {count} {what} samples")
    return dataset.replace("; ".join(said) or None, **changes)


def _first(dataset: Dataset, part: str, count: int, seed: int | None) -> Split:
    """The first samples of a part, or random ones. Samples to train on must leave no class without any."""
    split: Split = getattr(dataset, part)
    if not 0 < count <= len(split):
        raise ValueError(f"{dataset.name} has {len(split)} {part} samples, {part}={count} were asked for")
    kept = split.select(torch.arange(count) if seed is None else _shuffled(len(split), seed)[:count].sort().values)
    if part == "train" and kept.target.device.type == "cpu":  # reading labels would stall another device
        empty = (kept.target.bincount(minlength=dataset.num_classes) == 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(
                f"{dataset.name}: {count} of {len(split)} training samples leave {len(empty)} of {dataset.num_classes} "
                f"classes without any, such as {dataset.class_names[empty[0]]}: ask for more samples"
            )
    return kept


def _per_class(target: Tensor, counts: Sequence[int], seed: int | None) -> Tensor:
    """Indices, in increasing order, of counts[k] samples of each class k: the first ones, or random ones."""
    if seed is None:
        by_class = list(torch.split(target.argsort(stable=True), target.bincount().tolist()))
    else:
        by_class = _shuffled_by_class(target, seed)
    return torch.cat([indices[:n] for indices, n in zip(by_class, counts, strict=True)]).sort().values


def long_tail(dataset: Dataset, imbalance: float, seed: int = 0, *, n_max: int | None = None) -> Dataset:
    """Thin the training set, so that the sizes of the classes fall exponentially in label order.

    Class k keeps n_k = int(n_max imbalance^(-k / (K - 1))) samples, chosen at random. So imbalance, at least 1, is
    n_0 / n_{K-1}. With `n_max=None` it is the size of the smallest class, so that every class has enough samples. The
    test set stays as it is.

    ValueError for an imbalance below 1, a class too small for its share, or one that would keep no sample.

    Paper: Cao et al. 2019 (LDAM); the paper on normalized spaces, table 2.

    Example:
        >>> from lastlayer import data
        >>> long_tail(data.load("gaussian", num_classes=3), 100).train_counts.tolist()
        [100, 10, 1]
    """
    available = dataset.train_counts.tolist()
    n_max = min(available) if n_max is None else n_max
    counts = long_tail_counts(n_max, dataset.num_classes, imbalance).tolist()
    for k, (count, there) in enumerate(zip(counts, available, strict=True)):
        if not 1 <= count <= there:
            raise ValueError(
                f"{dataset.name}: class {k} ({dataset.class_names[k]}) should keep {count} of {there} training "
                f"samples; choose another imbalance than {imbalance:g} or another n_max than {n_max}"
            )
    return dataset.replace(
        f"long tail: imbalance {imbalance:g}, n_max {n_max}, seed {seed}",
        train=dataset.train.select(_per_class(dataset.train.target, counts, seed)),
        imbalance=imbalance,
    )


def open_set(
    dataset: Dataset,
    unknown: int | None = None,
    *,
    seed: int = 0,
    known_classes: Sequence[int] | None = None,
    split: int | None = None,
    unknown_from: Dataset | None = None,
    unknown_classes: Sequence[int] | None = None,
) -> Dataset:
    """Hide some classes. `train` and `test` of the result have the known classes, and `unknown` has the others.

    The known classes are relabelled 0, 1, ... in the order in which they are given. Choose them by one of `split`,
    `known_classes` and `unknown`.

    Args:
        unknown: how many classes to hide, drawn by `seed`. The draw is ours and no published split. With
            `unknown_from`, None means that all classes are known.
        known_classes: labels of the known classes.
        split: number (0 to 4) of a published list of the ARPL protocol. There are lists for mnist, svhn, cifar10,
            tiny-imagenet, and cifar10 with `unknown_from=` CIFAR-100 (CIFAR+50).
        unknown_from: another data set with inputs of the same shape, whose test samples are the unknown ones.
        unknown_classes: labels of the unknown classes; None means all that are not known, or all of `unknown_from`.

    ValueError for no or contradictory choices, labels out of range, or shapes that differ.

    Paper: Chen et al. 2021 (ARPL); the paper on normalized spaces, tables 3 and 10.

    Example:
        >>> from lastlayer import data
        >>> opened = open_set(data.load("digits"), unknown=4, seed=1)
        >>> opened.num_classes, opened.unknown.target.unique().numel()
        (6, 4)
    """
    hidden: Sequence[int] | None
    if split is not None:
        if unknown is not None or known_classes is not None or unknown_classes is not None:
            raise ValueError("split fixes the classes: give no unknown, known_classes or unknown_classes with it")
        splits, unknown_splits = _published(dataset.name, None if unknown_from is None else unknown_from.name)
        if not 0 <= split < len(splits):
            raise ValueError(f"split is 0 to {len(splits) - 1}, not {split}")
        known, hidden = list(splits[split]), None if unknown_splits is None else unknown_splits[split]
        note = f"open set: ARPL split {split}"
    elif known_classes is not None:
        if unknown is not None:
            raise ValueError("give unknown or known_classes, not both")
        known, hidden = list(known_classes), unknown_classes
        note = f"open set: known classes {known}"
    elif unknown is not None:
        if not 0 < unknown < dataset.num_classes:
            raise ValueError(f"{dataset.name} has {dataset.num_classes} classes, unknown={unknown} were asked for")
        known, hidden = sorted(_shuffled(dataset.num_classes, seed)[unknown:].tolist()), unknown_classes
        note = f"open set: known classes {known}, drawn with seed {seed}"
    elif unknown_from is not None:
        known, hidden = list(range(dataset.num_classes)), unknown_classes
        note = "open set: all classes known"
    else:
        raise ValueError("say which classes are unknown: unknown=, known_classes=, split= or unknown_from=")
    _check_classes(dataset, known, "known")
    if len(known) < 2:
        raise ValueError(f"{dataset.name}: an open set needs at least two known classes, not {len(known)}")
    other = dataset if unknown_from is None else unknown_from
    if hidden is None:
        excluded = known if unknown_from is None else []
        hidden = [k for k in range(other.num_classes) if k not in excluded]
    _check_classes(other, hidden, "unknown")
    if unknown_from is None and set(hidden) & set(known):
        raise ValueError(f"classes {sorted(set(hidden) & set(known))} are both known and unknown")
    if not hidden:
        raise ValueError(f"{dataset.name}: no class is left to be unknown")
    if other.in_shape != dataset.in_shape or other.test.inputs.dtype != dataset.test.inputs.dtype:
        raise ValueError(
            f"{other.name} has {other.test.inputs.dtype} inputs of shape {other.in_shape}; those of {dataset.name} "
            f"are {dataset.test.inputs.dtype} {dataset.in_shape}"
        )
    origin = "" if unknown_from is None else f" from {other.name}"
    return dataset.replace(
        f"{note}; {len(hidden)} unknown classes{origin}",
        train=_relabel(dataset.train, known),
        test=_relabel(dataset.test, known),
        validation=None if dataset.validation is None else _relabel(dataset.validation, known),
        unknown=other.test.select(torch.isin(other.test.target, torch.tensor(hidden)).nonzero().flatten()),
        class_names=tuple(dataset.class_names[k] for k in known),
    )


def known_classes(name: str, unknown_from: str | None = None) -> list[list[int]]:
    """The known classes of each published split of the ARPL protocol. Raises ValueError if there is none.

    `unknown_from` names the data set with the unknown classes, if it is another than the one with the known classes.

    Example:
        >>> known_classes("mnist")[0]
        [2, 4, 5, 9, 8, 3]
    """
    return _published(name, unknown_from)[0]


@functools.cache
def _published(name: str, unknown_from: str | None) -> tuple[list[list[int]], list[list[int]] | None]:
    """The known and the unknown classes of each published split. With None, all that are not known are unknown."""
    lists = tomllib.loads(Path(__file__).with_name("arpl.toml").read_text(encoding="utf-8"))
    key = name if unknown_from is None else f"{name}+{unknown_from}"
    if key not in lists["known"]:
        raise ValueError(f"no published open-set split for {key}; there are some for {', '.join(lists['known'])}")
    return lists["known"][key], lists["unknown"].get(key)


def _check_classes(dataset: Dataset, classes: Sequence[int], what: str) -> None:
    wrong = [k for k in classes if not 0 <= k < dataset.num_classes]
    if wrong or len(set(classes)) != len(classes):
        raise ValueError(
            f"{what} classes {list(classes)} must be different labels of {dataset.name}, 0 to {dataset.num_classes - 1}"
        )


def _relabel(split: Split, classes: Sequence[int]) -> Split:
    """The samples of the given classes, with labels that count these classes in order."""
    highest = max(int(split.target.max()), *classes)
    new = torch.full((highest + 1,), -1)
    new[torch.tensor(classes)] = torch.arange(len(classes))
    target = new[split.target]
    kept = (target >= 0).nonzero().flatten()
    return Split(split.select(kept).inputs, target[kept])
