"""Tuning before a comparison: when it is done, what it leaves, and what becomes of losses that fail."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastlayer import reports
from lastlayer.cli import _tuning  # private: what would take too long is a constant there
from lastlayer.runners import protocol
from lastlayer.runs import Comparison, RunFolder, read_comparison
from lastlayer.training import tuning
from tests.cli.commands import QUICK, lastlayer

pytestmark = pytest.mark.usefixtures("folder_of_its_own")

OWN_TEST = ["--set", "data.fold=null"]  # one test set for all seeds
SHORT = [*QUICK[:-1], *OWN_TEST]  # without --no-tune

BROKEN = "def broken(logits, target): return (logits * float('nan')).mean()\n"


def trials() -> list[dict[str, Any]]:
    return [RunFolder(path.parent).trial() for path in Path("runs").glob("*/trial.json")]


def candidates() -> list[dict[str, Any]]:
    return [trial for trial in trials() if trial["seed"] == tuning.TUNING_SEED]


def comparisons() -> dict[bool, Comparison]:
    """The comparison file of the tuning (True) and that of the losses (False)."""
    found = [read_comparison(file) for file in Path("runs").glob("compare-*.json")]
    return {one.title.startswith("tuning"): one for one in found}


def test_each_loss_gets_the_settings_that_did_best_and_every_candidate_is_shown() -> None:
    code, said = lastlayer("compare", "--losses", "ce,mse:beta=10", "--seeds", "2", "--tune", *SHORT)
    assert code == 0, said
    tried, compared = comparisons()[True], comparisons()[False]
    assert {trial["data"]["holdout"] for trial in candidates()} == {0.25}
    assert set(tried.trials) == {RunFolder(path.parent).path.name for path in Path("runs").glob("*/trial.json")} - set(
        compared.trials
    )
    for beta, label in ((None, "ce"), (10, "mse")):
        mine = [one for one in candidates() if one["loss"]["options"].get("beta") == beta]
        whole = [one for one in mine if one["schedule"]["epochs"] == 2]
        runs = {name: RunFolder(Path("runs", name)).result() for name in tried.trials}
        scores = {
            (run["trial"]["optimiser"]["lr"], run["trial"]["optimiser"]["weight_decay"]): run["measures"]["validation"]
            for run in runs.values()
            if run["trial"] in whole
        }
        best = max(scores, key=lambda one: (scores[one]["accuracy"], -scores[one]["nll"]))
        made = [
            one["optimiser"]
            for one in trials()
            if one not in candidates() and one["loss"]["options"].get("beta") == beta
        ]
        assert {(one["lr"], one["weight_decay"]) for one in made} == {best}
        assert len(made) == 2
        assert compared.tuning is not None
        told = compared.tuning[label]
        assert (told["lr"], told["weight_decay"], told["tuned"]) == ([best[0]], [best[1]], ["lr", "weight_decay"])
        assert told["tried"] == len({(one["optimiser"]["lr"], one["optimiser"]["weight_decay"]) for one in mine}) >= 9
        assert told["why_not"] == ""
        assert "25% of each class, held out of training" in told["over"]
        assert f"tuned {label}: lr {best[0]:g}, weight decay {best[1]:g}, validation accuracy" in said
    assert {one["optimiser"]["lr"] for one in compared.trials.values()} == {None}
    assert [group.label for group in reports.summarise(reports.load("runs", compared.file)).groups] == ["ce", "mse"]
    assert f"lastlayer report {tried.file} shows every setting that was tried" in said
    code, said = lastlayer("report", str(tried.file))
    assert code == 0, said
    before = sorted(path.stat().st_mtime_ns for path in Path("runs").glob("*/result.json"))
    assert lastlayer("compare", "--losses", "ce,mse:beta=10", "--seeds", "2", "--tune", *SHORT)[0] == 0
    assert sorted(path.stat().st_mtime_ns for path in Path("runs").glob("*/result.json")) == before


def test_each_fold_is_tuned_on_its_own_training_samples() -> None:
    short = ["--data", "iris", "--epochs", "2", "--set", "evaluations=1", "--workers", "1", "--lr", "0.1"]
    code, said = lastlayer("compare", "--losses", "ce", "--seeds", "2", "--tune", *short)
    assert code == 0, said
    assert {one["data"]["fold"] for one in candidates()} == {0, 1}
    assert {one["optimiser"]["lr"] for one in candidates()} == {0.1}  # given, so not tuned
    for one in candidates():
        result = RunFolder(Path("runs") / next(n for n, t in comparisons()[True].trials.items() if t == one)).result()
        assert result["data"]["samples"] == {"train": 90, "test": 30}  # 30 of 120 are held out
        assert set(result["measures"]) == {"validation"}
    told = (comparisons()[False].tuning or {})["ce"]
    assert told["tuned"] == ["weight_decay"]
    assert len(told["weight_decay"]) == 2
    (group,) = reports.summarise(reports.load("runs", comparisons()[False].file)).groups
    assert len(group.done) == 2


def test_what_would_be_chance_is_not_tuned_and_that_is_said() -> None:
    code, said = lastlayer("compare", "--losses", "ce", "--seeds", "1", *SHORT)
    assert code == 0
    assert said.count("learning rates are not tuned: trainings of 6 steps are too short to tell settings apart\n") == 1
    assert not candidates()
    told = (comparisons()[False].tuning or {})["ce"]
    assert (told["lr"], told["tuned"], told["tried"]) == ([0.1], [], 0)
    assert told["why_not"] == "trainings of 6 steps are too short to tell settings apart"
    code, said = lastlayer("compare", "--losses", "ce", "--seeds", "1", *SHORT, "--no-tune")
    assert (comparisons()[False].tuning or {})["ce"]["why_not"] == "--no-tune"
    code, said = lastlayer(
        "compare", "--losses", "ce", "--seeds", "1", *SHORT, "--lr", "1", "--set", "optimiser.weight_decay=0"
    )
    assert "not tuned: the learning rate and the weight decay were given" in said


@contextlib.contextmanager
def no_time() -> Iterator[None]:
    """Any tuning takes too long, as on a slow machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tuning, "LONGEST", 0.0)
        yield


