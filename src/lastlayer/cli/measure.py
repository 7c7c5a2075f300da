"""`lastlayer measure FILE...`: every measure that the arrays in a file allow. Tests: tests/cli/test_measure.py."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._say import check_writable, save_page, waiting

if TYPE_CHECKING:
    from torch import Tensor

LABELS = ("target", "labels", "y")
LONGEST_NAME = 16  # in a terminal, a longer name of a snapshot is broken over several lines
CURVES = ("nc1", "nc2", "nc3")
MOST_CLASSES = 500  # a larger matrix is megabytes of page that no screen shows
BINS = 120


@dataclass(frozen=True)
class Snapshot:
    """A file, what it holds and what was measured."""

    file: Path
    arrays: dict[str, Tensor]
    measures: dict[str, float]

    @property
    def classes(self) -> list[int]:
        """The labels that occur."""
        return sorted(set(self.arrays["target"].tolist()))

    def summary(self) -> dict[str, object]:
        """What JSON shows of it."""
        finite = {name: value if math.isfinite(value) else None for name, value in self.measures.items()}
        samples = len(self.arrays["target"])
        return {"file": str(self.file), "samples": samples, "classes": len(self.classes), "measures": finite}


def measure(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="A .npz or .safetensors file per snapshot, in order.", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a page with pictures that opens without a network.", show_default=False)
    ] = None,
) -> None:
    """Measure features and logits saved in files: neural collapse, cosines, single logits, separation and more.

    A file holds arrays: target (N,), which may also be called labels or y, and features (N, d) or logits (N, K) or
    both. It may also hold weight (K, d), bias (K,) as added to the logits, probabilities (N, K), train_counts (K,), the
    batch norm's weight gamma (d,), and of classes not trained on unknown_logits (M, K), unknown_probabilities (M, K),
    unknown_features (M, d) and unknown_target (M,). The more it holds, the more is measured. If there are no logits,
    they are computed from features, weight and bias.

    Several files are several snapshots of one model, one column each. The page then has curves over them.

    Geometry is computed in float32 or better with TF32 off, and scores are compared as they are. Save features that
    were computed without autocast and with TF32 off; otherwise their rounding is measured too.

    JSON: {"snapshots": [{"file", "samples", "classes", "measures": {name: number}}]}; a number that is NaN or
    infinite is null. If a file cannot be read or measured, the command ends with one line and exit code 2.
    """
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file}: no such file")
    if plot is not None:
        check_writable("--plot", plot)
    import torch

    from lastlayer._core.precision import full_precision
    from lastlayer.measures import evaluate

    snapshots = []
    for file in files:
        arrays, ignored = _load(file)
        if ignored:
            typer.echo(f"{file}: not measured: {', '.join(ignored)}", err=True)
        try:
            with waiting(f"measuring {file}"), full_precision(torch.empty(0)):
                snapshots.append(Snapshot(file, arrays, evaluate(**arrays)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}: {error}") from error
        if len(classes := snapshots[-1].classes) == 1:
            typer.echo(f"{file}: every label is {classes[0]}: what compares classes is nan", err=True)
    if as_json:
        typer.echo(json.dumps({"snapshots": [snapshot.summary() for snapshot in snapshots]}, indent=2))
    else:
        _print_table(snapshots)
    if plot is not None:
        save_page(plot, _page(snapshots))


def _names(snapshots: Sequence[Snapshot]) -> list[str]:
    """What to call the snapshots: by the names of the files, or by their paths if two files have the same name."""
    stems = [snapshot.file.stem for snapshot in snapshots]
    return stems if len(set(stems)) == len(stems) else [str(snapshot.file) for snapshot in snapshots]


def _load(file: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The arrays that a measure takes, and the names of the others."""
    from lastlayer.data import array_named, as_tensor, read_arrays
    from lastlayer.measures import INPUTS

    # Only these are read: the others may be of a type that torch does not know, such as the names of the classes.
    read, ignored = read_arrays(file, {*INPUTS, *LABELS})
    found = {name: as_tensor(file, name, array) for name, array in read.items()}
    names = [*found, *ignored]
    if not {"features", "logits"} & found.keys():
        raise ValueError(f"{file} holds no features and no logits; it holds {', '.join(sorted(names)) or 'nothing'}")
    found["target"] = found.pop(array_named(file, names, LABELS))
    first, columns = ("features", "d") if "features" in found else ("logits", "K")
    if found[first].dim() != 2:
        shape = tuple(found[first].shape)
        raise ValueError(f"{file}: {first} must have shape (N, {columns}), got {shape}; save one file per snapshot")
    for name in ("target", "logits", "probabilities"):
        if name in found and found[name].shape[:1] != found[first].shape[:1]:
            shapes = f"{tuple(found[first].shape)} and {tuple(found[name].shape)}"
            raise ValueError(f"{file}: {first} and {name} must have as many rows, got {shapes}")
    return found, ignored


