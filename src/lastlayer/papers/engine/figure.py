"""The chart of an artifact, as a Plotly figure: lines over an axis or over epochs, or what the paper's module draws."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from lastlayer.papers.engine.artifact import Artifact, code_of
from lastlayer.papers.engine.store import Observations, read_spec
from lastlayer.papers.engine.table import Printed, published
from lastlayer.reports.pictures import LINEAR, LOG
from lastlayer.reports.statistics import spread

TITLE_WIDTH = 80  # characters that a laptop shows
COLOURS = ("#3366cc", "#e07b39", "#2a9d6f", "#c8385a", "#7a5bd0", "#a87c0c", "#3aa6b9", "#8c564b", "#d45fa6", "#6b7280")
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot")


def figure(artifact: Artifact, observations: Observations) -> Any:
    """The Plotly figure of an artifact; None where it has none or nothing was run.

    A line for each column and each combination of the labels other than x: the mean over seeds with its standard
    deviation. A combination has one colour, a column one kind of line; what the paper prints is dotted.
    """
    if artifact.figure is None or not any(row.status == "done" for row in observations.rows):
        return None
    if code := artifact.figure.get("code"):
        return code_of(artifact, str(code), "figures")(observations)
    return _line_chart(artifact, observations, artifact.figure)


def _line_chart(artifact: Artifact, observations: Observations, wanted: Mapping[str, Any]) -> Any:
    from plotly.graph_objects import Figure, Scatter

    x = str(wanted["x"])
    chart = Figure()
    titles = list(wanted.get("y", artifact.columns))
    colours: dict[tuple[str, ...], str] = {}

    def colour(name: tuple[str, ...]) -> str:
        return colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])

    for number, title in enumerate(titles):
        for name, points in _series(artifact, observations, title, x).items():
            places = sorted(points)
            means, stds = zip(*(spread(points[place]) for place in places), strict=True)
            shown = [0.0 if std != std else std for std in stds]
            label = ", ".join([*([title] if len(titles) > 1 else []), *name])
            chart.add_trace(
                Scatter(
                    x=places,
                    y=means,
                    error_y={"array": shown, "visible": any(shown)},
                    name=label,
                    mode="lines+markers" if len(places) < 40 else "lines",
                    line={"color": colour(name), "dash": DASHES[number % len(DASHES)]},
                )
            )
        for name, printed in _printed(artifact, title, x).items():
            places = sorted(printed)
            chart.add_trace(
                Scatter(
                    x=places,
                    y=[printed[place] for place in places],
                    name=", ".join([*name, "published"]),
                    mode="lines+markers",
                    line={"color": colour(name), "dash": "dot"},
                )
            )
    log = str(wanted.get("log", ""))
    chart.update_xaxes(title=x, **(LOG if "x" in log else LINEAR))
    chart.update_yaxes(title=titles[0] if len(titles) == 1 else "", **(LOG if "y" in log else LINEAR))
    title = textwrap.wrap(f"{artifact.name}: {artifact.shows}", TITLE_WIDTH)
    chart.update_layout(title="<br>".join(title), template="plotly_white")
    return chart


def named(axis: str, label: str) -> str:
    """A label as a legend shows it; a number comes with the name of its axis."""
    return f"{axis} {label}" if label.replace(".", "").replace("-", "").replace("e", "").isdigit() else label


def _series(
    artifact: Artifact, observations: Observations, title: str, x: str
) -> dict[tuple[str, ...], dict[float, list[float]]]:
    rows = [row for row in observations.rows if row.status == "done"] if x == "epoch" else observations.final()
    found: dict[tuple[str, ...], dict[float, list[float]]] = {}
    for row in rows:
        place = float(row.epoch) if x == "epoch" else float(row.labels[x])
        value = read_spec(artifact.columns[title], row.values)
        if value == value:
            name = tuple(named(axis, label) for axis, label in row.labels.items() if axis != x)
            found.setdefault(name, {}).setdefault(place, []).append(value)
    return found


def _printed(artifact: Artifact, title: str, x: str) -> dict[tuple[str, ...], dict[float, float]]:
    found: dict[tuple[str, ...], dict[float, float]] = {}
    numbers: list[Printed] = [one for one in published(artifact) if one.column == title and one.labels.get(x)]
    for one in numbers:
        name = tuple(named(axis, label) for axis, label in one.labels.items() if axis != x)
        found.setdefault(name, {})[float(one.labels[x])] = one.value
    return found
