"""`lastlayer measure FILE...`: every measure that the arrays in a file allow. Tests: tests/cli/test_measure.py."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lastlayer.cli._output import check_file, write_page
from lastlayer.cli._stop import stop

if TYPE_CHECKING:
    from torch import Tensor

_LABELS = ("target", "labels", "y")
_NAME = 16  # columns of a terminal: a longer name of a snapshot goes over several lines
_GAP = 2


def measure(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE", help="One .npz or .safetensors file for each snapshot, in order.", show_default=False
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a page with pictures, readable without a network.", show_default=False)
    ] = None,
) -> None:
    """Measure features and logits saved in files: neural collapse, cosines, single logits, separation and more.

    A file holds arrays: features (N, d) and target (N,), also called labels or y; and, if there, weight (K, d),
    bias (K,) as added to the logits, logits (N, K), probabilities (N, K), unknown_logits (M, K),
    unknown_probabilities (M, K), train_counts (K,).
    The more it holds, the more is measured. Logits not there are computed from features, weight and bias.

    Several files are several snapshots of one model, a column each; the page then has curves over them.

    Geometry is computed in float32 or better with TF32 off, and scores are compared as they are. Save features that
    were computed without autocast and with TF32 off, or rounding is measured along with them.

    JSON: {"snapshots": [{"file", "samples", "classes", "measures": {name: number}}]}; a number that is NaN or
    infinite is null. A file that cannot be read or measured ends the command with one line and exit code 2.
    """
    from rich.console import Console
    from rich.markup import escape

    from lastlayer._core.precision import full_precision
    from lastlayer.measures import evaluate

    if plot is not None:
        check_file("--plot", plot)

    snapshots = []
    for file in files:
        arrays, ignored = _load(file)
        if ignored:
            typer.echo(f"{file}: not measured: {', '.join(ignored)}", err=True)
        try:
            status = Console(stderr=True).status(f"measuring {escape(str(file))}")
            with status, full_precision(arrays["features"]):
                values = evaluate(**arrays)
        except (TypeError, ValueError) as error:
            _refuse(file, str(error))
        if len(classes := set(arrays["target"].tolist())) == 1:
            typer.echo(f"{file}: every label is {classes.pop()}: what compares classes is nan", err=True)
        snapshots.append((file, arrays, values))

    if as_json:
        typer.echo(json.dumps({"snapshots": [_summary(*snapshot) for snapshot in snapshots]}, indent=2))
    else:
        _print_table(snapshots)
    if plot is not None:
        from lastlayer.cli._measure_page import page

        write_page(plot, page(_names(files), [values for _, _, values in snapshots], snapshots[-1][1]))


def _refuse(file: Path, why: str) -> NoReturn:
    stop("measure", f"{file}: {why}")


def _names(files: list[Path]) -> list[str]:
    """What to call the snapshots: short, unless two files in different folders would get the same name."""
    stems = [file.stem for file in files]
    return stems if len(set(stems)) == len(stems) else [str(file) for file in files]


def _load(file: Path) -> tuple[dict[str, "Tensor"], list[str]]:
    """The arrays that a measure takes, and the names of the others."""
    from lastlayer.data import as_tensor, read_arrays
    from lastlayer.measures import INPUTS

    try:
        # Only these are read: the others may be of a type that torch does not know, such as the names of the classes.
        read, ignored = read_arrays(file, {*INPUTS, *_LABELS})
        found = {name: as_tensor(file, name, array) for name, array in read.items()}
    except (OSError, ValueError) as error:
        stop("measure", str(error))
    names = sorted([*found, *ignored])
    labels = [name for name in _LABELS if name in found]
    if len(labels) > 1:
        _refuse(file, f"holds labels more than once, as {' and '.join(labels)}; keep one")
    if labels:
        found["target"] = found.pop(labels[0])
    for name in ("features", "target"):
        if name not in found:
            asked = name if name == "features" else "target (or labels, y)"
            _refuse(file, f"holds no {asked}; it holds {', '.join(names) or 'nothing'}")
    if found["features"].dim() != 2:
        shape = tuple(found["features"].shape)
        _refuse(file, f"features must have shape (N, d), got {shape}; save one file for each snapshot")
    for name in ("target", "logits", "probabilities"):
        if name in found and found[name].shape[:1] != found["features"].shape[:1]:
            shapes = f"{tuple(found['features'].shape)} and {tuple(found[name].shape)}"
            _refuse(file, f"features and {name} must have as many rows, got {shapes}")
    return found, ignored


def _summary(file: Path, arrays: dict[str, "Tensor"], values: dict[str, float]) -> dict[str, object]:
    return {
        "file": str(file),
        "samples": len(arrays["target"]),
        "classes": len(set(arrays["target"].tolist())),
        "measures": {name: value if math.isfinite(value) else None for name, value in values.items()},
    }


def _print_table(snapshots: list[tuple[Path, dict[str, "Tensor"], dict[str, float]]]) -> None:
    """A column a snapshot, nothing of it cut: a terminal too narrow for all gets the table in parts, a file never."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lastlayer.measures import MEASURES
    from lastlayer.reports.text import parts

    arrows = {"higher": "↑", "lower": "↓", None: ""}
    shown = {name: one for name, one in MEASURES.items() if any(name in values for _, _, values in snapshots)}
    heads = [
        (name, f"{len(arrays['target'])} samples")
        for name, (_, arrays, _) in zip(_names([file for file, _, _ in snapshots]), snapshots, strict=True)
    ]
    cells = [
        [one.text(values[name]) if name in values else "" for name, one in shown.items()] for *_, values in snapshots
    ]
    console = Console()
    longest = _NAME if console.is_terminal else max(len(name) for name, _ in heads)
    widths = [
        max(min(len(name), longest), len(count), *map(len, column))
        for (name, count), column in zip(heads, cells, strict=True)
    ]
    stub = max(len(one.title) for one in shown.values()) + 1 + 2 * _GAP
    if not console.is_terminal:
        console.width = max(console.width, stub + sum(width + _GAP for width in widths))
    for part in parts([width + _GAP for width in widths], console.width - stub + _GAP):
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column("measure", no_wrap=True)
        table.add_column("")
        for index in part:
            head = Text("\n".join(heads[index]), overflow="fold")
            table.add_column(head, justify="right", width=widths[index])
        if len(snapshots) == 1:
            table.add_column("meaning", style="dim", overflow="fold")
        for row, one in enumerate(shown.values()):
            meaning = [one.meaning] if len(snapshots) == 1 else []
            table.add_row(one.title, arrows[one.direction], *(cells[index][row] for index in part), *meaning)
        console.print(table)