def test_what_would_take_long_is_not_tuned_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LEAST_STEPS", 1)
    command = ["compare", "--losses", "ce", "--seeds", "1", *SHORT]
    with no_time():
        code, said = lastlayer(*command)
    assert code == 0
    assert "not tuned: it would take about 1 minutes" in said
    assert "--tune does it all the same" in said
    assert not candidates()
    assert "not tuned: it would take about" in lastlayer(*command)[1]  # time enough does not change what was begun
    assert not candidates()
    assert lastlayer(*command, "--tune")[0] == 0
    assert candidates()
    with no_time():
        assert "tuned ce: lr" in lastlayer(*command)[1]


def test_a_loss_that_fails_in_tuning_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    Path("broken_loss.py").write_text(BROKEN)
    code, said = lastlayer("compare", "--losses", "ce,broken_loss.broken", "--seeds", "1", "--tune", *SHORT)
    assert code == 1
    assert "tuning broken_loss.broken: every setting failed, so it keeps its own learning rate" in said
    assert "tuned ce: lr" in said
    assert "1 of 2 trials are not done" in said
    told = comparisons()[False].tuning or {}
    assert told["broken_loss.broken"]["why_not"] == "all settings that were tried failed"
    assert told["ce"]["why_not"] == ""


def test_all_losses_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    Path("broken_too.py").write_text(BROKEN)
    code, said = lastlayer("compare", "--losses", "broken_too.broken", "--seeds", "2", "--tune", *SHORT)
    assert code == 1
    assert said.count("every setting failed") == 1
    assert "2 of 2 trials are not done" in said


def test_ctrl_c_in_tuning_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["compare", "--losses", "ce", "--seeds", "1", "--tune", *SHORT]
    fit, begun = protocol.fit, []

    def interrupted(*args: Any, **options: Any) -> Any:
        begun.append(args)
        if len(begun) == 5:
            raise KeyboardInterrupt
        return fit(*args, **options)

    monkeypatch.setattr(protocol, "fit", interrupted)
    code, said = lastlayer(*command)
    assert code == 130
    assert "stopped; checkpoints are kept. To continue: " in said
    assert len(list(Path("runs").glob("*/result.json"))) == 4
    code, said = lastlayer(*command)
    assert code == 0
    assert "tuned ce: lr" in said
    assert len(begun) == 5 + len(trials()) - 4
