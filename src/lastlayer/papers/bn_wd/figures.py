"""Collapse and training loss during training, on two axes."""

from __future__ import annotations

import math
from typing import Any

from lastlayer.papers.engine.store import Observations

LINES = (("train.intra_min", "min intra", False), ("train.inter_max", "max inter", False), ("train.nll", "loss", True))
COLUMNS = 3


def during(observations: Observations) -> Any:
    """A panel for each combination of labels: cosines on the left axis, the training loss in logarithms on the right.

    The first seed of each is shown; all panels have the same axes, but for the epochs where some train for fewer.
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    runs = {tuple(row.labels.values()): row for row in reversed(observations.final())}
    names = list(reversed(runs))
    rows = -(-len(names) // COLUMNS)
    columns = -(-len(names) // rows)
    chart = make_subplots(
        rows,
        columns,
        subplot_titles=[", ".join(name) for name in names],
        specs=[[{"secondary_y": True}] * columns] * rows,
        horizontal_spacing=0.06,
        vertical_spacing=0.2,
    )
    losses: list[float] = []
    for place, name in enumerate(names):
        row, column = place // columns + 1, place % columns + 1
        for (measure, title, right), colour in zip(LINES, ("#2a7", "#b62", "#86c"), strict=True):
            curve = observations.curve(measure, runs[name].seed, **runs[name].labels)
            losses += curve.values() if right else []
            trace = Scatter(
                x=list(curve),
                y=list(curve.values()),
                name=title,
                line={"color": colour, "dash": "dash" if right else "solid"},
                showlegend=place == 0,
            )
            chart.add_trace(trace, row=row, col=column, secondary_y=right)
        chart.update_yaxes(showticklabels=column == 1, row=row, col=column, secondary_y=False)
        last = column == columns or place == len(names) - 1
        chart.update_yaxes(showticklabels=last, row=row, col=column, secondary_y=True)
    powers = [math.log10(loss) for loss in losses if loss > 0] or [0.0]
    chart.update_yaxes(range=[-0.45, 1.05], secondary_y=False)
    chart.update_yaxes(type="log", range=[min(powers), max(powers)], dtick=1, showgrid=False, secondary_y=True)
    chart.update_xaxes(title="epoch", row=rows)
    chart.update_annotations(font_size=12)
    chart.update_layout(title=f"{observations.artifact}: collapse and training loss", template="plotly_white")
    return chart
