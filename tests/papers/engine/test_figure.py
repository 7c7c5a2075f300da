"""Figures of artifacts: what is drawn of made-up observations."""

import dataclasses
import math

import pytest

from lastlayer.papers import Record, Store, figure
from lastlayer.papers.engine.artifact import parse

TEXT = """
[artifacts.table1]
where = "Table 1"
shows = "accuracy by tau"
columns = { accuracy = "test.accuracy%", "NC1" = "test.nc1" }
published = "made_up.csv"
figure = { x = "tau", y = ["accuracy"], log = "x" }
axes.loss."CE" = { "loss.name" = "ce" }
axes.loss."SLN" = { "loss.name" = "sln" }
axes.tau."0.1" = {}
axes.tau."1.0" = {}
"""
PRINTED = "loss,tau,column,value,std\nCE,0.1,accuracy,90.5,0.2\nKD,,accuracy,92.0,\n"


@pytest.fixture
def case(tmp_path):
    (tmp_path / "made_up.csv").write_text(PRINTED)
    store = Store(tmp_path)
    labels = {"loss": "CE", "tau": "0.1"}
    rows = [
        Record(labels, seed, epoch, {"test.accuracy": 0.9 + seed / 100, "test.nc1": 10.0**-epoch})
        for seed in range(3)
        for epoch in (0, 5)
    ]
    chance = Record({"loss": "SLN", "tau": "1.0"}, 0, 5, {"test.accuracy": 0.5}, "chance")
    store.add("sln.table1", "paper", [*rows, chance])
    text = TEXT.replace("made_up.csv", str(tmp_path / "made_up.csv"))
    return parse("sln", text)["sln.table1"], store.read("sln.table1", "paper")


def test_the_figure_has_a_line_for_each_loss_and_one_for_the_paper(case):
    one, observed = case
    chart = figure(one, observed)
    assert [(trace.name, list(trace.x)) for trace in chart.data] == [("CE", [0.1]), ("CE, published", [0.1])]
    assert chart.data[0].y[0] == pytest.approx(91.0)
    assert chart.layout.xaxis.type == "log"


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_ticks_of_a_log_axis_are_whole_numbers(case, log):
    """Where an axis in logarithms has no format of its own, Plotly writes 3 for 0.3 and for 30."""
    one = dataclasses.replace(case[0], figure={"x": "tau", "log": log})
    layout = figure(one, case[1]).layout
    for name, axis in (("x", layout.xaxis), ("y", layout.yaxis)):
        assert (axis.type, axis.tickformat) == (("log", "~g") if name in log else ("linear", None))


def test_no_figure_without_runs(case):
    one, observed = case
    assert figure(one, type(observed)(observed.artifact, observed.size, ())) is None


def test_panels_have_a_column_in_logarithms_on_the_right(case):
    wanted = {"x": "epoch", "y": ["accuracy"], "range": [0, 100], "right": "NC1"}
    chart = figure(dataclasses.replace(case[0], figure=wanted), case[1])
    assert [title.text for title in chart.layout.annotations] == ["CE, 0.1"]
    assert [(trace.name, list(trace.x), trace.yaxis) for trace in chart.data] == [
        ("accuracy", [0, 5], "y"),
        ("NC1", [0, 5], "y2"),
    ]
    assert list(chart.data[0].y) == pytest.approx([90.0, 90.0])  # of seed 0
    assert (chart.layout.yaxis2.type, tuple(chart.layout.yaxis2.range)) == ("log", (-5.0, 0.0))


def test_maps_have_one_panel_per_column_and_label_and_gaps_for_what_was_not_run(case):
    wanted = {"maps": "loss", "x": "tau", "y": "tau", "powers": ["NC1"]}
    chart = figure(dataclasses.replace(case[0], figure=wanted), case[1])
    titles = [title.text for title in chart.layout.annotations]
    assert titles == ["CE, accuracy", "SLN, accuracy", "CE, log10 NC1", "SLN, log10 NC1"]
    assert chart.data[0].z[0][0] == pytest.approx(91.0)
    assert chart.data[2].z[0][0] == pytest.approx(-5.0)
    assert math.isnan(chart.data[1].z[0][0])
