"""What `lastlayer reproduce` prints: a table beside the published numbers, the list of artifacts, and verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lastlayer.papers import Artifact, Observations, Store, Verdict
    from lastlayer.training import Trial

_OUTCOME_STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not run": "dim"}


def print_artifact(
    console: Console, artifact: Artifact, observed: Observations, only: Mapping[str, Sequence[str]]
) -> None:
    from rich.table import Table

    from lastlayer.papers import lines

    grid = artifact.grid(observed.size)
    table = Table(title=f"{artifact.name} ({artifact.where}): {artifact.shows}", title_justify="left")
    found = [
        line
        for line in lines(artifact, observed)
        if all(line.labels.get(axis) in wanted for axis, wanted in only.items())
    ]
    axes = list(dict.fromkeys(name for line in found for name in line.labels))
    columns = list(dict.fromkeys(title for line in found for title in line.entries))
    printed = {title for line in found for title, entry in line.entries.items() if entry.published is not None}
    for axis in axes:
        table.add_column(axis, overflow="fold")  # a number or label cut short is another one
    for title in columns:
        table.add_column(title, justify="right", overflow="fold")
        if title in printed:
            table.add_column("published", justify="right", style="dim", overflow="fold")
    for line in found:
        cells = [line.labels.get(axis, "") for axis in axes]
        for title in columns:
            entry = line.entries.get(title)
            ours = "" if entry is None else entry.missing or _value(entry.mean, entry.std, entry.count)
            theirs = "" if entry is None or entry.published is None else _value(entry.published, entry.published_std)
            cells += [ours, theirs] if title in printed else [ours]
        table.add_row(*cells)
    console.print(table)
    if grid.note:
        console.print(f"size {observed.size}: {grid.note}", highlight=False)
    for name, choice in artifact.choices.items():
        console.print(f"chosen here, {name.replace('_', ' ')}: {choice.value} ({choice.reason})", highlight=False)
    lost = [row for row in observed.rows if row.status != "done"]
    if lost:
        named = [f"{' '.join(row.labels.values())} seed {row.seed} ({row.status})" for row in lost[:5]]
        counts = ", ".join([*named, *(["..."] if len(lost) > len(named) else [])])
        are = "1 run is no result" if len(lost) == 1 else f"{len(lost)} runs are no results"
        console.print(f"{are}: {counts}", style="red", highlight=False)


def _value(mean: float, std: float | None, count: int | None = None) -> str:
    text = f"{mean:.4g}"
    if std is not None and not math.isnan(std):
        text += f" ± {std:.2g}"
    return text if count is None else f"{text} ({count})"


def print_list(console: Console, artifacts: list[Artifact], store: Store, device: str) -> None:
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
    verdicts = {name: papers.judge(name, store) for name in ids}
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
    verdicts = {name: papers.judge(name, store) for name in ids}
    for name, verdict in verdicts.items():
        size = f" ({verdict.size})" if verdict.size else ""
        text = Text(verdict.outcome, style=_OUTCOME_STYLES[verdict.outcome])
        changed = f" [criterion {known[name].changed}]" if known[name].changed else ""
        table.add_row(name, known[name].claim, text, Text(verdict.detail + size + changed))
    console.print(table)
    console.print(_counts(list(verdicts.values())), highlight=False)


def _counts(verdicts: list[Verdict]) -> str:
    from collections import Counter

    counts = Counter(verdict.outcome for verdict in verdicts)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
