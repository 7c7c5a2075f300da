"""The chart of an artifact, as a Plotly figure: lines, panels or heat maps, or what the paper's figures.py draws."""

import math
from collections.abc import Mapping
from typing import Any

from lastlayer.papers.engine.artifact import Artifact, code_of
from lastlayer.papers.engine.store import NotRunError, Observations, read_spec
from lastlayer.papers.engine.table import published
from lastlayer.reports.pictures import COLOURS, DASHES, LINEAR, LOG, new_figure
from lastlayer.reports.statistics import spread

PANELS = 3  # in one row


def figure(artifact: Artifact, observations: Observations) -> Any:
    """The Plotly figure of an artifact; None if it has none or nothing was run."""
    wanted = artifact.figure
    if wanted is None or not any(row.status == "done" for row in observations.rows):
        return None
    if code := wanted.get("code"):
        return code_of(artifact, str(code), "figures")(observations)
    draw = _maps if "maps" in wanted else _panels if "right" in wanted else _lines
    return draw(artifact, observations, wanted)


def _lines(artifact: Artifact, observations: Observations, wanted: Mapping[str, Any]) -> Any:
    """A line per column and combination of the labels other than x: the mean over seeds and its standard deviation.

    A combination has one colour, a column one kind of line. What the paper prints is dotted.
    """
    x = str(wanted["x"])
    chart = new_figure(_title(artifact))
    titles = list(wanted.get("y", artifact.columns))
    colours: dict[tuple[str, ...], str] = {}

    def colour(name: tuple[str, ...]) -> str:
        return colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])

    for number, title in enumerate(titles):
        for name, points in _series(artifact, observations, title, x).items():
            places = sorted(points)
            means, stds = zip(*(spread(points[place]) for place in places), strict=True)
            shown = [0.0 if math.isnan(std) else std for std in stds]
            chart.add_scatter(
                x=places,
                y=means,
                error_y={"array": shown, "visible": any(shown)},
                name=", ".join([*([title] if len(titles) > 1 else []), *name]),
                mode="lines+markers" if len(places) < 40 else "lines",
                line={"color": colour(name), "dash": DASHES[number % len(DASHES)]},
            )
        for name, printed in _printed(artifact, title, x).items():
            places = sorted(printed)
            chart.add_scatter(
                x=places,
                y=[printed[place] for place in places],
                name=", ".join([*name, "published"]),
                mode="lines+markers",
                line={"color": colour(name), "dash": "dot"},
            )
    log = str(wanted.get("log", ""))
    chart.update_xaxes(title=x, **(LOG if "x" in log else LINEAR))
    chart.update_yaxes(title=" and ".join(titles) if len(titles) < 4 else "value", **(LOG if "y" in log else LINEAR))
    return chart


def _title(artifact: Artifact) -> str:
    return f"{artifact.name}: {artifact.shows}"


def named(labels: Mapping[str, str], x: str) -> tuple[str, ...]:
    """The labels other than that of x as a legend shows them. A number comes with the name of its axis."""
    return tuple(
        f"{axis} {label}" if label.replace(".", "").replace("-", "").replace("e", "").isdigit() else label
        for axis, label in labels.items()
        if axis != x
    )


def _series(
    artifact: Artifact, observations: Observations, title: str, x: str
) -> dict[tuple[str, ...], dict[float, list[float]]]:
    rows = [row for row in observations.rows if row.status == "done"] if x == "epoch" else observations.final()
    found: dict[tuple[str, ...], dict[float, list[float]]] = {}
    for row in rows:
        place = float(row.epoch) if x == "epoch" else float(row.labels[x])
        value = read_spec(artifact.columns[title], row.values)
        if not math.isnan(value):
            found.setdefault(named(row.labels, x), {}).setdefault(place, []).append(value)
    return found


