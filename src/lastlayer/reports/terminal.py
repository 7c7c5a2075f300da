"""A comparison in the terminal: the answer, a small table of what was asked, and every measure if that is wanted.

Tests: tests/reports/test_terminal.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastlayer.measures import MEASURES
from lastlayer.reports.answer import Answer, answers, decimals_of, errors_in_words, value_in_words
from lastlayer.reports.columns import Column, Split, texts_of_cell
from lastlayer.reports.evidence import nothing_finished
from lastlayer.reports.summary import Summary
from lastlayer.reports.text import ARROWS, Layout, PrintedColumn, print_table, stdout

if TYPE_CHECKING:
    from rich.console import Console

MOST_COLUMNS = 5  # of a table beside the answer
ALONE = ("accuracy", "balanced_accuracy", "nll", "auprc")  # what is shown of runs that are compared with no other

_LONGEST_LABEL = 14  # a longer one is broken over several lines, so that it does not widen its column
_SHORT: dict[Split, str] = {"test": "test", "train": "train", "best": "best", "validation": "valid.", "run": ""}


def print_tables(
    summary: Summary,
    *,
    everything: bool = False,
    more: str = "",
    console: Console | None = None,
) -> None:
    """Print the answer, a table of the goals asked, and every run that is not done.

    Args:
        summary: as `summarise` gives it.
        everything: also print all measures on all splits, in the registry's order.
        more: the command that prints everything, to be named at the end.
        console: where to print; standard output if not given.
    """
    console = console or stdout()
    console.print(summary.title, style="bold", markup=False, highlight=False)
    told = answers(summary)
    decided = [answer for answer in told if answer.decision is not None]
    shared = [each for each in decided[0].sentences if all(each in one.sentences for one in decided)] if decided else []
    for answer in told:
        console.print()
        console.print(answer.headline, style="bold", markup=False, highlight=False)
        for sentence in answer.sentences:
            if sentence not in shared:
                console.print(sentence, markup=False, highlight=False)
    if len(told) > 1 and shared:
        console.print()
    for sentence in shared:
        console.print(sentence, markup=False, highlight=False)
    if not summary.finished and not told:
        console.print(nothing_finished(summary), highlight=False)
    elif summary.finished:
        if summary.is_of_validation:
            console.print("Measured on validation samples alone, to choose settings: no loss is recommended by them.")
        _print_asked(console, summary, told)
        if everything:
            console.print()
            _print_everything(console, summary)
        elif more:
            console.print(f"\nEvery measure: {more}", style="dim", markup=False, highlight=False)
    print_problems(summary, console=console)


def print_problems(summary: Summary, *, console: Console | None = None) -> None:
    """Print every run that is not done, with the reason and what to do. If all are done, print nothing."""
    from rich.text import Text

    console = console or stdout()
    if summary.problems:
        total = sum(len(group.done) for group in summary.groups) + len(summary.problems)
        missing = f"{len(summary.problems)} of {total} runs are not in the table:"
        console.print(f"\n{missing}", style="bold yellow", highlight=False)
    for status, label, seeds, reason in summary.problems_by_reason():
        console.print(Text(f"  {status:<11} {label}{f' {seeds}' * bool(seeds)}: {reason}"), soft_wrap=True)
    for note in summary.notes:
        console.print(Text(note, style="dim"), soft_wrap=True)


# the table of what was asked


def _print_asked(console: Console, summary: Summary, told: Sequence[Answer]) -> None:
    """A line per group, the best first; a column or more per goal, and several tables if there are many goals."""
    groups = sorted(summary.finished, key=lambda group: _place(told, group.label))
    labels = [f"{group.label} ({group.incomplete})" if group.incomplete else group.label for group in groups]
    positions = [summary.groups.index(group) for group in groups]
    names = [PrintedColumn("loss", labels)]
    if not told:
        split: Split = "validation" if summary.is_of_validation else "test"
        columns = [column for name in ALONE if (column := summary.column(split, name)) is not None]
        made = [_plain(column, positions) for column in columns]
    elif len(told) == 1:
        made = _of_one_goal(summary, told[0], positions)
    else:
        made = [_of_goal(summary, answer, positions) for answer in told]
        made = [column for column in made if any(column.cells)]
    for start in range(0, len(made), MOST_COLUMNS - 1):
        console.print()
        print_table(console, names, [[column] for column in made[start : start + MOST_COLUMNS - 1]])
    if any("(" in cell for column in made for cell in column.cells):
        legend = "In brackets: where the value lies with 95 % confidence."
        if any("worse" in cell for column in made for cell in column.cells):
            legend += " Worse: shown to be worse than the best loss."
        console.print(f"\n{legend}", style="dim", highlight=False)


def _place(told: Sequence[Answer], label: str) -> float:
    """Small for a good value of the first goal that was decided."""
    for answer in told:
        if answer.decision is not None:
            mean = answer.decision.means.get(label)
            return float("inf") if mean is None else -mean if answer.goal.higher_is_better else mean
    return 0.0


def _of_one_goal(summary: Summary, answer: Answer, positions: Sequence[int]) -> list[PrintedColumn]:
    """The value, its interval, what else goes with the goal, and what was found."""
    labels = [summary.groups[i].label for i in positions]
    values = [_mean(summary, answer, i) for i in positions]
    made = [PrintedColumn(answer.goal.noun, values, right=True)] if any(values) else []
    if answer.decision is not None:
        ends = [answer.intervals.get(label) for label in labels]
        made.append(PrintedColumn("95 % interval", [_between(answer, one) for one in ends], right=True))
        made += [_errors(summary, answer, positions)] if answer.counted_rows else []
    beside = (summary.column("test", name) for name in answer.goal.beside)
    made += [_plain(column, positions) for column in beside if column is not None]
    if answer.decision is not None:
        made.append(PrintedColumn("finding", [_finding(answer, label) for label in labels]))
    return made


def _of_goal(summary: Summary, answer: Answer, positions: Sequence[int]) -> PrintedColumn:
    cells = []
    for i in positions:
        label, value = summary.groups[i].label, _mean(summary, answer, i)
        if label in answer.intervals:
            value += f" ({_between(answer, answer.intervals[label])})"
        if _is_worse(answer, label):
            value += " worse"
        cells.append(value)
    return PrintedColumn(answer.goal.noun, cells, most=max(28, *map(len, cells)))


def _mean(summary: Summary, answer: Answer, position: int) -> str:
    column = summary.column("test", answer.goal.measure)
    if column is None or not column.cells[position].n:
        return ""
    return value_in_words(answer.goal, column.cells[position].mean, _decimals(answer))


def _errors(summary: Summary, answer: Answer, positions: Sequence[int]) -> PrintedColumn:
    labels = [summary.groups[i].label for i in positions]
    known = [label for label in labels if label in answer.intervals]
    errors = errors_in_words(answer.counted_rows, *(answer.intervals[label][1] for label in known))
    texts = [dict(zip(known, errors, strict=True)).get(label, "") for label in labels]
    return PrintedColumn(f"errors of {answer.counted_rows:,.0f}", texts, right=True)


def _plain(column: Column, positions: Sequence[int]) -> PrintedColumn:
    texts = [column.measure.text(cell.mean) if (cell := column.cells[i]).n else "" for i in positions]
    return PrintedColumn(MEASURES[column.measure.name].plain, texts, right=True)


def _between(answer: Answer, interval: tuple[float, float, float] | None) -> str:
    if interval is None:
        return ""
    low, _, high = (value_in_words(answer.goal, end, _decimals(answer)).removesuffix(" %") for end in interval)
    return f"{low} to {high}"


def _decimals(answer: Answer) -> int:
    return decimals_of(answer.intervals.values(), percent=answer.goal.is_share)


def _is_worse(answer: Answer, label: str) -> bool:
    return answer.decision is not None and label in answer.decision.means and label not in answer.decision.not_worse


def _finding(answer: Answer, label: str) -> str:
    assert answer.decision is not None
    if label not in answer.decision.means:
        return "not compared"
    if _is_worse(answer, label):
        return "shown to be worse"
    if label == answer.loss:
        return "recommended"
    return "best mean" if label == answer.decision.best else "not shown to be worse"


# every measure


def _print_everything(console: Console, summary: Summary) -> None:
    """One table of all measures on all splits: a column per group, with mean and standard deviation over seeds."""
    lines = _lines(summary)
    heads = [f"{line.measure.title} {ARROWS[line.measure.direction]}".rstrip() for line in lines]
    shown = ["" if i and line.measure == lines[i - 1].measure else heads[i] for i, line in enumerate(lines)]
    names = [
        PrintedColumn("", shown, whole=True),
        PrintedColumn("", [_SHORT[line.split] for line in lines], whole=True, style="dim"),
    ]
    groups = []
    for position, group in enumerate(summary.groups):
        label = f"{group.label} ({group.incomplete})" if group.incomplete else group.label
        most = max(_LONGEST_LABEL, *map(len, label.split()))
        groups.append([PrintedColumn(label, [_cell(line, position) for line in lines], right=True, most=most)])
    print_table(console, names, groups, layout=Layout(gap=1))
    if legend := _legend(summary, lines):
        console.print(f"\n{legend}", style="dim", highlight=False)


def _lines(summary: Summary) -> list[Column]:
    """The columns of the summary in the order in which they are lines here: by measure, test before train."""
    names = dict.fromkeys(column.measure.name for column in summary.columns if column.split != "run")
    lines = [column for name in names for split in _SHORT if (column := summary.column(split, name)) is not None]
    return [*lines, *(column for column in summary.columns if column.split == "run")]


def _cell(column: Column, group: int) -> str:
    mean, std = texts_of_cell(column.measure, column.cells[group])
    return f"{mean}{f'±{std}' * bool(std)}"


def _legend(summary: Summary, lines: Sequence[Column]) -> str:
    splits: dict[Split, str] = {
        "best": "best: test at the epoch best in validation. ",
        "validation": "valid.: validation, there. ",
    }
    named = "".join(splits.get(split, "") for split in {line.split: None for line in lines})
    return f"{named}{'± is the standard deviation over seeds.' * (summary.seeds > 1)}".strip()
