"""Tables: ours beside the published number, nothing dropped."""

import math

import pytest

from lastlayer.papers import Record, Store, lines, published
from lastlayer.papers.engine.artifact import parse

TEXT = """
[artifacts.table1]
where = "Table 1"
shows = "accuracy by tau"
columns = { accuracy = "test.accuracy%" }
published = "made_up.csv"
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
    rows = [Record({"loss": "CE", "tau": "0.1"}, seed, 5, {"test.accuracy": 0.9 + seed / 100}) for seed in range(3)]
    store.add(
        "sln.table1",
        "paper",
        [*rows, Record({"loss": "SLN", "tau": "1.0"}, 0, 5, {"test.accuracy": 0.5}, "chance")],
    )
    text = TEXT.replace("made_up.csv", str(tmp_path / "made_up.csv"))
    return parse("sln", text)["sln.table1"], store.read("sln.table1", "paper")


def test_every_cell_and_every_published_number_has_a_line(case):
    one, observed = case
    table = lines(one, observed)
    assert [tuple(line.labels.values()) for line in table] == [
        ("CE", "0.1"), ("CE", "1.0"), ("SLN", "0.1"), ("SLN", "1.0"), ("KD", "")
    ]  # fmt: skip
    first = table[0].entries["accuracy"]
    assert (first.mean, first.std, first.count) == pytest.approx((91.0, 1.0, 3))
    assert (first.published, first.published_std, first.missing) == (90.5, 0.2, None)
    for line in table[1:4]:
        assert math.isnan(line.entries["accuracy"].mean)
        assert line.entries["accuracy"].published is None
    last = table[4].entries["accuracy"]
    assert (last.published, last.published_std, last.count) == (92.0, None, 0)


def test_a_place_without_a_number_says_why(tmp_path):
    one, store = parse("sln", TEXT.replace('published = "made_up.csv"', ""))["sln.table1"], Store(tmp_path)
    values = {("CE", "0.1"): ("done", {"test.accuracy": math.nan}), ("CE", "1.0"): ("done", {}),
              ("SLN", "0.1"): ("failed", {})}  # fmt: skip
    rows = [Record({"loss": loss, "tau": tau}, 0, 5, found, status) for (loss, tau), (status, found) in values.items()]
    store.add("sln.table1", "paper", rows)
    table = lines(one, store.read("sln.table1", "paper"))
    assert [line.entries["accuracy"].missing for line in table] == ["none", "none", "no result", "not run"]


def test_published_numbers_are_read(case):
    assert [number.value for number in published(case[0])] == [90.5, 92.0]
