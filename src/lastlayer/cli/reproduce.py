"""`lastlayer reproduce`: any table, figure or claim of the five papers, our number beside the published one."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastlayer._core.registry import nearest
from lastlayer.cli._options import MOST_SEEDS, DataRoot, Device, Pack, RetryFailed, Workers
from lastlayer.cli._run import run
from lastlayer.cli._say import check_writable, counted, make_folder, say_stopped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from lastlayer.papers import Artifact, Observations, Store


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Artifacts such as sln.table1, or papers such as sln."),
    ] = None,
    size: Annotated[str, typer.Option(help="smoke (seconds), small (minutes on a GPU) or paper (all).")] = "small",
    show_list: Annotated[bool, typer.Option("--list", help="Show every artifact and what it would take.")] = False,
    scorecard: Annotated[
        bool, typer.Option("--scorecard", help="Print the verdict on every claim, or on NAMEs or ids such as 000-01.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=LABEL,...", help="Keep only some labels: --only loss=CE,SLN.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds in place of the artifact's own: 3, or 5-9.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Run nothing; show what has been observed.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Also write the figure to this .svg or .png file; needs the extra pictures.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the observations.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    device: Device = "auto",
    workers: Workers = None,
    pack: Pack = None,
    data_root: DataRoot = None,
    retry_failed: RetryFailed = False,
) -> None:
    """Rerun a table or figure of the five papers and print it beside the published numbers.

    Observations are kept as CSV files under ./results, and the runs under ./runs. The same command again skips what is
    done and resumes what was interrupted. Claims that rest on the artifact are judged at the end.
    """
    from lastlayer import papers
    from lastlayer.cli._reproduce_print import print_list, print_scorecard, print_verdicts
    from lastlayer.reports.text import stdout
    from lastlayer.runners import Placement

    console = stdout()
    store = papers.Store(out)
    if size not in papers.SIZES:
        raise ValueError(f"--size must be one of {', '.join(papers.SIZES)}, got {size!r}")
    if show_list:
        print_list(console, _chosen(names), store, device)
        return
    if scorecard:
        if not out.is_dir():
            typer.echo(f"--out {out}: there is no such folder, so nothing has been run", err=True)
        (print_verdicts if names else print_scorecard)(console, _claims(names), store)
        return
    if not names:
        raise ValueError("name an artifact, such as sln.table1; --list shows all, --scorecard the verdicts")
    placement = Placement(runs, device, workers, pack, data_root=data_root, retry_failed=retry_failed)
    chosen = _chosen(names)
    labels = {one.name: labels_of(only, one) for one in chosen}
    wanted = seeds_of(seeds)
    grids = {one.name: papers.restricted(one, size, labels[one.name], wanted) for one in chosen}
    _check(chosen, seeds, picture)
    failure: Exception | None = None
    unfinished = 0
    if not show:
        make_folder("--out", out)
        if any(artifact.compute is None for artifact in chosen):
            make_folder("--runs", runs)
        tell = functools.partial(typer.echo, err=True)
        try:
            papers.reproduce_all(chosen, size, placement, store, only=labels, seeds=wanted, run=run, tell=tell)
        except typer.Exit:  # Ctrl-C while trials run
            raise
        except KeyboardInterrupt:  # Ctrl-C after that, or while something is computed
            say_stopped("what is done is kept")
        except Exception as error:
            if len(chosen) == 1:
                raise
            failure = error  # the others can still be shown
    for artifact in chosen:
        part = "table"
        try:
            observed = store.read(artifact.name, size)
            if show and not observed.rows:
                others = [one for one in store.sizes(artifact.name) if one != size]
                there = f", but at {' and '.join(others)}: --size {others[-1]}" if others else ""
                typer.echo(f"{artifact.name}: nothing at size {size}{there or '; without --show it is run'}", err=True)
            _show(console, artifact, observed, store, labels[artifact.name])
            unfinished += papers.count_unfinished(artifact, grids[artifact.name], observed)
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
    if unfinished and not show:
        again = "--retry-failed runs what failed again"
        typer.echo(f"{counted(unfinished, 'run')} without a result: see lastlayer status {runs}; {again}", err=True)
        raise typer.Exit(1)


def _show(
    console: Console, artifact: Artifact, observed: Observations, store: Store, only: Mapping[str, Sequence[str]]
) -> None:
    """Print the table, and the verdicts on the claims that rest on it."""
    from lastlayer import papers
    from lastlayer.cli._reproduce_print import print_artifact, print_verdicts

    print_artifact(console, artifact, observed, only)
    if observed.rows:
        console.print(f"observations: {store.path(artifact.name, observed.size)}", highlight=False)
    concerned = [claim.id for claim in papers.claims() if artifact.name in papers.needs(claim.id)]
    if concerned and observed.size != "smoke":  # which proves nothing
        print_verdicts(console, concerned, store)


def _chosen(names: list[str] | None) -> list[Artifact]:
    from lastlayer import papers

    known = papers.artifacts()
    chosen: dict[str, Artifact] = {}  # each once, even if its paper is named too
    for name in names or papers.PAPERS:
        in_paper = {one.name: one for one in known.values() if one.paper == name}
        chosen |= in_paper or {name: papers.artifact(name)}
    return list(chosen.values())


def _claims(names: list[str] | None) -> list[str]:
    """The claims with these ids, and those that rest on these artifacts or papers. Without names: all claims."""
    from lastlayer import papers

    known = {claim.id: papers.needs(claim.id) for claim in papers.claims()}
    if not names:
        return list(known)
    others = [name for name in names if name not in known]
    if unknown := next((name for name in others if re.fullmatch(r"\d+-\d+", name)), None):
        raise ValueError(f"there is no claim {unknown}{nearest(unknown, known)}; --scorecard alone shows all claims")
    artifacts = {one.name for one in _chosen(others)} if others else set()
    wanted = [claim for claim, needs in known.items() if claim in names or artifacts & set(needs)]
    if not wanted:
        raise ValueError(f"no claim rests on {', '.join(names)}; --scorecard alone shows all claims")
    return wanted


def _check(chosen: list[Artifact], seeds: str | None, picture: Path | None) -> None:
    """Refuse wrong options before anything runs, because a run may take hours."""
    from importlib.util import find_spec

    from lastlayer.reports.pictures import PICTURES

    for artifact in chosen:
        if artifact.compute is not None and seeds is not None:
            typer.echo(f"{artifact.name} is computed: --seeds changes nothing", err=True)
    if picture is None:
        return
    if picture.suffix not in PICTURES:
        raise ValueError(f"--picture must end in {' or '.join(PICTURES)}, got {str(picture)!r}")
    if len(chosen) > 1:
        raise ValueError(f"--picture takes one artifact, not {len(chosen)}: each would replace the one before")
    if chosen[0].figure is None:
        raise ValueError(f"--picture: {chosen[0].name} has no figure, its table is all there is")
    if find_spec("kaleido") is None:
        raise ImportError("--picture needs the package kaleido (pip install 'lastlayer[pictures]')")
    make_folder("--picture", picture.resolve().parent)
    check_writable("--picture", picture)


def labels_of(given: list[str] | None, artifact: Artifact) -> dict[str, list[str]]:
    """The labels by axis that --only keeps. A label may have a comma in it, as in "CE, decay 5e-4"."""
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


def seeds_of(given: str | None) -> list[int] | None:
    """The seeds that --seeds names; None without it."""
    if given is None:
        return None
    low, dash, high = given.partition("-")
    try:
        wanted = range(int(low), int(high) + 1) if dash else range(int(low))
    except ValueError:
        wanted = range(0)
    if not 0 < len(wanted) <= MOST_SEEDS:
        raise ValueError(f"--seeds must be a number such as 3, or a range such as 5-9, got {given!r}")
    return list(wanted)


def _write_figure(artifact: Artifact, observed: Observations, folder: Path, picture: Path | None) -> list[Path]:
    """Write the figure as one HTML file that opens without a network, and as a picture if one is asked for."""
    from lastlayer._core.files import write_atomically
    from lastlayer.papers import figure
    from lastlayer.reports.pictures import html_page, write_picture

    chart = figure(artifact, observed)
    if chart is None:
        return []
    page = folder / f"{artifact.name}-{observed.size}.html"
    write_atomically(page, html_page(f"lastlayer reproduce {artifact.name}", [chart]).encode())
    if picture is not None:
        try:
            write_picture(chart, picture)
        except ImportError as error:
            raise ImportError(f"--picture: {error}") from None
    return [page, picture] if picture else [page]
