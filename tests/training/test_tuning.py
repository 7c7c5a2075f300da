"""The search for learning rate and weight decay: what is tried, what is chosen, and that test samples take no part."""

import math
from collections.abc import Callable, Mapping

import pytest
import torch

from lastlayer import data
from lastlayer.data import Split
from lastlayer.training import DataChoice, Schedule, Trial, finish_fit, fit
from lastlayer.training.tuning import (
    TUNING_SEED,
    Choice,
    best,
    held_out,
    search,
    share_held_out,
    too_small,
    training_seconds,
)

Score = Mapping[str, float] | None


def follow(trial: Trial, measured: Callable[[Trial], Score], **options) -> tuple[Choice, list[list[Trial]]]:
    """The choice of a search whose candidates measure what a function says, and the candidates of each rung."""
    steps, rungs = search(trial, **options), []
    try:
        rungs.append(next(steps))
        while True:
            rungs.append(steps.send([measured(candidate) for candidate in rungs[-1]]))
    except StopIteration as stop:
        return stop.value, rungs


def peak(lr: float, weight_decay: float = 1e-4) -> Callable[[Trial], Score]:
    """Accuracy falls with the distance, in powers of ten, from the best rate and the best decay."""

    def measured(trial: Trial) -> Score:
        rate, decay = trial.optimiser.lr, trial.optimiser.weight_decay
        assert rate is not None
        assert decay is not None
        return {
            "accuracy": 1 - 0.1 * abs(math.log10(rate / lr)) - 0.01 * abs(math.log10(decay / weight_decay)),
            "nll": 1,
        }

    return measured


def settings(rung: list[Trial]) -> set[tuple[float | None, float | None]]:
    return {(one.optimiser.lr, one.optimiser.weight_decay) for one in rung}


CE = Trial().resolved()  # lr 0.1, decay 1e-4, 30 epochs


def test_short_trainings_choose_the_decay_and_whole_ones_the_rate() -> None:
    choice, (short, whole) = follow(CE, peak(0.1))
    assert settings(short) == {(lr, wd) for lr in (0.03, 0.1, 0.3) for wd in (1e-5, 1e-4, 1e-3)}
    assert {one.schedule.epochs for one in short} == {5}
    assert settings(whole) == {(0.03, 1e-4), (0.1, 1e-4), (0.3, 1e-4)}
    assert {one.schedule.epochs for one in whole} == {30}
    assert choice == Choice(CE.optimiser, 9, {"accuracy": 1.0, "nll": 1})
    for one in (*short, *whole):
        assert (one.seed, one.evaluations, one.data.holdout) == (TUNING_SEED, 0, 0.1)


@pytest.mark.parametrize(
    ("lr", "weight_decay", "found", "tried", "edge", "widened"),
    [
        (0.9, 1e-4, (0.9, 1e-4), 10, ("lr",), ("lr",)),  # the value beyond the edge is the best, and lies at the edge
        (0.4, 1e-4, (0.3, 1e-4), 10, (), ("lr",)),  # that beyond it is worse
        (0.01, 1e-4, (0.009, 1e-4), 10, ("lr",), ("lr",)),
        (0.1, 1e-2, (0.1, 1e-2), 10, ("weight_decay",), ("weight_decay",)),
        (0.1, 1e-7, (0.1, 1e-5), 9, (), ()),  # a decay smaller than the smallest is as good as none
        (0.4, 3e-3, (0.3, 1e-3), 11, (), ("lr", "weight_decay")),
    ],
)
def test_the_grid_is_widened_once_beyond_an_edge(lr, weight_decay, found, tried, edge, widened) -> None:
    choice, rungs = follow(CE, peak(lr, weight_decay))
    assert (choice.optimiser.lr, choice.optimiser.weight_decay) == pytest.approx(found)
    assert (choice.tried, choice.edge, choice.widened) == (tried, edge, widened)
    assert len(rungs) == 2 + bool(widened)


def test_a_setting_that_is_given_is_not_searched() -> None:
    for names, values in ((["lr"], {(0.03, 1e-4), (0.1, 1e-4), (0.3, 1e-4)}),
                          (["weight_decay"], {(0.1, 1e-5), (0.1, 1e-4), (0.1, 1e-3)})):  # fmt: skip
        choice, (whole,) = follow(CE, peak(0.1), names=names)
        assert settings(whole) == values
        assert {one.schedule.epochs for one in whole} == {30}
        assert choice.tried == 3
    without = CE.with_settings({"optimiser.weight_decay": 0.0})
    choice, rungs = follow(without, lambda trial: {"accuracy": 1.0 - abs((trial.optimiser.lr or 0) - 0.1), "nll": 1.0})
    assert settings(rungs[0]) == {(0.03, 0.0), (0.1, 0.0), (0.3, 0.0)}  # 0 has no multiples
    assert choice.edge == ()


