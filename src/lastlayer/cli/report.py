"""`lastlayer report RUNS` and `lastlayer export RUN`: tables, a page and model files of runs that are on disk.

Tests: tests/cli/test_report.py and, for the files, tests/training/test_export.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from lastlayer.cli._options import All, For, Trust
from lastlayer.cli._say import check_writable, waiting


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUNS", help="A folder of runs, a comparison file, a run, or several of these.", show_default="runs"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the page; report.html beside the runs if not given.")
    ] = None,
    comparison: Annotated[
        str | None,
        typer.Option(help="ID or file of the comparison, if a folder holds several; the newest if not given."),
    ] = None,
    goals: For = None,
    everything: All = False,
    tsne: Annotated[bool, typer.Option("--tsne", help="Add a t-SNE view of the final features.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write every value of every run to this file.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show the results of finished runs: which loss to choose, a table, and one HTML page that needs no network.

    Runs that differ only in their seed, and in the fold it is tested on, count as one loss. If a folder holds
    comparison files, the newest one says which runs to take; if that one names a single trial, all runs are taken.
    Runs that failed, were interrupted or are missing are always listed. Nothing is trained or changed.
    """
    where = runs or [Path("runs")]
    for path in where:
        if not path.exists():
            raise FileNotFoundError(f"there is no folder {path}")
    from lastlayer import reports
    from lastlayer.runs import is_run

    wanted = None if goals is None else reports.parse_goals(goals)
    if csv is not None:
        check_writable("--csv", csv)
    if out is not None and out.resolve().parent.exists():  # otherwise its folder is made
        check_writable("--out", out)
    summary = reports.summarise(reports.load(where if len(where) > 1 else where[0], comparison))
    if wanted is not None:
        summary = dataclasses.replace(summary, goals=tuple(goal.name for goal in wanted))
    if not any(group.done for group in summary.groups):
        reports.print_problems(summary)
        counts = Counter(run.status for run in summary.problems)
        found = ", ".join(f"{count} {status}" for status, count in counts.items())
        raise ValueError(f"no run in {', '.join(map(str, where))} is done ({found}): there is nothing to report yet")
    more = f"lastlayer report {' '.join(map(str, where))} --all"
    reports.print_tables(summary, everything=everything, more=more)
    with waiting("t-SNE of every run, a second or two each") if tsne else contextlib.nullcontext():
        inside = where[0].is_file() or is_run(where[0])
        page = out or (where[0].parent if inside else where[0]) / "report.html"
        try:
            reports.write_page(summary, page, tsne=tsne)
        except OSError as error:
            why = f"{page.parent} cannot be written ({error.strerror or error})"
            raise OSError(f"there is no page: {why}; name a file in another folder with --out") from error
    typer.echo(f"page: {page}")
    if csv is not None:
        reports.write_csv(summary, csv)
        typer.echo(f"values: {csv}")
    if open_page:
        typer.launch(page.resolve().as_uri())


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; RUN/export if not given.", show_default=False)
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="safetensors, onnx, or both, separated by a comma.")
    ] = "safetensors,onnx",
    trust: Trust = None,
) -> None:
    """Write a trained model for use elsewhere: model.safetensors, model.onnx and config.json.

    The ONNX graph takes inputs as the data set stores them (features, or 8-bit images with channels first). It gives
    logits and probabilities, for any batch size. If its weights take more than 1.5 GiB, they are in model.onnx.data
    beside it. config.json holds the class names, the normalisation, and how logits become probabilities.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such folder")
    from lastlayer.training.export import export as write

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    for file in write(run, run / "export" if out is None else out, wanted, trust=trust or ()):
        typer.echo(f"{file} ({file.stat().st_size:,} bytes)")
