"""The page of `lastlayer measure --plot`: curves, class-mean cosines, true and false logits. Holds plotly itself."""

from collections.abc import Sequence

import plotly.graph_objects as go
import torch
from torch import Tensor

from lastlayer import geometry
from lastlayer.cli._output import html_page
from lastlayer.measures import MEASURES, linear_logits
from lastlayer.reports.pictures import LOG

_CURVES = ("nc1", "nc2", "nc3")
_MOST_CLASSES = 500  # a larger matrix is megabytes of page that no screen shows
_BINS = 120


def page(names: Sequence[str], values: Sequence[dict[str, float]], last: dict[str, Tensor]) -> str:
    """One self-contained HTML page.

    Args:
        names: of the snapshots, in order.
        values: their measures.
        last: the arrays of the last snapshot, which the cosines and logits are shown of.
    """
    figures = [_curves(names, values)] if len(names) > 1 else []
    figures.append(_cosines(last["features"], last["target"]))
    logits = last.get("logits")
    if logits is None and "weight" in last:
        logits = linear_logits(last["features"], last["weight"], last.get("bias"))
    if logits is not None:
        figures.append(_logits(logits, last["target"]))
    return html_page(f"lastlayer measure: {names[-1]}", figures)


def _curves(names: Sequence[str], values: Sequence[dict[str, float]]) -> go.Figure:
    figure = go.Figure()
    for name in _CURVES:
        if all(name in each for each in values):
            figure.add_scatter(
                x=list(names), y=[each[name] for each in values], name=MEASURES[name].title, mode="lines+markers"
            )
    figure.update_layout(
        title="Neural collapse over snapshots", xaxis={"title": "snapshot", "type": "category"}, template="plotly_white"
    )
    figure.update_yaxes(**LOG, title="lower is more collapsed")
    return figure


def _cosines(features: Tensor, target: Tensor) -> go.Figure:
    classes = sorted(set(target.tolist()))[:_MOST_CLASSES]
    inter = geometry.cosine_collapse(features, target).inter[: len(classes), : len(classes)]
    labels = [str(k) for k in classes]
    title = "Mean cosine of centred features, class by class"
    if len(classes) == _MOST_CLASSES:
        title += f" (first {_MOST_CLASSES} classes)"
    figure = go.Figure(
        go.Heatmap(z=inter.float().numpy(), x=labels, y=labels, zmin=-1, zmax=1, colorscale="RdBu", reversescale=True)
    )
    figure.update_layout(title=title, template="plotly_white", height=600, width=700)
    figure.update_xaxes(title="class", type="category")
    figure.update_yaxes(title="class", type="category", autorange="reversed")
    return figure


def _logits(logits: Tensor, target: Tensor) -> go.Figure:
    """Shares by bin rather than the logits themselves, so that the page stays small."""
    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, target.long()[:, None], True)
    true, false = logits[own].double(), logits[~own].double()
    finite = logits[logits.isfinite()].double()
    low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = torch.linspace(low, high, _BINS + 1, dtype=torch.float64)
    figure = go.Figure()
    for name, values, colour in (("false logits", false, "#d62728"), ("true logits", true, "#1f77b4")):
        inside = values[values.isfinite()]
        share = torch.histc(inside, bins=_BINS, min=low, max=high) / max(len(values), 1)
        figure.add_bar(
            x=((edges[1:] + edges[:-1]) / 2).numpy(),
            y=share.numpy(),
            width=(high - low) / _BINS,
            name=name,
            marker_color=colour,
            opacity=0.6,
        )
    figure.update_layout(
        title="True and false logits", barmode="overlay", bargap=0, template="plotly_white", xaxis_title="logit"
    )
    figure.update_yaxes(title="share of its kind")
    return figure
