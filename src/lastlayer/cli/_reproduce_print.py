"""What `lastlayer reproduce` prints: a table beside the published numbers, the list of artifacts, and verdicts."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from rich.console import Console
from rich.text import Text

from lastlayer import papers
from lastlayer.cli._say import counted
from lastlayer.papers import Artifact, Line, Observations, Store, Verdict
from lastlayer.reports.text import Layout, PrintedColumn, print_table
from lastlayer.training import Trial

_OUTCOME_STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not run": "dim"}
_UNITS = (("years", 31_557_600), ("d", 86400), ("h", 3600), ("min", 60))


def print_artifact(
    console: Console, artifact: Artifact, observed: Observations, only: Mapping[str, Sequence[str]]
) -> None:
    """Print the table beside the published numbers, then the choices made here and the runs without a result."""
    found = papers.lines(artifact, observed)
    for axis, wanted in only.items():
        found = [line for line in found if line.labels.get(axis) in wanted]
    axes = dict.fromkeys(name for line in found for name in line.labels)
    names = [PrintedColumn(axis, [line.labels.get(axis, "") for line in found]) for axis in axes]
    groups = [_columns(title, found) for title in dict.fromkeys(title for line in found for title in line.entries)]
    title = f"{artifact.name} ({artifact.where}): {artifact.shows}"
    print_table(console, names, groups, layout=Layout(title, framed=True))
    note = artifact.grid(observed.size).note
    if observed.size == "smoke" and artifact.compute is None:
        note = note or "small data and tiny networks instead of those named, to see it work: no result"
    if note:
        console.print(f"size {observed.size}: {note}", highlight=False)
    for name, choice in artifact.choices.items():
        console.print(f"chosen here, {name.replace('_', ' ')}: {choice.value} ({choice.reason})", highlight=False)
    if lost := [row for row in observed.rows if row.status != "done"]:
        named = [f"{' '.join(row.labels.values())} seed {row.seed} ({row.status})" for row in lost[:5]]
        more = ", ..." if len(lost) > len(named) else ""
        text = f"{counted(len(lost), 'run')} without a result: {', '.join(named)}{more}"
        console.print(text, style="red", highlight=False)


def _columns(title: str, found: Sequence[Line]) -> list[PrintedColumn]:
    """The column of our numbers and, if the paper prints some, the column of its numbers."""
    entries = [line.entries.get(title) for line in found]
    ours = ["" if e is None else e.missing or _value(e.mean, e.std, e.count) for e in entries]
    columns = [PrintedColumn(title, ours, right=True)]
    if any(e is not None and e.published is not None for e in entries):
        theirs = ["" if e is None or e.published is None else _value(e.published, e.published_std) for e in entries]
        columns.append(PrintedColumn("published", theirs, right=True, style="dim"))
    return columns


def _value(mean: float, std: float | None, count: int | None = None) -> str:
    text = f"{mean:.4g}"
    if std is not None and not math.isnan(std):
        text += f" ± {std:.2g}"
    return text if count is None else f"{text} ({count})"


def print_list(console: Console, artifacts: Sequence[Artifact], store: Store, device: str) -> None:
    """Print every artifact: what it shows, on which data, and how long its trials would take here at each size."""
    kind = "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
    about = []
    times: dict[str, list[str]] = {size: [] for size in papers.SIZES}
    with console.status("estimating times"):
        for one in artifacts:
            trials = {size: papers.all_trials(one.grid(size)) for size in papers.SIZES}
            sets = sorted({trial.data.name for size in papers.SIZES[1:] for trial in trials[size]})
            about.append(f"{one.shows} ({one.where}{': ' if sets else ''}{', '.join(sets)})")
            for size in papers.SIZES:
                times[size].append("computed" if one.compute else _time(trials[size], kind))
    columns = [
        PrintedColumn("artifact", [one.name for one in artifacts], whole=True),
        PrintedColumn("what it shows, where, on which data", about),
        *(PrintedColumn(size, found, right=True, whole=True) for size, found in times.items()),
        PrintedColumn("results", [" ".join(store.sizes(one.name)) for one in artifacts]),
    ]
    print_table(console, columns, layout=Layout("Tables, figures and theorems of the papers", framed=True))
    console.print(f"trials and their estimated time on this machine ({kind}), without evaluations", highlight=False)


def _time(trials: list[Trial], kind: str) -> str:
    seconds = papers.cost.seconds(trials, kind)
    if math.isnan(seconds):  # a package or a file that its models need is not here
        return f"{len(trials)}: ?"
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= length), ("s", 1))
    return f"{len(trials)}: {seconds / length:.{3 if length > 1 else 2}g} {unit}"


def print_scorecard(console: Console, ids: Sequence[str], store: Store) -> None:
    """Print one line per claim: cut to the width of a terminal, whole in a file."""
    known = {claim.id: claim for claim in papers.claims()}
    verdicts = _judged(console, ids, store)
    width = max(map(len, _OUTCOME_STYLES))
    for name, verdict in verdicts.items():
        changed = " [criterion changed]" if known[name].changed.startswith("changed") else ""
        line = Text(f"{name}  ").append(verdict.outcome.ljust(width), style=_OUTCOME_STYLES[verdict.outcome])
        line.append(f"  {known[name].claim}{changed}  {_evidence(verdict)}")
        if console.is_terminal:
            console.print(line, no_wrap=True, overflow="ellipsis")
        else:
            console.print(line, soft_wrap=True)
    _print_counts(console, verdicts)


def print_verdicts(console: Console, ids: Sequence[str], store: Store) -> None:
    """Print claims in full: what they say, the verdict, and what it rests on."""
    known = {claim.id: claim for claim in papers.claims()}
    verdicts = _judged(console, ids, store)
    changes = {name: f" [criterion {known[name].changed}]" if known[name].changed else "" for name in verdicts}
    columns = [
        PrintedColumn("id", list(verdicts)),
        PrintedColumn("claim", [known[name].claim for name in verdicts]),
        PrintedColumn("verdict", [Text(one.outcome, style=_OUTCOME_STYLES[one.outcome]) for one in verdicts.values()]),
        PrintedColumn("evidence", [_evidence(one) + changes[name] for name, one in verdicts.items()]),
    ]
    print_table(console, columns, layout=Layout("Claims", framed=True))
    _print_counts(console, verdicts)


def _evidence(verdict: Verdict) -> str:
    return f"{verdict.detail} ({verdict.size})" if verdict.size else verdict.detail


def _judged(console: Console, ids: Sequence[str], store: Store) -> dict[str, Verdict]:
    """The verdicts. They take seconds; meanwhile a terminal shows which claim is being judged."""
    verdicts = {}
    with console.status("judging") as status:
        for name in ids:
            status.update(f"judging {name}")
            verdicts[name] = papers.judge(name, store)
    return verdicts


def _print_counts(console: Console, verdicts: Mapping[str, Verdict]) -> None:
    counts = Counter(verdict.outcome for verdict in verdicts.values())
    console.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), highlight=False)