def test_short_trainings_are_whole_and_warm_up_in_proportion() -> None:
    trial = CE.with_settings({"schedule.warmup": 3.0, "data.holdout": 0.3})
    _, (short, whole) = follow(trial, peak(0.1), holdout=0.2)
    assert {one.schedule.warmup for one in short} == {0.5}
    assert {one.schedule.warmup for one in whole} == {3.0}
    assert {one.data.holdout for one in (*short, *whole)} == {0.3}  # the trial's own
    _, (only,) = follow(CE.with_settings({"schedule.epochs": 1}), peak(0.1))
    assert len(only) == 9


def test_candidates_that_fail_are_the_worst() -> None:
    def steep(trial: Trial) -> Score:
        return None if (trial.optimiser.lr or 0) > 0.2 else peak(1.0)(trial)

    choice, (short, whole) = follow(CE, steep)
    assert (0.3, 1e-4) in settings(short)
    assert len(whole) == 2  # not one setting of the largest rate worked
    assert (choice.optimiser.lr, choice.edge, choice.widened) == (0.1, (), ())
    for fails in (lambda trial: None, lambda trial: None if trial.schedule.epochs == 30 else peak(0.1)(trial)):
        choice, _ = follow(CE, fails)
        assert choice == Choice(CE.optimiser, 9, None)


def test_the_best_has_the_highest_measure_and_then_the_lowest_nll() -> None:
    scores = [
        None,
        {"accuracy": 0.9, "balanced_accuracy": 0.5, "nll": 0.2},
        {"accuracy": 0.9, "balanced_accuracy": 0.6, "nll": 0.1},
        {"accuracy": 0.8, "balanced_accuracy": 0.7, "nll": 0.05},
        {"accuracy": 0.9, "balanced_accuracy": 0.6, "nll": math.nan},
        {"accuracy": math.nan, "balanced_accuracy": math.nan, "nll": 0.0},
    ]
    assert best(scores) == 2
    assert best(scores, "balanced_accuracy") == 3
    assert best([None, None]) is None
    assert best([]) is None

    def skewed(trial: Trial) -> Score:
        return {"accuracy": 1 - (trial.optimiser.lr or 0), "balanced_accuracy": trial.optimiser.lr or 0, "nll": 1}

    rates = [follow(CE, skewed, measure=measure)[0].optimiser.lr for measure in ("accuracy", "balanced_accuracy")]
    assert rates == [0.009, 0.9]


def test_a_candidate_trains_on_the_rest_and_never_sees_a_test_sample() -> None:
    """Test samples without a number in them would make every measure NaN."""
    digits = data.subset(data.load("digits"), 300, seed=0)
    blind = digits.replace(test=Split(torch.full_like(digits.test.inputs.float(), math.nan), digits.test.target))
    trial = held_out(Trial(DataChoice("digits", train=300), schedule=Schedule(epochs=2)).resolved(), 0.2)
    trial = trial.with_settings({"evaluations": 0})
    seen, plain = (finish_fit(fit(trial, dataset=data.hold_out(one, 0.2, 0))) for one in (blind, digits))
    assert set(seen["measures"]) == {"validation"}
    assert seen["measures"] == plain["measures"]
    thorough = finish_fit(fit(trial.with_settings({"evaluations": 1}), dataset=data.hold_out(digits, 0.2, 0)))
    for name in ("accuracy", "nll"):
        value = plain["measures"]["validation"][name]
        assert value == pytest.approx(thorough["measures"]["validation"][name], rel=1e-9), name
    assert set(plain["measures"]["validation"]) == {"accuracy", "balanced_accuracy", "nll"}


def test_nothing_is_measured_without_held_out_samples() -> None:
    trial = Trial(DataChoice("iris"), schedule=Schedule(epochs=1), evaluations=0).resolved()
    with pytest.raises(ValueError, match=r"evaluations=0 measures validation samples alone.*set data.holdout"):
        finish_fit(fit(trial))


@pytest.mark.parametrize(
    ("rows", "epochs", "why"),
    [(1_000, 30, ""), (60, 30, "15 held-out samples are too few"), (1_000, 5, "trainings of 70 steps are too short")],
)
def test_a_search_that_would_choose_by_chance_is_told(rows: int, epochs: int, why: str) -> None:
    found = too_small(CE.with_settings({"schedule.epochs": epochs}), rows)
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_small_data_hold_out_a_larger_share() -> None:
    shares = [share_held_out(rows) for rows in (10, 400, 500, 999, 1_000, 100_000)]
    assert shares == [0.25, 0.25, 0.2, 0.1, 0.1, 0.1]


def test_a_training_that_is_twice_as_long_is_estimated_so() -> None:
    digits = data.load("digits")
    one, other = (training_seconds(CE.with_settings({"schedule.epochs": epochs}), digits) for epochs in (10, 1_000))
    assert 0 < one < other
