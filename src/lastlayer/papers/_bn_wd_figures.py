"""Collapse and training loss during training, on two axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastlayer.papers._observations import Observations
from lastlayer.papers._table import Printed

LINES = (("train.intra_min", "min intra", False), ("train.inter_max", "max inter", False), ("train.nll", "loss", True))


def figure_during(observations: Observations, published: Sequence[Printed]) -> Any:
    """A panel for each combination of labels: cosines on the left axis, the training loss in logarithms on the right.

    The first seed of each is shown.
    """
    from plotly.graph_objects import Scatter
    from plotly.subplots import make_subplots

    runs = {tuple(row.labels.values()): row for row in reversed(observations.final())}
    names = list(reversed(runs))
    chart = make_subplots(cols=len(names), subplot_titles=[", ".join(name) for name in names],
                          specs=[[{"secondary_y": True}] * len(names)])  # fmt: skip
    for column, name in enumerate(names, start=1):
        for (measure, title, right), colour in zip(LINES, ("#2a7", "#b62", "#86c"), strict=True):
            curve = observations.curve(measure, runs[name].seed, **runs[name].labels)
            trace = Scatter(
                x=list(curve),
                y=list(curve.values()),
                name=title,
                line={"color": colour, "dash": "dash" if right else "solid"},
                showlegend=column == 1,
            )
            chart.add_trace(trace, row=1, col=column, secondary_y=right)
    chart.update_yaxes(type="log", secondary_y=True)
    chart.update_xaxes(title="epoch")
    chart.update_layout(title=f"{observations.artifact}: collapse and training loss", template="plotly_white")
    return chart
