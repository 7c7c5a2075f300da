"""How the commands of `lastlayer theory` print tables or JSON, and draw a picture that opens offline."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console

from lastlayer._core.progress import bars
from lastlayer.cli._say import save_page
from lastlayer.reports.pictures import COLOURS, LOG, html_page, new_figure
from lastlayer.reports.text import Layout, PrintedColumn, print_table

Row = dict[str, Any]
Item = TypeVar("Item")


def tracked(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, with a progress bar if this is a terminal. The bar goes away at the end."""
    with bars() as bar:
        yield from bar.track(items, description=what)


def show(tables: dict[str, list[Row]], as_json: bool, titles: dict[str, str], absent: str = "-") -> None:
    """Print the tables that have a title, or all of them as JSON."""
    if as_json:
        typer.echo(json.dumps(_plain(tables), indent=2))
        return
    for key, title in titles.items():
        rows = tables[key]
        columns = [
            PrintedColumn(name, [_cell(row[name], absent) for row in rows], right=not isinstance(first, str))
            for name, first in rows[0].items()
        ]
        print_table(Console(), columns, layout=Layout(title, framed=True))


def _cell(value: Any, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(each, absent) for each in value) or "-"
    return str(value)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it. NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value


def draw(plot: Path | None, name: str, content: Any) -> None:
    """Write the picture of what a command computed (rows, trajectories by loss, or a solution), if one is asked for."""
    if plot is not None:
        save_page(plot, html_page(f"lastlayer theory {name}", [_FIGURES[name](content)]))


def _add_curve(figure: Any, rows: list[Row], x: str, y: str, name: str, column: int = 1) -> None:
    """Add the rows' values of y over those of x as a line with markers."""
    points = {"x": [row[x] for row in rows], "y": [row[y] for row in rows]}
    figure.add_scatter(**points, name=name, mode="lines+markers", col=column, row=1)


def _minima(rows: list[Row]) -> Any:
    figure = new_figure(panels=("Smallest loss", "Optimal bias of binary cross-entropy"))
    for name in ("cross-entropy", "binary cross-entropy"):
        _add_curve(figure, rows, "scale", name, name)
    _add_curve(figure, rows, "scale", "bias b*", "b*", column=2)
    figure.update_xaxes(title="scale")
    figure.update_yaxes(**LOG, title="smallest loss", col=1, row=1)
    figure.update_yaxes(title="bias", col=2, row=1)
    return figure


def _ufm(found: Any) -> Any:
    figure = new_figure(panels=("Gram matrix of the classifier", "Logits of the features"))
    gram, logits = found.weight @ found.weight.T, found.features @ found.weight.T
    for column, matrix in enumerate((gram, logits), start=1):
        figure.add_heatmap(z=matrix.tolist(), coloraxis=f"coloraxis{column}", col=column, row=1)
    colours = {"colorscale": "RdBu", "cmid": 0.0}
    figure.update_layout(coloraxis={**colours, "colorbar": {"x": 0.45}}, coloraxis2=colours)
    figure.update_xaxes(title="class", dtick=max(1, len(gram) // 10))
    figure.update_yaxes(autorange="reversed", title="class", col=1, row=1)
    figure.update_yaxes(autorange="reversed", title="feature, sorted by class", col=2, row=1)
    return figure


def _dynamics(paths: dict[str, Any]) -> Any:
    solid = next(iter(paths.values())).points.shape[2] == 3
    names, kind = ("xyz", "scene") if solid else ("xy", "xy")
    figure = new_figure(panels=list(paths), specs=[[{"type": kind}] * len(paths)])
    add = figure.add_scatter3d if solid else figure.add_scatter
    for column, path in enumerate(paths.values(), start=1):
        for label in sorted(set(path.target.tolist())):
            points = path.points[:, path.target == label]
            # One line holds all points of a class. None interrupts the line between them.
            lines = {
                name: [value for trace in points[:, :, axis].T.tolist() for value in (*trace, None)]
                for axis, name in enumerate(names)
            }
            ends = {name: points[-1, :, axis].tolist() for axis, name in enumerate(names)}
            colour = COLOURS[label % len(COLOURS)]
            shared = {"legendgroup": str(label), "name": f"class {label}", "row": 1, "col": column}
            add(**lines, mode="lines", line={"color": colour, "width": 1}, showlegend=column == 1, **shared)
            add(**ends, mode="markers", marker={"color": colour, "size": 4}, showlegend=False, **shared)
        if not solid:  # both axes need the same unit, so that circles look like circles
            figure.update_yaxes(scaleanchor="x" if column == 1 else f"x{column}", col=column, row=1)
    if not solid:
        figure.update_xaxes(title="first entry")
        figure.update_yaxes(title="second entry", col=1)
    return figure


def _alignment(rows: list[Row]) -> Any:
    figure = new_figure()
    for column in ("threshold", "by the paper's argument"):
        figure.add_bar(x=[row["loss"] for row in rows], y=[row[column] for row in rows], name=column)
    figure.update_xaxes(title="loss")
    figure.update_yaxes(**LOG, title="loss below which logits are separated")
    return figure


def _bounds(rows: list[Row]) -> Any:
    figure = new_figure(panels=[""])
    for name in ("intra >=", "self-duality >=", "inter <=", "intra >= (proved)"):
        _add_curve(figure, rows, "epsilon", name, name)
    figure.update_xaxes(**LOG, title="excess of the loss over its minimum")
    figure.update_yaxes(title="bound on the cosine (vacuous bounds are not drawn)")
    return figure


def _scaling(rows: list[Row]) -> Any:
    figure = new_figure(panels=("Small scales", "Large scales"))
    for column, regime in enumerate(("small", "large"), start=1):
        for loss in ("ce", "bce"):
            chosen = [row for row in rows if (row["regime"], row["loss"]) == (regime, loss)]
            _add_curve(figure, chosen, "scale", "steps", f"{loss}, {regime} scales", column)
    figure.update_xaxes(title="scale")
    figure.update_xaxes(**LOG, col=1, row=1)
    figure.update_yaxes(**LOG, title="steps to collapse")
    return figure


_FIGURES: dict[str, Callable[[Any], Any]] = {
    "minima": _minima,
    "ufm": _ufm,
    "dynamics": _dynamics,
    "alignment": _alignment,
    "bounds": _bounds,
    "scaling": _scaling,
}
