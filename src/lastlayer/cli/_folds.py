"""Which samples each seed is tested on, and what the user should know of them. Tests: tests/cli/test_folds.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastlayer.data import Dataset
    from lastlayer.runners import Placement
    from lastlayer.training import Trial

ENOUGH = 1_000  # test samples


def on_folds(
    trials: Sequence[Trial],
    samples: Dataset,
    notes: Sequence[str],
    placement: Placement,
    *,
    kept: bool = False,
    given: Dataset | None = None,
) -> tuple[list[Trial], list[str]]:
    """If the test set was drawn at random and is small, seed i tests on fold i, so that more samples are tested.

    Args:
        trials: resolved.
        samples: those of the first trial.
        notes: on these, for the user.
        placement: says where data sets lie.
        kept: whether the user says which samples to test on.
        given: the data set as it was read, if it is loaded already.

    Returns:
        The trials, and notes on the samples that they use.

    Raises:
        ValueError: if the samples of a fold cannot be chosen as the trials want them.
    """
    from lastlayer.training import choose, load_data

    taught = any(trial.teacher is not None for trial in trials)  # it has seen the test samples of other folds
    if kept or taught or samples.random_test is None or len(samples.test) >= ENOUGH:
        return list(trials), [*notes, *_absent([samples])]
    folded = [dataclasses.replace(trial, data=dataclasses.replace(trial.data, fold=trial.seed)) for trial in trials]
    choices = {trial.seed: trial.data for trial in folded}.values()
    root = placement.data_root
    chosen = [load_data(one, root) if given is None else choose(given, one, root) for one in choices]
    still = [note for note in notes if note not in samples.notes or note in chosen[0].notes]
    tested = sum(len(one.test) for one in chosen[:5])
    note = f"test set: each seed tests on another fifth of each class, so that {tested:,} samples are tested in all"
    return folded, [*still, note, *_absent(chosen)]


def _absent(chosen: Sequence[Dataset]) -> list[str]:
    """A note if classes have no test sample."""
    numbers = [int((one.test.target.bincount(minlength=one.num_classes) == 0).sum()) for one in chosen]
    if not max(numbers):
        return []
    many = f"{max(numbers)} of {chosen[0].num_classes} classes have" if max(numbers) > 1 else "1 class has"
    where = "" if len(chosen) == 1 else " of some seeds"
    return [f"test set: {many} no sample in that{where}, and how they fare is not measured there"]
