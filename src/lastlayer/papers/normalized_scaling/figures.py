"""Figures of the paper on normalized spaces: scores and biases beside the theory's lines, and fits of the times."""

import math
from collections.abc import Sequence
from typing import Any

from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.figure import named
from lastlayer.papers.engine.store import Observations, Record
from lastlayer.papers.normalized_scaling.theory import CLASSES, means, network_times, sphere_times
from lastlayer.reports.pictures import LINEAR, LOG, new_figure
from lastlayer.theory.minima import normalized_binary_cross_entropy
from lastlayer.theory.scaling import fit_exponential, fit_inverse

SCALE = 8.0  # where an artifact has no axis of scales
QUANTITIES = {  # mean, its sign, spread, colour
    "s+": ("train.positive_mean", 1, "train.positive_std", "firebrick"),
    "s-": ("train.negative_mean", 1, "train.negative_std", "steelblue"),
    "b": ("train.bias_mean", -1, "train.bias_std", "seagreen"),
}
CURVE_POINTS = 100


def scores(observations: Observations) -> Any:
    """Mean and spread over samples of both scores and of the biases, with one panel per arm.

    Lines are their values at collapse: gamma, -gamma/(K-1) and, for BCE, b*.
    """
    figure = artifact(observations.artifact).figure or {}
    x = str(figure["x"])
    panels: dict[str, list[Record]] = {}
    for row in observations.final():
        panels.setdefault(", ".join(named(row.labels, x)), []).append(row)
    rows = math.ceil(len(panels) / 2)
    title = f"{observations.artifact}: points and bars over training samples, lines at collapse"
    chart = new_figure(title, list(panels), rows, vertical_spacing=0.25 / rows)
    for number, (title, found) in enumerate(panels.items()):
        where = {"row": number // 2 + 1, "col": number % 2 + 1}
        for quantity, (mean, sign, spread, colour) in QUANTITIES.items():
            chart.add_scatter(
                x=[float(row.labels[x]) for row in found],
                y=[sign * row.values.get(mean, math.nan) for row in found],
                error_y={"array": [row.values.get(spread, math.nan) for row in found]},
                mode="markers",
                marker={"color": colour},
                name=quantity,
                showlegend=number == 0,
                **where,
            )
            at_collapse = {"mode": "lines", "line": {"color": colour}, "showlegend": False, "name": title}
            places, line = _at_collapse(found, x, quantity)
            if line:
                chart.add_scatter(x=places, y=line, **at_collapse, **where)
    chart.update_xaxes(**(LOG if x == "gamma" else LINEAR))
    chart.update_xaxes(title=x, row=rows)
    chart.update_layout(height=320 * rows)
    return chart


def _at_collapse(rows: Sequence[Record], x: str, quantity: str) -> tuple[list[float], list[float]]:
    places = sorted({float(row.labels[x]) for row in rows})
    scales = places if x == "gamma" else [float(rows[0].labels.get("gamma", SCALE))] * len(places)
    if quantity == "s+":
        return places, scales
    if quantity == "s-":
        return places, [-scale / (CLASSES - 1) for scale in scales]
    if rows[0].labels["loss"] == "CE":  # any common bias is a minimum
        return places, []
    return places, [normalized_binary_cross_entropy(CLASSES, scale).bias for scale in scales]


def fits(observations: Observations) -> Any:
    """Times until collapse by scale with the fits a/gamma + c of small scales and a exp(k gamma) + c of large ones."""
    chart = new_figure(f"{observations.artifact}: times until collapse")
    units = []
    on_sphere = "sphere.time" in observations.rows[0].values
    for small in (True, False):
        found = (sphere_times if on_sphere else network_times)(observations, small=small)
        if found is None:
            continue
        units.append(found.unit)
        for (loss, times), colour in zip(found.times.items(), ("firebrick", "steelblue"), strict=True):
            points = [(scale, time) for scale, seeds in times.items() for time in seeds]
            x, y = [scale for scale, _ in points], [time for _, time in points]
            name = f"{loss}, {found.unit}"
            marker = {"color": colour}
            chart.add_scatter(x=x, y=y, mode="markers", marker=marker, name=name, showlegend=len(units) == 1)
            if len(times) < 3:
                continue
            fit = (fit_inverse if small else fit_exponential)(*means(times))
            low, high = min(x), max(x)
            places = [low * (high / low) ** (step / CURVE_POINTS) for step in range(CURVE_POINTS + 1)]
            formula = f"{fit.a:.3g}/g {fit.c:+.3g}" if small else f"{fit.a:.3g} exp({fit.b:.2f} g) {fit.c:+.3g}"
            curve = [fit(at) if fit(at) >= min(y) / 2 else None for at in places]
            chart.add_scatter(x=places, y=curve, mode="lines", line={"color": colour}, name=f"{loss}: {formula}")
    chart.update_xaxes(title="gamma", **LOG)
    chart.update_yaxes(title=" and ".join(dict.fromkeys(units)), **LOG)
    return chart
