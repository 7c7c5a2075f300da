"""What `lastlayer theory` prints and draws: JSON, tables, pictures that open without a network, and a progress bar."""

import json
import math

import pytest

from lastlayer.cli.theory_output import show, tracked
from tests.cli.test_theory import QUICK, run

TABLES = {
    "rows": [
        {"name": "a", "value": math.inf, "done": True, "parts": ["x", "y"]},
        dict.fromkeys(("name", "value", "done", "parts")),
    ]
}


def test_json_has_null_for_what_is_no_number(capsys) -> None:
    show(TABLES, True, titles={})
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first == {"name": "a", "value": None, "done": True, "parts": ["x", "y"]}
    assert set(second.values()) == {None}


def test_a_table_in_words(capsys) -> None:
    show(TABLES, False, titles={"rows": "A title"}, absent="vacuous")
    printed = capsys.readouterr().out
    for word in ("A title", "inf", "yes", "x, y", "vacuous"):
        assert word in printed


def test_without_a_terminal_there_is_no_bar(capsys) -> None:
    assert list(tracked([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("command", "what"), [("dynamics", "moving points"), ("scaling", "collapsing")])
def test_commands_of_seconds_show_progress_in_a_terminal_alone(command: str, what: str, monkeypatch) -> None:
    assert run(command, *QUICK[command]).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes it for a terminal
    assert what in run(command, *QUICK[command]).stderr


@pytest.mark.parametrize("command", QUICK)
def test_every_command_prints_tables_and_draws_a_picture(command: str, tmp_path) -> None:
    picture = tmp_path / "picture.html"
    result = run(command, *QUICK[command], "--plot", picture)
    assert "│" in result.stdout
    assert "…" not in result.stdout  # nothing is cut in a terminal of 80 columns
    text = picture.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "Plotly.newPlot" in text
    assert 'src="http' not in text  # plotly itself is in the page
    drawn = text[text.rindex("Plotly.newPlot(") :]
    assert drawn.count('"type":"log"') == drawn.count('"tickformat":"~g"')  # else 0.3 is labelled 3


def test_a_picture_in_three_dimensions(tmp_path) -> None:
    solid = tmp_path / "solid.html"
    run("dynamics", "--steps", 5, "-d", 3, "--plot", solid)
    assert "scatter3d" in solid.read_text(encoding="utf-8")
