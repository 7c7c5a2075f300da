"""The pictures of `lastlayer theory ... --plot`, one page per command. A page contains plotly, so it opens offline.

Tests: tests/cli/test_theory_pictures.py.
"""

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lastlayer.cli.theory_tables import Row
from lastlayer.reports.pictures import LOG, html_page
from lastlayer.theory import Solution
from lastlayer.theory.dynamics import Trajectory


def page(command: str, content: Any) -> str:
    """The page of a command.

    Args:
        command: the name of the command.
        content: what it computed: rows, trajectories by loss, or a solution.
    """
    figure = _FIGURES[command](content)
    figure.update_layout(template="plotly_white")
    return html_page(f"lastlayer theory {command}", [figure])


def _minima(rows: list[Row]) -> go.Figure:
    figure = make_subplots(cols=2, rows=1, subplot_titles=("Smallest loss", "Optimal bias of binary cross-entropy"))
    scales = [row["scale"] for row in rows]
    for name in ("cross-entropy", "binary cross-entropy"):
        figure.add_scatter(x=scales, y=[row[name] for row in rows], name=name, mode="lines+markers", col=1, row=1)
    figure.add_scatter(x=scales, y=[row["bias b*"] for row in rows], name="b*", mode="lines+markers", col=2, row=1)
    figure.update_xaxes(title="scale")
    figure.update_yaxes(**LOG, col=1, row=1)
    return figure


def _ufm(found: Solution) -> go.Figure:
    figure = make_subplots(cols=2, rows=1, subplot_titles=("Gram matrix of the classifier", "Logits of the features"))
    gram, logits = found.weight @ found.weight.T, found.features @ found.weight.T
    for column, matrix in enumerate((gram, logits), start=1):
        figure.add_heatmap(z=matrix.tolist(), coloraxis=f"coloraxis{column}", col=column, row=1)
    figure.update_layout(
        coloraxis={"colorscale": "RdBu", "cmid": 0.0, "colorbar": {"x": 0.45}},
        coloraxis2={"colorscale": "RdBu", "cmid": 0.0},
    )
    figure.update_xaxes(title="class", dtick=max(1, len(gram) // 10))
    figure.update_yaxes(autorange="reversed", title="class", col=1, row=1)
    figure.update_yaxes(autorange="reversed", title="feature, sorted by class", col=2, row=1)
    return figure


def _dynamics(paths: dict[str, Trajectory]) -> go.Figure:
    solid = next(iter(paths.values())).points.shape[2] == 3
    kind = "scene" if solid else "xy"
    figure = make_subplots(cols=len(paths), rows=1, subplot_titles=list(paths), specs=[[{"type": kind}] * len(paths)])
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
    for column, path in enumerate(paths.values(), start=1):
        for label in sorted(set(path.target.tolist())):
            # One line holds all points of a class. None interrupts the line between them.
            lines = [
                [value for trace in path.points[:, path.target == label, axis].T.tolist() for value in (*trace, None)]
                for axis in range(path.points.shape[2])
            ]
            ends = [path.points[-1, path.target == label, axis].tolist() for axis in range(path.points.shape[2])]
            colour = colours[label % len(colours)]
            shared = {"showlegend": column == 1, "legendgroup": str(label), "name": f"class {label}"}
            scatter = go.Scatter3d if solid else go.Scatter
            names = ("x", "y", "z")[: len(lines)]
            figure.add_trace(
                scatter(
                    **dict(zip(names, lines, strict=True)), mode="lines", line={"color": colour, "width": 1}, **shared
                ),
                row=1,
                col=column,
            )
            shared["showlegend"] = False
            figure.add_trace(
                scatter(
                    **dict(zip(names, ends, strict=True)), mode="markers", marker={"color": colour, "size": 4}, **shared
                ),
                row=1,
                col=column,
            )
        if not solid:  # both axes need the same unit, so that circles look like circles
            figure.update_yaxes(scaleanchor="x" if column == 1 else f"x{column}", col=column, row=1)
    return figure


def _alignment(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    for column in ("threshold", "by the paper's argument"):
        figure.add_bar(x=[row["loss"] for row in rows], y=[row[column] for row in rows], name=column)
    figure.update_yaxes(**LOG, title="loss below which logits are separated")
    return figure


def _bounds(rows: list[Row]) -> go.Figure:
    figure = go.Figure()
    for name in ("intra >=", "self-duality >=", "inter <=", "intra >= (proved)"):
        figure.add_scatter(
            x=[row["epsilon"] for row in rows], y=[row[name] for row in rows], name=name, mode="lines+markers"
        )
    figure.update_xaxes(**LOG, title="excess of the loss over its minimum")
    figure.update_yaxes(title="bound on the cosine (vacuous bounds are not drawn)")
    return figure


def _scaling(rows: list[Row]) -> go.Figure:
    figure = make_subplots(cols=2, rows=1, subplot_titles=("Small scales", "Large scales"))
    for column, regime in enumerate(("small", "large"), start=1):
        for loss in ("ce", "bce"):
            chosen = [row for row in rows if (row["regime"], row["loss"]) == (regime, loss)]
            figure.add_scatter(
                x=[row["scale"] for row in chosen],
                y=[row["steps"] for row in chosen],
                name=f"{loss}, {regime} scales",
                mode="lines+markers",
                col=column,
                row=1,
            )
    figure.update_xaxes(title="scale")
    figure.update_xaxes(**LOG, col=1, row=1)
    figure.update_yaxes(**LOG, title="steps to collapse")
    return figure


_FIGURES: dict[str, Callable[[Any], go.Figure]] = {
    "minima": _minima,
    "ufm": _ufm,
    "dynamics": _dynamics,
    "alignment": _alignment,
    "bounds": _bounds,
    "scaling": _scaling,
}
