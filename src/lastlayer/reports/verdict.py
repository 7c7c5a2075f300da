"""What a comparison says, in a few sentences: what was compared, whether accuracy ties, and what differs."""

from __future__ import annotations

from collections.abc import Sequence

from lastlayer.reports.columns import CLEAR_RATIO, Column, Split
from lastlayer.reports.statistics import ENOUGH_SEEDS
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary

_MOST_NAMED = 3


def verdict(summary: Summary, *, marks: tuple[str, str] = ("", "")) -> list[str]:
    """Sentences for the head of a table or page, the most important first.

    The measures named as differing are those of the default columns in which groups differ by more than noise, the ones
    with the largest F ratio first.

    Args:
        marks: put before and after the name of a group, such as quotes.
    """
    labels = [f"{marks[0]}{group.label}{marks[1]}" for group in summary.groups]
    finished = [label for label, group in zip(labels, summary.groups, strict=True) if group.done]
    if not finished:
        return ["No run is finished: there is nothing to compare yet."]
    if len(labels) == 1:
        return []
    if len(finished) == 1:
        return [f"Only {finished[0]} has finished runs: there is nothing to compare it with."]
    sentences = []
    if (column := summary.column("test", "accuracy")) is not None:
        sentences.append(_on_accuracy(labels, column))
    if differing := most_differing(summary):
        named = [_name_best(labels, column) for column in differing[:_MOST_NAMED]]
        sentences.append(f"What differs most: {_listed(named)}.")
    elif summary.seeds > 1:
        sentences.append("No other measure differs clearly.")
    sentences.append(_on_trust(summary))
    return sentences


def most_differing(summary: Summary) -> list[Column]:
    """The default columns other than accuracy in which groups differ clearly, those with the largest F ratio first."""
    wanted: list[tuple[Split, Sequence[str]]] = [("test", DECISIONS), ("train", FEATURES)]
    columns = [column for split, names in wanted for column in summary.leading(split, names)]
    found = [column for column in columns if column.differs and column.strength >= CLEAR_RATIO]
    return sorted((one for one in found if one.measure.name != "accuracy"), key=lambda column: -column.strength)


def rule(summary: Summary) -> str:
    """How "within noise" was decided, for the foot of a table."""
    errors = "means at most two standard errors of their difference apart"
    if summary.seeds < ENOUGH_SEEDS:
        return f"Within noise of the best: {errors}. ± is the standard deviation over seeds."
    return (
        f"Within noise of the best: p >= 0.05 in a t-test paired over seeds, Holm-corrected for each measure; where "
        f"groups share fewer than {ENOUGH_SEEDS} seeds, {errors}. ± is the standard deviation over seeds."
    )


def _on_accuracy(labels: Sequence[str], column: Column) -> str:
    best = column.best
    if best is None:
        return "Test accuracies cannot be compared."
    value = column.text(best)
    if column.winner is not None:
        return f"{labels[best]} wins on test accuracy with {value}: every other is behind after correction."
    if not column.differs and any(cell.standing == "behind" for cell in column.cells):
        means = [column.measure.text(cell.mean) for cell in column.cells if cell.comparable]
        return f"Test accuracy hardly differs: from {min(means)} to {max(means)}, the latter {labels[best]}."
    rest = [i for i in range(len(labels)) if i != best]
    within = [labels[i] for i in rest if column.cells[i].standing in ("best", "within")]
    behind = [labels[i] for i in rest if column.cells[i].standing == "behind"]
    if not behind and not within:
        return f"{labels[best]} has the highest test accuracy, {value}."
    if not behind:
        return f"Test accuracy ties: {_all(within)} within noise of the best, {labels[best]} with {value}."
    if not within:
        return f"{labels[best]} has the highest test accuracy, {value}, and no other is within noise of it."
    near = f"{_listed(within)} {_are(within)}"
    return f"{labels[best]} has the highest test accuracy, {value}; {near} within noise of it."


def _on_trust(summary: Summary) -> str:
    counts = {len(group.done) for group in summary.groups}
    low, high = min(counts), max(counts)
    seeds = f"{high} seed{'s' * (high != 1)}" if low == high else f"{low} to {high} seeds"
    if high == 1:
        return "One seed has no spread: a difference may be noise, and none is judged."
    if low < ENOUGH_SEEDS:
        return f"With {seeds} nothing is called a winner; {ENOUGH_SEEDS} are needed."
    return f"Differences are paired over {seeds} and Holm-corrected for each measure."


def _name_best(labels: Sequence[str], column: Column) -> str:
    best = column.best
    lead = f", {labels[best]} best" if best is not None else ""
    return f"{column.measure.title} ({column.split}{lead})"


def _all(labels: Sequence[str]) -> str:
    return f"all {len(labels)} others are" if len(labels) > 2 else f"{_listed(labels)} {_are(labels)}"


def _are(labels: Sequence[str]) -> str:
    return "is" if len(labels) == 1 else "are"


def _listed(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
