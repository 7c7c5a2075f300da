"""What a loss may be wanted for: each goal has one measure that decides, and says when the data cannot answer it.

Tests: tests/reports/test_goals.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lastlayer._core.registry import nearest
from lastlayer.tasks import is_skewed

if TYPE_CHECKING:
    from lastlayer.data import Dataset

RARE = 20  # a class with fewer training samples is rare

# How the noise of the test set is found: from right and wrong rows, from rows of another loss, or from resamples.
Source = Literal["right", "log_loss", "draws", "unknown_right"]


@dataclass(frozen=True)
class KnownData:
    """What goals ask about the data.

    Attributes:
        counts: training samples per class; None if old runs do not tell.
        unknown_classes: classes in the test samples that are not trained on; None if it is not known.
        largest: share of the largest class in the training set, for old runs that do not tell the counts.
    """

    counts: tuple[int, ...] | None = None
    unknown_classes: int | None = None
    largest: float | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> KnownData:
        """What a data set tells."""
        unknown = 0 if dataset.unknown is None else len(set(dataset.unknown.target.tolist()))
        return cls(tuple(dataset.train_counts.tolist()), unknown)

    @classmethod
    def of_result(cls, facts: Mapping[str, Any]) -> KnownData:
        """What `data` in the result of a run tells."""
        counts = facts.get("counts")
        return cls(None if counts is None else tuple(map(int, counts)), largest=facts.get("largest_class"))

    def is_skewed(self, classes: int) -> bool:
        """Whether the largest training class has more than three times the samples of the smallest.

        If only the share p of the largest class is known, the smallest has (1 - p) / (K - 1) of the samples at most.
        """
        if self.counts:
            return is_skewed(self.counts)
        return self.largest is not None and is_skewed([self.largest, (1 - self.largest) / (classes - 1)])


@dataclass(frozen=True)
class Goal:
    """What a loss is wanted for.

    Attributes:
        name: as `--for` takes it.
        measure: the measure that decides, by its name in `lastlayer.measures.MEASURES`.
        noun: the measure in plain words.
        source: where the noise of the test set comes from.
        by_class: whether the measure is the mean over classes of the mean in each class.
        beside: names of further measures to show.
        needs: what the data must have.
    """

    name: str
    measure: str
    noun: str
    source: Source
    by_class: bool = False
    beside: tuple[str, ...] = ()
    needs: Literal["", "unknown", "unknown classes", "rare"] = ""

    @property
    def is_share(self) -> bool:
        """Whether the measure lies between 0 and 1, and is told in per cent. Otherwise it is a loss."""
        return self.source != "log_loss"

    @property
    def higher_is_better(self) -> bool:
        """The direction of the measure."""
        return self.is_share

    def cannot(self, data: KnownData) -> str:
        """Why the data cannot answer this goal; "" if nothing that is known speaks against it."""
        if self.needs.startswith("unknown") and data.unknown_classes == 0:
            return (
                f"The data cannot answer {self.name}: they have no test samples of unknown classes. "
                f"`compare --unknown 2` hides two classes from training, and --unknown-from takes them from other data."
            )
        if self.needs == "unknown classes" and data.unknown_classes == 1:
            return (
                f"The data cannot answer {self.name}: their unknown test samples are of one class, "
                f"and two or more are needed to tell apart."
            )
        if self.needs == "rare" and data.counts and min(data.counts) >= RARE:
            return (
                f"The data cannot answer {self.name}: no class has fewer than {RARE} training samples; "
                f"the smallest has {min(data.counts):,}."
            )
        return ""


_ALL = [
    Goal("accuracy", "accuracy", "accuracy", "right"),
    Goal("balanced", "balanced_accuracy", "balanced accuracy", "right", by_class=True),
    Goal("single-logit", "auprc", "precision of a single logit", "draws"),
    Goal("calibration", "nll", "log-loss", "log_loss", beside=("ece",)),
    Goal("open-set", "oscr", "open-set score", "draws", beside=("auroc",), needs="unknown"),
    Goal("tail", "few", "accuracy of rare classes", "right", by_class=True, needs="rare"),
    Goal("transfer", "nearest_mean", "accuracy on new classes", "unknown_right", needs="unknown classes"),
]
GOALS = {goal.name: goal for goal in _ALL}


def parse_goals(text: str) -> tuple[Goal, ...]:
    """The goals of `--for`, separated by commas.

    Raises:
        ValueError: for an unknown goal, with the nearest spelling, and for a text that names none.

    Example:
        >>> [goal.measure for goal in parse_goals("balanced, calibration")]
        ['balanced_accuracy', 'nll']
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError(f"--for names no goal; there are {', '.join(GOALS)}")
    for name in names:
        if name not in GOALS:
            raise ValueError(f"--for: goal {name!r} is unknown{nearest(name, GOALS)}; there are {', '.join(GOALS)}")
    return tuple(GOALS[name] for name in names)


def default_goals(data: KnownData, classes: int) -> tuple[Goal, ...]:
    """Accuracy; balanced accuracy before it if the largest training class has over three times as many samples as the
    smallest.

    Example:
        >>> [goal.name for goal in default_goals(KnownData((100, 25)), 2)]
        ['balanced', 'accuracy']
    """
    return (GOALS["balanced"], GOALS["accuracy"]) if data.is_skewed(classes) else (GOALS["accuracy"],)


def about_skew(data: KnownData) -> str:
    """Why balanced accuracy may matter; "" if the counts of the classes are not known."""
    if not data.counts:
        return ""
    return (
        f"The largest class has {max(data.counts):,} training samples and the smallest {min(data.counts):,}. Balanced "
        f"accuracy counts each class the same, while accuracy hardly counts the small ones."
    )


def answerable(goals: Sequence[Goal], data: KnownData) -> tuple[tuple[Goal, ...], tuple[str, ...]]:
    """The goals that the data may answer, and a sentence for each other one.

    Raises:
        ValueError: if there is none that the data can answer.
    """
    refused = {goal.name: why for goal in goals if (why := goal.cannot(data))}
    kept = tuple(goal for goal in goals if goal.name not in refused)
    if not kept:
        raise ValueError(" ".join(refused.values()))
    return kept, tuple(refused.values())
