"""What `lastlayer reproduce` prints: a table beside the published numbers, the list of artifacts, and verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lastlayer.papers import Artifact, Line, Observations, Store, Verdict
    from lastlayer.training import Trial

_OUTCOME_STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not run": "dim"}


def print_artifact(
    console: Console, artifact: Artifact, observed: Observations, only: Mapping[str, Sequence[str]]
) -> None:
    """The table beside the published numbers, in parts where a terminal is narrow, then choices and lost runs."""
    from rich.table import Table

    from lastlayer.papers import lines
    from lastlayer.reports.text import parts

    grid = artifact.grid(observed.size)
    found = [
        line
        for line in lines(artifact, observed)
        if all(line.labels.get(axis) in wanted for axis, wanted in only.items())
    ]
    axes = list(dict.fromkeys(name for line in found for name in line.labels))
    names = [[axis, *(line.labels.get(axis, "") for line in found)] for axis in axes]
    measured = [_columns(title, found) for title in dict.fromkeys(title for line in found for title in line.entries)]
    room = console.width - 1 - sum(_width(column) for column in names)
    title = f"{artifact.name} ({artifact.where}): {artifact.shows}"
    for part in parts([sum(_width(column) for column in group) for group in measured], room):
        table = Table(title=title, title_justify="left")
        for column in names:
            table.add_column(column[0], overflow="fold")  # a number or label cut short is another one
        for ours, *theirs in (measured[index] for index in part):
            table.add_column(ours[0], justify="right", overflow="fold")
            for column in theirs:
                table.add_column(column[0], justify="right", style="dim", overflow="fold")
        shown = [*names, *(column for index in part for column in measured[index])]
        for row in range(1, len(found) + 1):
            table.add_row(*(column[row] for column in shown))
        console.print(table)
        title = ""
    note = grid.note
    if observed.size == "smoke" and artifact.compute is None:
        note = note or "small data and tiny networks in the places of those named, to see it work: no result"
    if note:
        console.print(f"size {observed.size}: {note}", highlight=False)
    for name, choice in artifact.choices.items():
        console.print(f"chosen here, {name.replace('_', ' ')}: {choice.value} ({choice.reason})", highlight=False)
    lost = [row for row in observed.rows if row.status != "done"]
    if lost:
        named = [f"{' '.join(row.labels.values())} seed {row.seed} ({row.status})" for row in lost[:5]]
        counts = ", ".join([*named, *(["..."] if len(lost) > len(named) else [])])
        are = "1 run is no result" if len(lost) == 1 else f"{len(lost)} runs are no results"
        console.print(f"{are}: {counts}", style="red", highlight=False)


def _columns(title: str, found: Sequence[Line]) -> list[list[str]]:
    """A column of ours and, where the paper prints one, its own, each under its head."""
    entries = [line.entries.get(title) for line in found]
    ours = ["" if e is None else e.missing or _value(e.mean, e.std, e.count) for e in entries]
    if all(e is None or e.published is None for e in entries):
        return [[title, *ours]]
    theirs = ["" if e is None or e.published is None else _value(e.published, e.published_std) for e in entries]
    return [[title, *ours], ["published", *theirs]]


def _width(column: Sequence[str]) -> int:
    return max(map(len, column)) + 3  # a line and two blanks


def _value(mean: float, std: float | None, count: int | None = None) -> str:
    text = f"{mean:.4g}"
    if std is not None and not math.isnan(std):
        text += f" ± {std:.2g}"
    return text if count is None else f"{text} ({count})"


def print_list(console: Console, artifacts: list[Artifact], store: Store, device: str) -> None:
    """Every artifact: what it shows, on what data, and how long its trials would take here at each size."""
    import torch
    from rich.table import Table

    from lastlayer.papers import SIZES, all_trials

    kind = "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
    table = Table(title="Tables, figures and theorems of the papers")
    table.add_column("artifact", no_wrap=True)
    table.add_column("what it shows, where, on what data", overflow="fold")
    for size in SIZES:
        table.add_column(size, justify="right", no_wrap=True)
    table.add_column("results")
    with console.status("estimating times"):
        for one in artifacts:
            trials = {size: all_trials(one.grid(size)) for size in SIZES}
            sets = sorted({trial.data.name for size in SIZES[1:] for trial in trials[size]})
            times = ["computed" if one.compute else _time(trials[size], kind) for size in SIZES]
            about = f"{one.shows} ({one.where}{': ' if sets else ''}{', '.join(sets)})"
            table.add_row(one.name, about, *times, " ".join(store.sizes(one.name)))
    console.print(table)
    console.print(f"trials and their estimated time on this machine ({kind}), evaluations left out", highlight=False)


def _time(trials: list[Trial], kind: str) -> str:
    from lastlayer.papers import cost

    return f"{len(trials)}: {_duration(cost.seconds(trials, kind))}"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "?"  # a package or a file of its models is not here
    for unit, length in (("years", 31_557_600), ("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.2g} s"


def print_scorecard(console: Console, ids: list[str], store: Store) -> None:
    """A line for each claim: cut to the width of a terminal, whole where there is none."""
    from rich.text import Text

    from lastlayer import papers

    known = {claim.id: claim for claim in papers.claims()}
    verdicts = _judged(console, ids, store)
    width = max(len(outcome) for outcome in _OUTCOME_STYLES)
    for name, verdict in verdicts.items():
        outcome = Text(verdict.outcome.ljust(width), style=_OUTCOME_STYLES[verdict.outcome])
        size = f" ({verdict.size})" if verdict.size else ""
        changed = " [criterion changed]" if known[name].changed.startswith("changed") else ""
        line = Text(f"{name}  ").append_text(outcome).append(f"  {known[name].claim}{changed}  {verdict.detail}{size}")
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            console.print(line, soft_wrap=True)
    console.print(_counts(list(verdicts.values())), highlight=False)


def print_verdicts(console: Console, ids: list[str], store: Store) -> None:
    """Claims in full: what they say, the verdict, and what it rests on."""
    from rich.table import Table
    from rich.text import Text

    from lastlayer import papers

    known = {claim.id: claim for claim in papers.claims()}
    table = Table(title="Claims")
    for name in ("id", "claim", "verdict", "evidence"):
        table.add_column(name, overflow="fold")
    verdicts = _judged(console, ids, store)
    for name, verdict in verdicts.items():
        size = f" ({verdict.size})" if verdict.size else ""
        text = Text(verdict.outcome, style=_OUTCOME_STYLES[verdict.outcome])
        changed = f" [criterion {known[name].changed}]" if known[name].changed else ""
        table.add_row(name, known[name].claim, text, Text(verdict.detail + size + changed))
    console.print(table)
    console.print(_counts(list(verdicts.values())), highlight=False)


def _judged(console: Console, ids: list[str], store: Store) -> dict[str, Verdict]:
    """The verdicts, which take seconds: on a terminal, which one is being found."""
    from lastlayer import papers

    verdicts = {}
    with console.status("judging") as status:
        for name in ids:
            status.update(f"judging {name}")
            verdicts[name] = papers.judge(name, store)
    return verdicts


def _counts(verdicts: list[Verdict]) -> str:
    from collections import Counter

    counts = Counter(verdict.outcome for verdict in verdicts)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
