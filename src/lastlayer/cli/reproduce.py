"""`lastlayer reproduce`: any table, figure or claim of the five papers, ours beside the published number."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastlayer.cli._running import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lastlayer.papers import Artifact, Observations, Size, Store, Verdict
    from lastlayer.runners import Plan
    from lastlayer.training import Trial

_OUTCOME_STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not run": "dim"}
_PLAIN_WIDTH = 120
_MOST_SEEDS = 10_000
_PICTURES = (".svg", ".png")


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Artifacts such as sln.table1, or papers such as sln."),
    ] = None,
    size: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes on a GPU) or paper (all of it).")
    ] = "small",
    show_list: Annotated[bool, typer.Option("--list", help="Show every artifact and what it would take.")] = False,
    scorecard: Annotated[
        bool,
        typer.Option(
            "--scorecard", help="Print the verdict on every claim, or in full on those of the names, or on 000-01, ..."
        ),
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=LABEL,...", help="Keep some labels: --only loss=CE,SLN.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds instead of the artifact's own: 3, or 5-9.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show what has been observed.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the figure to this .svg or .png; needs the extra pictures.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the observations.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..., or auto.")] = "auto",
    workers: Annotated[int | None, typer.Option(help="Processes on the CPU; one a core if not given.")] = None,
    pack: Annotated[int | None, typer.Option(help="Trials at a time on a GPU; what fits if not given.", min=1)] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Run failed trials again.")] = False,
) -> None:
    """Rerun a table or figure of the five papers and print it beside the published numbers.

    What was observed is kept as CSV under ./results, the runs under ./runs: the same command again skips what is done
    and resumes what was cut. Claims that rest on the artifact are judged at the end.
    """
    from lastlayer import papers
    from lastlayer.runners import Plan

    console = _console()
    store = papers.Store(out)
    if size not in papers.SIZES:
        raise ValueError(f"--size must be one of {', '.join(papers.SIZES)}, got {size!r}")
    if show_list:
        _print_list(console, _chosen(names), store, device)
        return
    if scorecard:
        (_print_verdicts if names else _print_scorecard)(console, _claims(names), store)
        return
    if not names:
        raise ValueError("name an artifact, such as sln.table1; --list shows all, --scorecard the verdicts")
    plan = Plan(runs, device, workers, pack, data_root=data_root, retry_failed=retry_failed)
    chosen = _chosen(names)
    _check(chosen, size, only, seeds, picture)
    failure: Exception | None = None
    if not show:
        _make_folder("--out", out)
        if any(artifact.compute is None for artifact in chosen):
            _make_folder("--runs", runs)
        failure = _run_all(chosen, size, plan, store, only, seeds)
    for artifact in chosen:
        part = "table"
        try:
            observed = store.read(artifact.name, size)
            if show and not observed.rows:
                _say_nothing_is_there(artifact, size, store)
            _show(console, artifact, observed, store, _only(only, artifact))
            part = "figure"
            for path in _write_figure(artifact, observed, runs, picture):
                console.print(f"figure: {path}", highlight=False)
        except Exception as error:
            if len(chosen) == 1:
                raise
            typer.echo(f"{artifact.name}: its {part} cannot be shown: {error}", err=True)
            failure = failure or error
    if failure is not None:
        raise failure


def _say_nothing_is_there(artifact: Artifact, size: Size, store: Store) -> None:
    others = [one for one in store.sizes(artifact.name) if one != size]
    but = f", but at {' and '.join(others)}: --size {others[-1]}" if others else "; without --show it is run"
    typer.echo(f"{artifact.name}: nothing at size {size}{but}", err=True)


def _show(
    console: Console, artifact: Artifact, observed: Observations, store: Store, only: Mapping[str, Sequence[str]]
) -> None:
    """The table, and the verdicts on the claims that rest on it."""
    from lastlayer import papers

    _print_artifact(console, artifact, observed, only)
    if observed.rows:
        console.print(f"observations: {store.path(artifact.name, observed.size)}", highlight=False)
    concerned = [claim.id for claim in papers.claims() if artifact.name in papers.needs(claim.id)]
    if concerned and observed.size != "smoke":  # which proves nothing
        _print_verdicts(console, concerned, store)


def _run_all(
    chosen: list[Artifact], size: Size, plan: Plan, store: Store, only: list[str] | None, seeds: str | None
) -> Exception | None:
    """Run what is missing; the error of one among several is given back, since the others have something to show."""
    from lastlayer import papers

    labels = {artifact.name: _only(only, artifact) for artifact in chosen}
    try:
        papers.reproduce_all(
            chosen, size, plan, store, only=labels, seeds=_seeds(seeds), run=run,
            tell=lambda line: typer.echo(line, err=True),
        )  # fmt: skip
    except typer.Exit:  # Ctrl-C
        raise
    except Exception as error:
        if len(chosen) == 1:
            raise
        return error
    return None


def _chosen(names: list[str] | None) -> list[Artifact]:
    from lastlayer import papers

    known = papers.artifacts()
    if not names:
        return list(known.values())
    chosen: dict[str, Artifact] = {}  # each once, also where its paper is named too
    for name in names:
        if name in papers.PAPERS:
            chosen |= {one.name: one for one in known.values() if one.paper == name}
        else:
            chosen[name] = papers.artifact(name)
    return list(chosen.values())


def _claims(names: list[str] | None) -> list[str]:
    """The claims of these ids, and those that rest on these artifacts or papers; all without a name."""
    from lastlayer import papers

    known = {claim.id: papers.needs(claim.id) for claim in papers.claims()}
    if not names:
        return list(known)
    others = [name for name in names if name not in known]
    artifacts = {one.name for one in _chosen(others)} if others else set()
    wanted = [claim for claim, needs in known.items() if claim in names or artifacts & set(needs)]
    if not wanted:
        raise ValueError(f"no claim rests on {', '.join(names)}; --scorecard alone shows all claims")
    return wanted


def _make_folder(option: str, folder: Path) -> None:
    """A folder to write to, before anything runs: hours later is late to hear of it."""
    import os

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{option} {folder}: no folder can be made there ({error.strerror})") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{option} {folder}: nothing can be written there; choose another folder")


def _check(chosen: list[Artifact], size: Size, only: list[str] | None, seeds: str | None, picture: Path | None) -> None:
    """Say what is wrong with the options before anything runs, which may take hours."""
    from importlib.util import find_spec

    from lastlayer.papers import restricted

    for artifact in chosen:
        restricted(artifact, size, _only(only, artifact), _seeds(seeds))
        if artifact.compute is not None and seeds is not None:
            typer.echo(f"{artifact.name} is computed: --seeds changes nothing", err=True)
    if picture is None:
        return
    if picture.suffix not in _PICTURES:
        raise ValueError(f"--picture must end in {' or '.join(_PICTURES)}, got {str(picture)!r}")
    if len(chosen) > 1:
        raise ValueError(f"--picture takes one artifact, not {len(chosen)}: each would replace the one before")
    if chosen[0].figure is None:
        raise ValueError(f"--picture: {chosen[0].name} has no figure, its table is all there is")
    if find_spec("kaleido") is None:
        raise ImportError("--picture needs the package kaleido (pip install 'lastlayer[pictures]')")


def _only(given: list[str] | None, artifact: Artifact) -> dict[str, list[str]]:
    """Labels by axis; some labels have a comma in them, as in "CE, decay 5e-4"."""
    wanted: dict[str, list[str]] = {}
    for text in given or []:
        axis, equals, labels = text.partition("=")
        if not equals:
            raise ValueError(f"--only: {text!r} must have the form AXIS=LABEL,LABEL")
        pieces, known = labels.split(","), artifact.axes.get(axis, {})
        while pieces:
            lengths = range(len(pieces), 1, -1)
            taken = next((n for n in lengths if ",".join(pieces[:n]) in known), 1)  # the longest that is a label
            wanted.setdefault(axis, []).append(",".join(pieces[:taken]))
            del pieces[:taken]
    return wanted


def _seeds(given: str | None) -> list[int] | None:
    if given is None:
        return None
    low, dash, high = given.partition("-")
    try:
        wanted = range(int(low), int(high) + 1) if dash else range(int(low))
    except ValueError:
        wanted = range(0)
    if not 0 < len(wanted) <= _MOST_SEEDS:
        raise ValueError(f"--seeds must be a number such as 3, or a range such as 5-9, got {given!r}")
    return list(wanted)


def _console() -> Console:
    from rich.console import Console

    console = Console(soft_wrap=False)
    if not console.is_terminal and console.width < _PLAIN_WIDTH:
        console.width = _PLAIN_WIDTH
    return console


def _print_artifact(
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
        counts = ", ".join(f"{' '.join(row.labels.values())} seed {row.seed} ({row.status})" for row in lost[:5])
        console.print(f"{len(lost)} runs are no results: {counts}", style="red", highlight=False)


def _value(mean: float, std: float | None, count: int | None = None) -> str:
    text = f"{mean:.4g}"
    if std is not None and not math.isnan(std):
        text += f" ± {std:.2g}"
    return text if count is None else f"{text} ({count})"


def _write_figure(artifact: Artifact, observed: Observations, folder: Path, picture: Path | None) -> list[Path]:
    """The figure as one HTML file that opens offline, and as a picture where one was asked for."""
    from lastlayer.papers import figure
    from lastlayer.runs.files import write_atomically

    chart = figure(artifact, observed)
    if chart is None:
        return []
    page = folder / f"{artifact.name}-{observed.size}.html"
    write_atomically(page, chart.to_html(include_plotlyjs=True).encode())
    if picture is None:
        return [page]
    try:
        content = chart.to_image(picture.suffix.removeprefix("."), width=900, height=chart.layout.height or 500)
    except (ValueError, RuntimeError) as error:  # as Plotly says that kaleido is not there, or has no browser
        raise ImportError(
            f"--picture: {str(error).strip().splitlines()[0]} (pip install 'lastlayer[pictures]')"
        ) from None
    write_atomically(picture, content)
    return [page, picture]


def _print_list(console: Console, artifacts: list[Artifact], store: Store, device: str) -> None:
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


def _print_scorecard(console: Console, ids: list[str], store: Store) -> None:
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


def _print_verdicts(console: Console, ids: list[str], store: Store) -> None:
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
