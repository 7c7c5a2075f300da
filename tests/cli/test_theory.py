"""`lastlayer theory` as its user meets it: the numbers as JSON, and one line for every mistake."""

import json
import math

import pytest
from typer.testing import CliRunner

from lastlayer.cli.theory import theory

runner = CliRunner()


def run(*arguments: object, code: int = 0):
    result = runner.invoke(theory, [str(each) for each in arguments])
    assert result.exit_code == code, result.output
    return result


def tables(*arguments: object) -> dict:
    return json.loads(run(*arguments, "--json").stdout)


SCALES = ("--large", 2, "--large", 3, "--large", 4)
QUICK = {
    "minima": (),
    "ufm": ("-k", 3, "-n", 2, "--starts", 2),
    "dynamics": ("--steps", 30, "--points", 8),
    "alignment": (),
    "bounds": (),
    "scaling": ("-k", 3, "--small", 1, "--small", 2, *SCALES, "--starts", 1, "--tolerance", 0.05),
}


@pytest.mark.parametrize("command", QUICK)
def test_every_command_prints_json(command: str) -> None:
    found = tables(command, *QUICK[command])
    assert all(isinstance(rows, list) and rows for rows in found.values())


def test_minima_are_the_formulas() -> None:
    rows = tables("minima", "-k", 10, "--scale", 8)["spheres"]
    assert rows[0]["cross-entropy"] == pytest.approx(math.log1p(9 * math.exp(-80 / 9)), rel=1e-12)
    assert rows[0]["b* separates"] is True
    assert [row["loss"] for row in tables("minima", "--lambda-b", 0.1)["unconstrained"] if row["minimum"] is None] == [
        "mse"
    ]


def test_ufm_reports_the_certificate() -> None:
    found = tables("ufm", "-k", 3, "-n", 2, "--starts", 2)
    assert found["points"][0]["kind"] == "global minimum"
    assert abs(found["points"][0]["gap"]) < 1e-10
    assert {row["measure"] for row in found["geometry"]} >= {"nc1", "nc2", "nc3", "compactness"}
    uneven = tables("ufm", "-k", 2, "-n", 3, "-n", 1, "--starts", 2)
    assert uneven["points"][0]["closed form"] is None
    sphere = tables("ufm", "-k", 3, "-n", 1, "--scale", 4, "--loss", "bce", "--starts", 2)
    assert sphere["points"][0]["kind"] == "global minimum"


def test_vacuous_bounds_are_never_numbers() -> None:
    rows = tables("bounds", "-k", 10, "--alpha-beta", 10, "--epsilon", 1e-3)["bounds"]
    assert rows[0]["vacuous"] == ["intra", "self_duality", "inter"]
    assert rows[0]["intra >="] is None
    assert "vacuous" in run("bounds", "-k", 10, "--alpha-beta", 10, "--epsilon", 1e-3).stdout
    assert tables("bounds", "--lam", 0.2, "--epsilon", 1e-12)["bounds"][0]["intra >="] > 0.9
    # the proved bound holds for fewer classes than the printed ones
    assert "for 90% of them (proved: 80%)" in " ".join(run("bounds", "--delta", 0.1).stdout.split())


def test_dynamics_of_any_loss_and_three_dimensions() -> None:
    rows = tables("dynamics", "--loss", "bce", "--loss", "sln", "--steps", 20, "-d", 3, "-k", 3)["losses"]
    assert [row["loss"] for row in rows] == ["bce", "sln"]
    assert all(row["end"] < row["start"] for row in rows)
    rows = tables("dynamics", "--loss", "large-margin", "--loss", "logit-adjusted", "--steps", 20)["losses"]
    assert all(row["end"] < row["start"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("minima", "-k", 1), "K must be at least 2"),
        (("minima", "--lambda-w", 0), "lambda_w"),
        (("minima", "-n", 0), "samples"),
        (("ufm", "--loss", "kd"), "teacher"),
        (("ufm", "--loss", "nonsense"), "nonsense"),
        (("ufm", "--loss", "arc-margin"), "scale"),
        (("dynamics", "-d", 4), "--dim"),
        (("dynamics", "--loss", "kd"), "teacher"),
        (("dynamics", "--loss", "arc-margin"), "cosines"),
        (("dynamics", "--points", 0), "at least one point"),
        (("dynamics", "-k", 1), "two classes"),
        (("dynamics", "--lr", "nan"), "lr"),
        (("bounds", "--delta", 2), "delta"),
        (("bounds", "--lam", 3), "lam"),
        (("alignment", "-m", 1), "batch_size"),
        (("scaling", "--small", -1), "positive"),
        (("scaling", "--starts", 0), "starts"),
        (("minima", "--plot", "/nowhere/at/all.html"), "folder"),
        (("minima", "--plot", "."), "--plot . is a folder: name a file"),
        (("alignment", "--epsilon", "nan"), "epsilon"),
        (("dynamics", "-k", 0), "two classes are needed, got 100 and 0"),
        (("dynamics", "--points", 10**15), "more memory is needed than there is"),
        (("minima", "-k", 10**24), "too big"),
    ],
)
def test_mistakes_end_in_one_line(arguments: tuple, word: str) -> None:
    result = run(*arguments, code=2)
    assert word in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
