"""How each class fares under each loss, from the test rows that runs keep: the worst classes, those that differ most
between losses, and the most frequent confusions.

Rows of all finished runs of a group are put together. Runs from before rows were kept have none. Tests:
tests/reports/test_classes.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lastlayer.reports.collect import Run
from lastlayer.reports.evidence import Rows
from lastlayer.reports.summary import Group, Summary
from lastlayer.tasks.classes import confusions, per_class

Array = NDArray[np.float64]

MOST_CLASSES = 10
MOST_PAIRS = 15


@dataclass(frozen=True)
class Confused:
    """A pair of classes: rows of the first that were decided as the second."""

    label: int
    decision: int
    counts: tuple[int, ...]  # one per group, over all its runs
    rows: tuple[int, ...]  # of the label, over all runs of the group


@dataclass(frozen=True)
class Classes:
    """The classes of a comparison.

    Attributes:
        labels: of the groups that kept their test rows, in the order of all arrays.
        names: of the classes, K of them.
        rows: distinct test rows of each class, (K,).
        training: training samples of each class, (K,); None if no run says.
        recall, precision: (groups, K); NaN for a class without test rows or without decisions.
        pairs: the most frequent confusions first, as shares of all rows, added over the groups.
        notes: which groups are left out, and why.
    """

    labels: tuple[str, ...]
    names: tuple[str, ...]
    rows: NDArray[np.int64]
    training: NDArray[np.int64] | None
    recall: Array
    precision: Array
    pairs: tuple[Confused, ...]
    notes: tuple[str, ...]

    @property
    def by_recall(self) -> list[int]:
        """The classes with test rows, those with the lowest mean recall over groups first."""
        return [int(k) for k in np.argsort(self.recall.mean(0), kind="stable") if self.rows[k]]

    @functools.cached_property
    def differing(self) -> list[int]:
        """The classes whose recall differs most between groups, beyond twice the standard error of few test rows."""
        if len(self.labels) < 2:
            return []
        p = (self.recall.mean(0) * self.rows + 1) / (self.rows + 2)  # never 0 or 1, so that one row shows nothing
        beyond = np.ptp(self.recall, 0) - 2 * np.sqrt(2 * p * (1 - p) / np.maximum(self.rows, 1))
        order = [int(k) for k in np.argsort(-beyond, kind="stable") if self.rows[k] and beyond[k] > 0]
        return order[:MOST_CLASSES]


def class_names(run: Run) -> list[str]:
    """The names of the classes that a run was trained on."""
    return [str(name) for name in (run.result or {}).get("data", {}).get("class_names", [])]


def classes_of(summary: Summary, rows: Rows) -> Classes | None:
    """What the test rows of all groups say of the classes; None if no run kept its rows."""
    kept = {group.label: found for group in summary.finished if (found := _tested(group, rows))}
    if not kept:
        return None
    names = class_names(next(iter(kept.values()))[0][0])
    same = {label: runs for label, runs in kept.items() if all(class_names(run) == names for run, _, _ in runs)}
    K = len(names)
    notes = []
    if old := [group.label for group in summary.finished if group.label not in kept]:
        notes.append(f"Left out: {', '.join(old)}. Their runs did not keep their test rows. Train them again.")
    if other := [label for label in kept if label not in same]:
        notes.append(f"Left out: {', '.join(other)}. Their classes are not those of {next(iter(same))}.")
    recall, precision = [], []
    confused: list[tuple[dict[tuple[int, int], int], NDArray[np.int64]]] = []
    for runs in same.values():
        target = torch.from_numpy(np.concatenate([target for _, target, _ in runs])).long()
        decision = torch.from_numpy(np.concatenate([decision for _, _, decision in runs])).long()
        one = per_class(decision, target, K)
        recall.append(one.recall.numpy())
        precision.append(one.precision.numpy())
        pairs = confusions(decision, target, K, most=len(target))
        keys = zip(pairs.label.tolist(), pairs.decision.tolist(), strict=True)
        confused.append((dict(zip(keys, pairs.count.tolist(), strict=True)), one.support.numpy()))
    distinct = {target.tobytes(): np.bincount(target, minlength=K) for runs in same.values() for _, target, _ in runs}
    training = next((_counts(run) for runs in same.values() for run, _, _ in runs if _counts(run) is not None), None)
    return Classes(
        tuple(same),
        tuple(names),
        np.sum(list(distinct.values()), 0),
        training,
        np.stack(recall),
        np.stack(precision),
        _most_frequent(confused),
        tuple(notes),
    )


def _tested(group: Group, rows: Rows) -> list[tuple[Run, NDArray[np.int64], NDArray[np.int64]]]:
    """Each run of the group that kept its test rows, with labels and decisions."""
    found = []
    for run in group.done.values():
        kept, _ = rows.of(run)
        if kept is not None:
            found.append((run, kept["target"].astype(np.int64), kept["decision"].astype(np.int64)))
    return found


def _counts(run: Run) -> NDArray[np.int64] | None:
    counts = (run.result or {}).get("data", {}).get("counts")
    return None if counts is None else np.asarray(counts, dtype=np.int64)


def _most_frequent(found: list[tuple[dict[tuple[int, int], int], NDArray[np.int64]]]) -> tuple[Confused, ...]:
    weight: dict[tuple[int, int], float] = {}
    for counts, support in found:
        for pair, count in counts.items():
            weight[pair] = weight.get(pair, 0.0) + count / support.sum()
    ordered = sorted(weight, key=lambda pair: (-weight[pair], pair))[:MOST_PAIRS]
    return tuple(
        Confused(
            *pair,
            tuple(counts.get(pair, 0) for counts, _ in found),
            tuple(int(support[pair[0]]) for _, support in found),
        )
        for pair in ordered
    )
