"""Settings, choices on validation and teachers for some combinations of points alone."""

import sys
from pathlib import Path

import pytest

from lastlayer.papers import Artifact, Store, reproduce
from lastlayer.papers.engine.artifact import parse, teachers_of
from lastlayer.papers.engine.reproduce import all_trials
from lastlayer.runners import Placement

TEXT = """
[settings]
"data" = { name = "iris" }
"model" = { name = "mlp", options = { width = 8 } }
"schedule.epochs" = 10
"evaluations" = 1
[artifacts.one]
where = "Table 1"
shows = "something"
columns = { "accuracy" = "test.accuracy%" }
seeds = 2
select = { per = ["loss"], settings = { "schedule.epochs" = 2 } }
cases = [
  { when = { loss = ["SLN"], width = ["16"] }, settings = { "loss.tau" = 0.5 } },
  { when = { loss = ["LN"] }, select = { "optimiser.lr" = [0.01, 0.1, 1.0] } },
  { when = { loss = ["KD"] }, teacher = { "model.width" = 32, "loss" = { name = "ce" } } },
  { when = { loss = ["KD"], width = ["16"] }, drop = true },
]
[artifacts.one.axes.loss]
"SLN" = { "loss.name" = "sln" }
"LN" = { "loss.name" = "ln" }
"KD" = { "loss.name" = "kd" }
[artifacts.one.axes.width]
"8" = { "model.width" = 8 }
"16" = { "model.width" = 16 }
[artifacts.one.small]
seeds = 1
cases = [{ when = { loss = ["LN"] }, select = { "optimiser.lr" = [0.1] } }]
"""


@pytest.fixture
def one() -> Artifact:
    return parse("sln", TEXT)["sln.one"]


def test_a_case_holds_for_its_combinations_alone(one: Artifact) -> None:
    cells = {tuple(cell.labels.values()): cell for cell in one.grid("paper").cells}
    assert list(cells) == [("SLN", "8"), ("SLN", "16"), ("LN", "8"), ("LN", "16"), ("KD", "8")]
    assert "tau" not in cells["SLN", "8"].trial.loss.options
    assert cells["SLN", "16"].trial.loss.options == {"tau": 0.5}
    assert not cells["SLN", "8"].over
    assert cells["LN", "16"].over == {"optimiser.lr": [0.01, 0.1, 1.0]}


def test_the_teacher_is_the_cell_with_other_settings(one: Artifact) -> None:
    grid = one.grid("paper")
    cell = grid.cells[-1]
    (teacher,) = teachers_of(grid.cells)
    assert teacher.model.options == {"width": 32}
    assert teacher.loss.name == "ce"
    assert teacher.data == cell.trial.data
    assert cell.trial.teacher == teacher.identity


def test_trials_come_in_the_order_in_which_they_are_needed(one: Artifact) -> None:
    grid = one.grid("paper")
    trials = all_trials(grid)
    assert [trial.identity for trial in trials[:1]] == [trial.identity for trial in teachers_of(grid.cells)]
    assert [trial.optimiser.lr for trial in trials[1:4]] == [0.01, 0.1, 1.0]
    assert {trial.schedule.epochs for trial in trials[1:4]} == {2}  # once for LN, with the first width
    assert len(trials) == 1 + 3 + 5 * 2
    assert len(all_trials(one.grid("small"))) == 1 + 1 + 5


def test_teachers_and_candidates_are_run_before_what_needs_them(one: Artifact, tmp_path: Path) -> None:
    told: list[str] = []
    plan = Placement(tmp_path / "runs", device="cpu", workers=1)
    observed = reproduce(one, "paper", plan, Store(tmp_path), seeds=[3], tell=told.append)
    assert "failed" not in {row.status for row in observed.rows}
    chosen = {row.labels["loss"]: row.facts.get("selected", "") for row in observed.rows}
    assert chosen["LN"].startswith("optimiser.lr=")
    assert chosen["SLN"] == chosen["KD"] == ""
    assert len([line for line in told if "validation accuracy" in line]) == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1 + 3 + 5


def test_what_cannot_run_here_can_still_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.replace('"8" = { "model.width" = 8 }', '"8" = { "model" = { name = "hf:not-there" } }')
    one = parse("sln", text)["sln.one"]
    assert len(all_trials(one.grid("paper"))) == 1 + 3 + 5 * 2
    plan = Placement(tmp_path / "runs", device="cpu", workers=1)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(ImportError, match="'hf:not-there' needs transformers"):
        reproduce(one, "paper", plan, Store(tmp_path), only={"loss": ["SLN"]}, seeds=[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('when = { loss = ["LS"] }, drop = true', r"cases, loss: there is no 'LS'"),
        ('when = { los = ["LN"] }, drop = true', r"there is no 'los' \(did you mean 'loss'\?\)"),
        ('when = { loss = ["LN"] }, dropped = true', r"there is no 'dropped' \(did you mean 'drop'\?\)"),
    ],
)
def test_a_case_of_nothing_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse("sln", TEXT.replace('when = { loss = ["KD"], width = ["16"] }, drop = true', wrong))
