"""Figures of paper 000 that are not line charts: Figure 1, and the dynamics of Figures 2 to 5 as an animation."""

from typing import Any

from lastlayer.papers.engine.store import Observations
from lastlayer.papers.sln.theory import LOGIT_DIFFERENCES, TOY_LOSSES, toy
from lastlayer.reports.pictures import COLOURS, new_figure

FRAMES = 41


def fig1(observations: Observations) -> Any:
    """Test accuracy against the logit difference, with one panel per gamma and one colour per network."""
    title = "sln.fig1: accuracy against the normalised logit difference"
    chart = new_figure(title, [f"gamma {gamma}" for gamma in LOGIT_DIFFERENCES], shared_yaxes=True)
    names = observations.points("model")
    for place, name in enumerate(names):
        rows = [row for row in observations.final() if row.labels["model"] == name]
        for column, measure in enumerate(LOGIT_DIFFERENCES.values(), 1):
            chart.add_scatter(
                x=[row.values[f"test.{measure}"] for row in rows],
                y=[100 * row.values["test.accuracy"] for row in rows],
                mode="markers",
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                marker={"color": f"hsl({360 * place // len(names)}, 60%, 45%)"},
                row=1,
                col=column,
            )
    # one title for all panels: three would overlap
    chart.update_xaxes(title="logit difference, mean over test samples", col=2)
    chart.update_yaxes(title="test accuracy, %", col=1)
    return chart


def dynamics(observations: Observations) -> Any:
    """The points of seed 0 moving under the three losses with fixed weights, at the largest tau and for all steps run.

    It opens at the last frame, which is also what a still picture shows. Play starts it from the beginning. Positions
    are computed again, because observations do not hold them. The dashed line is f1 = f2, the dotted one f1 + f2 = 0.
    They cross at the centre x*.
    """
    from plotly.graph_objects import Frame, Scatter

    taus = [float(tau) for tau in observations.points("tau") if tau != "-"]
    steps = max(row.epoch for row in observations.rows)
    paths = [
        toy(loss, max(taus), [0], trained=False, points=100, steps=steps, snapshots=FRAMES)[0] for loss in TOY_LOSSES
    ]
    reach = max(float(path.points.abs().max()) for path in paths) * 1.05

    def clouds(moment: int) -> list[Any]:
        return [
            Scatter(
                x=path.points[moment, path.target == label, 0].tolist(),
                y=path.points[moment, path.target == label, 1].tolist(),
                mode="markers",
                marker={"color": COLOURS[label], "size": 5},
                name=f"class {label + 1}",
                showlegend=path is paths[0],
            )
            for path in paths
            for label in (0, 1)
        ]

    chart = new_figure("sln.dynamics: free points under CE, LN and SLN", TOY_LOSSES)
    for place, trace in enumerate(clouds(FRAMES - 1)):
        chart.add_trace(trace, 1, place // 2 + 1)
    for column, path in enumerate(paths, 1):
        for sign, dash in ((-1.0, "dash"), (1.0, "dot")):
            normal = path.weight[0, 0] + sign * path.weight[0, 1]  # of the line f1 = f2, or f1 + f2 = 0
            along = (reach / float(normal.norm())) * normal
            x, y = float(along[1]), -float(along[0])
            line = {"dash": dash, "color": "#999", "width": 1}
            chart.add_scatter(x=[-x, x], y=[-y, y], mode="lines", line=line, showlegend=False, row=1, col=column)
    places = list(range(2 * len(paths)))
    moments = [str(int(step)) for step in paths[0].steps]
    chart.frames = [Frame(data=clouds(t), traces=places, name=name) for t, name in enumerate(moments)]
    chart.update_xaxes(range=[-reach, reach])
    chart.update_yaxes(range=[-reach, reach], scaleanchor="x")
    chart.update_xaxes(title="first entry of a point")
    chart.update_yaxes(title="second entry of a point", col=1)
    played = {"frame": {"duration": 120}, "fromcurrent": False}
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    slides = [{"label": name, "method": "animate", "args": [[name], at_once]} for name in moments]
    chart.update_layout(
        updatemenus=[{"type": "buttons", "buttons": [{"label": "play", "method": "animate", "args": [None, played]}]}],
        sliders=[{"active": FRAMES - 1, "currentvalue": {"prefix": "step "}, "steps": slides}],
    )
    return chart
