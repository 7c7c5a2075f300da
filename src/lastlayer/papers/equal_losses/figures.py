"""Heat maps over width and length of training."""

from __future__ import annotations

import math
from typing import Any

from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.store import NotRunError, Observations, read_spec


def heat_maps(observations: Observations) -> Any:
    """A map for each loss and column: width downwards, length to the right, means over seeds; NC1 in powers of ten."""
    from plotly.graph_objects import Heatmap
    from plotly.subplots import make_subplots

    columns = artifact(observations.artifact).columns
    losses, widths, lengths = (observations.points(axis) for axis in ("loss", "width", "epochs"))
    titles = [f"{loss}, {'log10 ' if title == 'NC1' else ''}{title}" for title in columns for loss in losses]
    chart = make_subplots(rows=len(columns), cols=len(losses), subplot_titles=titles)
    for row, (title, spec) in enumerate(columns.items(), start=1):
        axis = "coloraxis" if row == 1 else f"coloraxis{row}"
        for column, loss in enumerate(losses, start=1):
            height = [[_mean(observations, spec, loss, width, length) for length in lengths] for width in widths]
            if title == "NC1":
                height = [[math.log10(value) if value > 0 else math.nan for value in line] for line in height]
            trace = Heatmap(x=lengths, y=widths, z=height, texttemplate="%{z:.3g}", coloraxis=axis)
            chart.add_trace(trace, row=row, col=column)
        # the bar of each row of maps stands beside it
        place = {"len": 0.9 / len(columns), "y": 1 - (row - 0.5) / len(columns)}
        chart.update_layout({axis: {"colorscale": "Viridis", "colorbar": place}})
    chart.update_xaxes(type="category", title="epochs")
    chart.update_yaxes(type="category")
    chart.update_yaxes(title="width", col=1)  # beside the other maps it would lie on the map to the left
    chart.update_layout(title=f"{observations.artifact}: by width and length", template="plotly_white")
    return chart


def _mean(observations: Observations, spec: str, loss: str, width: str, length: str) -> float:
    try:
        rows = observations.final(loss=loss, width=width, epochs=length)
    except NotRunError:
        return math.nan
    return sum(read_spec(spec, row.values) for row in rows) / len(rows)
