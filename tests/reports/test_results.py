"""What the page says in words and tables: intervals on possible axes, plain names, and nothing of a run as code."""

import html.parser
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastlayer.measures import MEASURES
from lastlayer.reports import answers, load, summarise
from lastlayer.reports.classes import classes_of
from lastlayer.reports.evidence import Rows
from lastlayer.reports.results import (
    answer_cards,
    axis_range,
    class_tables,
    emphasised,
    interval_chart,
    is_geometry,
    measure_tables,
    round_numbers,
)

from . import factory
from .factory import trial

EVIL = "<script>window.hacked=1</script><img src=x onerror=alert(1)>&amp;'\""


class Text(html.parser.HTMLParser):
    """The text of a piece of HTML, and its tags."""

    def __init__(self, piece):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(piece)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.text += " "

    def handle_data(self, data):
        self.text += data


def test_a_card_per_goal_and_what_holds_for_all_of_them_once(tmp_path):
    target = torch.arange(40) % 2
    for loss, wrong in (("ce", 1), ("sln", 30)):
        for seed in range(3):
            decision = torch.where(torch.arange(40) < wrong, 1 - target, target)
            share = 1 - wrong / 40
            factory.done(
                tmp_path, trial(loss, seed), classes=("cat", "dog"), counts=(90, 10),
                rows=factory.rows(torch.nn.functional.one_hot(decision, 2).float(), target),
                test={"accuracy": share, "balanced_accuracy": share},
            )  # fmt: skip
    summary = summarise(load(tmp_path))
    found = answers(summary)
    assert [answer.goal.name for answer in found] == ["balanced", "accuracy"]
    text = " ".join(Text(answer_cards(found, summary)).text.split())
    assert text.count("Use ce ✓ shown to be best") == 2
    assert text.count("97.5 %") >= 2
    for sentence in {one for answer in found for one in answer.sentences}:
        assert text.count(" ".join(sentence.split())) == 1


def test_of_nothing_finished_nothing_is_recommended(tmp_path):
    factory.failed(tmp_path, trial())
    summary = summarise(load(tmp_path))
    assert Text(answer_cards(answers(summary), summary)).text == " All runs failed, so there is nothing to compare."
    assert "older" not in class_tables(None, finished=False)


def lefts(chart):
    return [float(value) for value in re.findall(r"left:([\d.]+)%", chart)]


def test_an_interval_chart_says_ends_order_and_standing():
    intervals = {"ce": (0.80, 0.85, 0.90), "sln": (0.90, 0.925, 0.95), "bce": (0.88, 0.91, 0.94)}
    chart = interval_chart(intervals, MEASURES["accuracy"], "sln", ["sln", "bce"])
    text = " ".join(Text(chart).text.split())
    for piece in ("92.5 % (90.0 to 95.0)", "91.0 % (88.0 to 94.0)", "85.0 % (80.0 to 90.0)", "recommended", "worse"):
        assert piece in text
    assert text.index("sln") < text.index("bce") < text.index("ce ", text.index("bce") + 3)
    assert "Accuracy on test, in %. Higher is better. Lines are 95 % intervals." in text
    assert all(0 <= left <= 100 for left in lefts(chart))


def test_lower_is_better_comes_first_and_numbers_without_bounds_are_no_percentages():
    text = Text(interval_chart({"ce": (0.5, 0.6, 0.7), "sln": (0.1, 0.2, 0.3)}, MEASURES["nll"], "sln", ["sln"])).text
    assert text.index("sln") < text.index("ce")
    assert "0.20" in text
    assert "%" not in text.replace("95 %", "")


def test_a_chart_without_intervals_is_empty_and_one_value_is_no_error():
    nothing = float("nan")
    assert interval_chart({"ce": (nothing, 0.5, nothing)}, MEASURES["accuracy"], "ce", []) == ""
    assert "100" in interval_chart({"ce": (1.0, 1.0, 1.0)}, MEASURES["accuracy"], "ce", ["ce"])


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.sampled_from([(0.0, 1.0), (0.0, float("inf")), (-1.0, 1.0), (-float("inf"), float("inf"))]),
)
def test_an_axis_holds_all_values_and_nothing_impossible(values, limits):
    low, high = axis_range(values, limits)
    assert limits[0] <= low <= min(values) <= max(values) <= high <= limits[1]
    assert low < high
    marks = round_numbers(low, high)
    assert all(low - 1e-9 <= at <= high + 1e-9 for at, _ in marks)
    assert [float(text) for _, text in marks] == pytest.approx([at for at, _ in marks])
    assert len(marks) <= 6


def test_labels_are_bold_where_they_are_words():
    assert emphasised("ce is ahead of ce-soft, once", ["ce", "ce-soft"]) == "<b>ce</b> is ahead of <b>ce-soft</b>, once"
    assert emphasised("a < b", []) == "a &lt; b"
    assert emphasised(f"{EVIL} wins", [EVIL]).count("<script") == 0


def test_tables_have_plain_names_and_a_part_for_geometry(tmp_path):
    for seed in range(2):
        factory.done(tmp_path, trial("ce", seed))
    summary = summarise(load(tmp_path))
    decided, geometry = (measure_tables(summary, "x", geometry=which) for which in (False, True))
    assert "single-logit precision at recall 0.90" in decided
    assert "In the papers: P@R90." in decided
    assert "spread within classes" in geometry
    assert "NC1" not in Text(geometry).text
    heads = re.findall(r'data-measure="(\w+)"', decided), re.findall(r'data-measure="(\w+)"', geometry)
    assert not set(heads[0]) & set(heads[1])
    assert set(heads[0]) | set(heads[1]) == {column.measure.name for column in summary.columns}


def test_geometry_needs_no_decision():
    assert all(is_geometry(MEASURES[name]) for name in ("nc1", "separability", "self_duality_mean", "gamma_norm"))
    assert not any(is_geometry(MEASURES[name]) for name in ("accuracy", "ece", "auroc", "nearest_mean", "few"))


def test_class_tables_say_each_number_and_are_text(tmp_path):
    names = (EVIL, "dog")
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    for loss, decision in (("ce", [0, 0, 0, 1, 1, 1]), ("sln", [0, 0, 1, 1, 1, 0])):
        rows = factory.rows(torch.nn.functional.one_hot(torch.tensor(decision), 2).float(), target)
        factory.done(tmp_path, trial(loss), classes=names, rows=rows, counts=(1400, 7))
    piece = class_tables(classes_of(summarise(load(tmp_path)), Rows()))
    text = " ".join(Text(piece).text.split())
    assert not {"script", "img"} & set(Text(piece).tags)
    for said in ("1,400", "75 % precision 100 %", "50 % precision 67 %", "100 % precision 67 %", "25 % 1 of 4"):
        assert said in text
    assert "test rows" in text


def test_old_runs_say_what_is_missing():
    assert "older version" in class_tables(None)