def _print_table(snapshots: Sequence[Snapshot]) -> None:
    """One column per snapshot. If there is only one, a column says what each measure means."""
    from rich.console import Console

    from lastlayer.measures import MEASURES
    from lastlayer.reports.text import ARROWS, PrintedColumn, print_table

    shown = [one for one in MEASURES.values() if any(one.name in snapshot.measures for snapshot in snapshots)]
    console = Console()
    names = [
        PrintedColumn("measure", [one.title for one in shown], whole=True),
        PrintedColumn("", [ARROWS[one.direction] for one in shown]),
    ]
    groups = []
    for name, snapshot in zip(_names(snapshots), snapshots, strict=True):
        cells = [one.text(snapshot.measures[one.name]) if one.name in snapshot.measures else "" for one in shown]
        count = f"{len(snapshot.arrays['target'])} samples"
        most = max(LONGEST_NAME, len(count)) if console.is_terminal else None
        groups.append([PrintedColumn(f"{name}\n{count}", cells, right=True, most=most)])
    if len(snapshots) == 1:
        meaning = PrintedColumn("meaning", [one.meaning for one in shown], style="dim")
        print_table(console, [*names, *groups[0], meaning])
    else:
        print_table(console, names, groups)


def _page(snapshots: Sequence[Snapshot]) -> str:
    """One HTML page: curves over the snapshots, and for the last one cosines of classes and histograms of logits."""
    from lastlayer.measures import linear_logits
    from lastlayer.reports.pictures import html_page

    names, last = _names(snapshots), snapshots[-1].arrays
    curves = len(snapshots) > 1 and all("features" in snapshot.arrays for snapshot in snapshots)
    figures = [_draw_curves(names, snapshots)] if curves else []
    if "features" in last:
        figures.append(_draw_cosines(snapshots[-1]))
    logits = last.get("logits")
    if logits is None and "weight" in last:
        logits = linear_logits(last["features"], last["weight"], last.get("bias"))
    if logits is not None:
        figures.append(_draw_logits(logits, last["target"]))
    return html_page(f"lastlayer measure: {names[-1]}", figures)


def _draw_curves(names: Sequence[str], snapshots: Sequence[Snapshot]) -> Any:
    from lastlayer.measures import MEASURES
    from lastlayer.reports.pictures import LOG, new_figure

    figure = new_figure("Neural collapse over snapshots")
    for name in CURVES:
        if all(name in snapshot.measures for snapshot in snapshots):
            values = [snapshot.measures[name] for snapshot in snapshots]
            figure.add_scatter(x=list(names), y=values, name=MEASURES[name].title, mode="lines+markers")
    figure.update_xaxes(title="snapshot", type="category")
    figure.update_yaxes(**LOG, title="lower is more collapsed")
    return figure


def _draw_cosines(snapshot: Snapshot) -> Any:
    from lastlayer import geometry
    from lastlayer.reports.pictures import new_figure

    labels = [str(k) for k in snapshot.classes[:MOST_CLASSES]]
    shown = len(labels)
    cosines = geometry.cosine_collapse(snapshot.arrays["features"], snapshot.arrays["target"])
    values = cosines.inter[:shown, :shown].float().numpy()
    part = f" (first {MOST_CLASSES} classes)" if shown == MOST_CLASSES else ""
    figure = new_figure(f"Mean cosine of centred features, class by class{part}")
    figure.add_heatmap(z=values, x=labels, y=labels, zmin=-1, zmax=1, colorscale="RdBu", reversescale=True)
    figure.update_layout(height=600, width=700)
    figure.update_xaxes(title="class", type="category")
    figure.update_yaxes(title="class", type="category", autorange="reversed")
    return figure


def _draw_logits(logits: Tensor, target: Tensor) -> Any:
    """Histograms instead of the logits themselves, so that the page stays small."""
    import torch

    from lastlayer.reports.pictures import new_figure

    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, target.long()[:, None], True)
    finite = logits[logits.isfinite()].double()
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, BINS + 1, dtype=torch.float64)
    middles, width = ((edges[1:] + edges[:-1]) / 2).numpy(), (high - low) / BINS
    figure = new_figure("True and false logits")
    for name, chosen, colour in (("false logits", ~own, "#d62728"), ("true logits", own, "#1f77b4")):
        values = logits[chosen].double()
        share = torch.histc(values[values.isfinite()], bins=BINS, min=low, max=high) / max(len(values), 1)
        figure.add_bar(x=middles, y=share.numpy(), width=width, name=name, marker_color=colour, opacity=0.6)
    figure.update_layout(barmode="overlay", bargap=0)
    figure.update_xaxes(title="logit")
    figure.update_yaxes(title="share of its kind")
    return figure