def _printed(artifact: Artifact, title: str, x: str) -> dict[tuple[str, ...], dict[float, float]]:
    found: dict[tuple[str, ...], dict[float, float]] = {}
    for one in published(artifact):
        if one.column == title and one.labels.get(x):
            found.setdefault(named(one.labels, x), {})[float(one.labels[x])] = one.value
    return found


def _panels(artifact: Artifact, observations: Observations, wanted: Mapping[str, Any]) -> Any:
    """A panel per combination of labels, with lines over epochs: y on the left axis, right on the right, in logarithms.

    The first seed of each is shown. All panels have the same axes, except the epochs if some train for fewer.
    """
    runs = {tuple(row.labels.values()): row for row in reversed(observations.final())}
    names = list(reversed(runs))
    rows = -(-len(names) // PANELS)
    columns = -(-len(names) // rows)
    specs = [[{"secondary_y": True}] * columns] * rows
    panels = [", ".join(name) for name in names]
    chart = new_figure(_title(artifact), panels, rows, specs=specs, horizontal_spacing=0.06, vertical_spacing=0.2)
    powers: list[float] = []
    for place, name in enumerate(names):
        row, column = place // columns + 1, place % columns + 1
        for title, colour in zip((*wanted["y"], wanted["right"]), COLOURS, strict=False):
            right = title == wanted["right"]
            curve = observations.curve(artifact.columns[title], runs[name].seed, **runs[name].labels)
            powers += [math.log10(value) for value in curve.values() if value > 0] if right else []
            line = {"color": colour, "dash": "dash" if right else "solid"}
            points = {"x": list(curve), "y": list(curve.values()), "name": title, "line": line}
            chart.add_scatter(**points, showlegend=place == 0, row=row, col=column, secondary_y=right)
        chart.update_yaxes(showticklabels=column == 1, row=row, col=column, secondary_y=False)
        last = column == columns or place == len(names) - 1
        chart.update_yaxes(showticklabels=last, row=row, col=column, secondary_y=True)
    powers = powers or [0.0]
    chart.update_yaxes(range=wanted["range"], secondary_y=False)
    chart.update_yaxes(type="log", range=[min(powers), max(powers)], dtick=1, showgrid=False, secondary_y=True)
    chart.update_xaxes(title="epoch", row=rows)
    chart.update_annotations(font_size=12)
    return chart


def _maps(artifact: Artifact, observations: Observations, wanted: Mapping[str, Any]) -> Any:
    """A heat map per column and label of the axis `maps`: y downwards, x to the right, means over seeds."""
    axes = (wanted["maps"], wanted["x"], wanted["y"])
    labels, across, down = (observations.points(axis) for axis in axes)

    def mean(spec: str, *at: str) -> float:
        try:
            rows = observations.final(**dict(zip(axes, at, strict=True)))
        except NotRunError:
            return math.nan
        return sum(read_spec(spec, row.values) for row in rows) / len(rows)

    columns = artifact.columns
    panels = [f"{label}, {'log10 ' * (title in wanted['powers'])}{title}" for title in columns for label in labels]
    chart = new_figure(_title(artifact), panels, len(columns))
    for row, (title, spec) in enumerate(columns.items(), start=1):
        axis = f"coloraxis{row if row > 1 else ''}"
        for column, label in enumerate(labels, start=1):
            height = [[mean(spec, label, x, y) for x in across] for y in down]
            if title in wanted["powers"]:
                height = [[math.log10(value) if value > 0 else math.nan for value in line] for line in height]
            shown = {"texttemplate": "%{z:.3g}", "coloraxis": axis}
            chart.add_heatmap(x=across, y=down, z=height, **shown, row=row, col=column)
        # the bar of each row of maps stands beside it
        place = {"len": 0.9 / len(columns), "y": 1 - (row - 0.5) / len(columns)}
        chart.update_layout({axis: {"colorscale": "Viridis", "colorbar": place}})
    chart.update_xaxes(type="category", title=wanted["x"])
    chart.update_yaxes(type="category")
    chart.update_yaxes(title=wanted["y"], col=1)  # beside the other maps it would lie on the map to the left
    return chart
