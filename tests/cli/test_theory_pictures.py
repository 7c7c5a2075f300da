"""The pictures of `lastlayer theory ... --plot` open without a network, beside tables of which nothing is cut."""

import pytest

from tests.cli.test_theory import QUICK, run


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
