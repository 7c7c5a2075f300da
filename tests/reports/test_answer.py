"""What is recommended and in which words: the four cases of a first comparison, and data with little to say."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lastlayer.reports import GOALS, Answer, answers, load, parse_goals, summarise

from . import factory
from .factory import trial

SYMBOLS = re.compile(r"[^\x00-\x7f]|\bNC\d|±|\*|~")


def compared(
    root: Path,
    wrong: Mapping[str, Sequence[Sequence[int]]],
    target: Sequence[int] | np.ndarray[Any, Any],
    *,
    goals: str = "",
    tuning: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Answer, ...]:
    """The answers for losses of which each seed errs on the given rows."""
    target = np.asarray(target)
    classes = int(target.max()) + 1
    trials = []
    for loss, seeds in wrong.items():
        for seed, rows in enumerate(seeds):
            right = np.ones(len(target), bool)
            right[list(rows)] = False
            decision = np.where(right, target, (target + 1) % classes)
            recalls = [float(right[target == k].mean()) for k in np.unique(target)]
            test = {"accuracy": float(right.mean()), "balanced_accuracy": float(np.mean(recalls))}
            kept = {
                "target": torch.tensor(target, dtype=torch.int32),
                "decision": torch.tensor(decision, dtype=torch.int32),
                "log_loss": torch.ones(len(target)),
            }
            names = tuple(f"class {k}" for k in range(classes))
            trials.append(trial(loss, seed))
            factory.done(root, trials[-1], test=test, rows=kept, classes=names, **options)
    factory.comparison(root, trials)
    summary = dataclasses.replace(summarise(load(root)), tuning=tuning)
    return answers(summary, parse_goals(goals) if goals else None)


def said(answer: Answer) -> str:
    return " ".join([answer.headline, *answer.sentences])


# the four cases of a first comparison


def test_a_few_errors_of_359_rows_put_no_loss_behind(tmp_path: Path) -> None:
    """Three seeds: mse makes 2.7 errors in the mean, ls and batch-ce 3.7, ce 5.7."""
    wrong = {
        "ce": [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7], [1, 2, 3, 5, 8, 9]],
        "ls": [[1, 2, 3, 10], [1, 2, 11], [1, 2, 3, 12]],
        "mse": [[1, 2, 13], [1, 2], [1, 2, 3]],
        "batch-ce": [[1, 2, 3, 4], [1, 3, 14], [1, 2, 5, 15]],
    }
    (answer,) = compared(tmp_path, wrong, np.arange(359) % 10)
    assert answer.headline == (
        "Accuracy (rates not tuned): no difference shown between ce, ls, mse and batch-ce; "
        "we recommend ce, the simplest of them."
    )
    assert answer.sentences[0] == (
        "mse has the best mean: 2.7 errors against 5.7 of ce, on the same 359 test rows, over 3 seeds."
    )
    assert re.fullmatch(
        r"With 95 % confidence, ce makes between [\d.]+ errors fewer and [\d.]+ more than mse\.", answer.sentences[1]
    )
    assert re.match(r"If the true difference .*about [\d,]+ test rows", answer.sentences[2])
    assert (answer.loss, answer.is_sure) == ("ce", False)


def test_skewed_classes_name_the_loss_that_serves_all_of_them(tmp_path: Path) -> None:
    """Trained on 3572, 246, 130 and 52 samples, and tested on a quarter as many."""
    counts = (3572, 246, 130, 52)
    sizes = [893, 62, 32, 13]
    target = np.repeat(np.arange(4), sizes)
    start = np.cumsum([0, *sizes])
    shares = {  # of wrong rows by class: balanced accuracy 0.70, 0.49, 0.45 and 0.42
        "logit-adjusted": (0.25, 0.25, 0.32, 0.38),
        "bce": (0.005, 0.45, 0.70, 0.88),
        "ce": (0.006, 0.50, 0.78, 0.92),
        "mse": (0.004, 0.60, 0.80, 0.92),
    }
    rng = np.random.default_rng(0)
    order = [rng.permutation(size) for size in sizes]
    wrong = {}
    for loss, by_class in shares.items():
        wrong[loss] = [
            [
                int(start[k] + row)
                for k, share in enumerate(by_class)
                for row in order[k][seed : seed + round(share * sizes[k])]
            ]
            for seed in range(3)
        ]
    balanced, accuracy = compared(tmp_path, wrong, target, counts=counts)
    assert balanced.goal.name == "balanced"
    assert (balanced.loss, balanced.is_sure) == ("logit-adjusted", True)
    assert balanced.headline == (
        "Balanced accuracy (rates not tuned): we recommend logit-adjusted; each of the 3 others is shown to be worse."
    )
    assert "3,572 training samples and the smallest 52." in balanced.sentences[0]
    assert re.search(r"It costs accuracy: \d+ errors against \d+ of bce", said(balanced))
    assert (accuracy.goal.name, accuracy.loss) == ("accuracy", "bce")


def test_36_rows_and_two_seeds_claim_nothing(tmp_path: Path) -> None:
    wrong = {"ce": [[1, 2, 3, 4], [1, 2, 3, 5]], "sln": [[1], [1]], "bce": [[1, 2, 3], [1, 6]]}
    (answer,) = compared(tmp_path, wrong, np.arange(36) % 3)
    assert not answer.is_sure
    assert answer.loss == "ce"
    assert answer.headline.startswith("Accuracy (rates not tuned): no difference shown between ce, sln and bce;")
    assert "sln has the best mean: 1 error against 4 of ce" in said(answer)
    assert "shown to be worse" not in said(answer)


@pytest.mark.parametrize("goal", ["accuracy", "balanced"])
def test_no_difference_is_larger_than_the_test_set(tmp_path: Path, goal: str) -> None:
    """With two seeds that vary so much, any difference is possible, and no sentence counts more errors than rows."""
    wrong = {"ce": [[], range(30)], "sln": [range(2), range(36)]}
    (answer,) = compared(tmp_path, wrong, np.arange(36) % 3, goals=goal)
    assert "With 95 % confidence, sln may be better or worse than ce by any amount." in answer.sentences
    wrong = {"ce": [range(1), range(9)], "sln": [range(14), range(32)]}
    (answer,) = compared(tmp_path / "half", wrong, np.arange(36) % 3, goals=goal)
    assert re.search(r"between [\d.]+ .*(36 more|100.0 points worse) than ce", said(answer))


def test_no_symbols(tmp_path: Path) -> None:
    (answer,) = compared(tmp_path, {"ce": [[1], [2]], "sln": [[3], [4]]}, np.arange(60) % 3)
    assert not SYMBOLS.search(said(answer))


# other data


def drawn(rng: np.random.Generator, share: float, seeds: int, rows: int) -> list[list[int]]:
    """Wrong rows of each seed: mostly the same ones."""
    order = rng.permutation(rows)
    count = round(share * rows)
    return [[*order[seed : seed + count]] for seed in range(seeds)]


def test_a_clear_best_is_named_with_the_interval_of_the_difference(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wrong = {loss: drawn(rng, share, 3, 1000) for loss, share in (("ce", 0.10), ("sln", 0.04), ("bce", 0.2))}
    (answer,) = compared(tmp_path, wrong, np.arange(1000) % 4)
    assert (answer.loss, answer.is_sure) == ("sln", True)
    assert "we recommend sln; each of the 2 others is shown to be worse" in answer.headline
    assert answer.sentences[0] == (
        "sln has 40 errors against 100 of ce, the next best, on the same 1,000 test rows, over 3 seeds."
    )
    assert answer.decision is not None
    low, high = (1000 * end for end in answer.decision.rivals["ce"].interval)
    assert answer.sentences[1] == f"With 95 % confidence, ce makes {low:.0f} to {high:.0f} errors more than sln."
    assert all(low < mean < high for low, mean, high in answer.intervals.values())


def test_losses_shown_to_be_worse_are_told_from_those_that_are_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    near = drawn(rng, 0.05, 3, 1000)
    wrong = {"sln": near, "mse": [[*rows[1:], 7] for rows in near], "bce": drawn(rng, 0.3, 3, 1000)}
    (answer,) = compared(tmp_path, wrong, np.arange(1000) % 4)
    assert answer.headline == (
        "Accuracy (rates not tuned): no difference shown between sln and mse; we recommend mse, the simplest of them; "
        "bce is shown to be worse."
    )


def test_means_that_are_equal_to_the_last_digit(tmp_path: Path) -> None:
    (answer,) = compared(tmp_path, {"sln": [[1], [2]], "ce": [[3], [4]]}, np.arange(60) % 3)
    assert answer.loss == "ce"
    assert answer.sentences[0] == "sln and ce have the best mean, 1 error, on the same 60 test rows, over 2 seeds."
    assert "The means of sln and ce are equal, so no number of test rows or seeds would tell them apart." in said(
        answer
    )


def test_one_seed_shows_nothing_but_suggests_what_is_far_ahead_on_these_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wrong = {loss: drawn(rng, share, 1, 1000) for loss, share in (("ce", 0.4), ("sln", 0.04))}
    (answer,) = compared(tmp_path / "far", wrong, np.arange(1000) % 4)
    assert (answer.loss, answer.is_sure) == ("sln", False)
    assert "no difference shown, because there is one seed per loss; we suggest sln" in answer.headline
    assert "One seed does not tell how much training varies: give --seeds 3 or more." in answer.sentences
    assert not re.search("shown to be worse|recommend|95 %", said(answer))
    (answer,) = compared(tmp_path / "near", {"sln": [[1, 2]], "ce": [[1, 3, 4]]}, np.arange(60) % 3)
    assert answer.loss == "ce"


def test_of_equally_simple_settings_the_best_mean_is_recommended(tmp_path: Path) -> None:
    target = np.arange(200) % 4
    for gamma, rows in ((0.5, [[1, 2, 3], [1, 2, 4]]), (0.9, [[1, 2], [1, 5]])):
        for seed, wrong in enumerate(rows):
            decision = target.copy()
            decision[wrong] = (decision[wrong] + 1) % 4
            kept = {"target": torch.tensor(target).int(), "decision": torch.tensor(decision).int()}
            test = {"accuracy": float((decision == target).mean())}
            factory.done(tmp_path, trial("sln", seed, options={"gamma": gamma}), test=test, rows=kept)
    (answer,) = answers(summarise(load(tmp_path)))
    assert answer.loss == "sln gamma=0.9"
    assert "we recommend sln gamma=0.9, which has the best mean of them" in answer.headline


def test_what_the_choice_costs_in_accuracy_is_said_without_being_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = np.repeat([0, 1], [900, 100])
    rare = 900 + rng.permutation(100)
    wrong = {"ce": [[*rare[:60]], [*rare[1:61]]], "logit-adjusted": [[*range(90)], [*range(1, 91)]]}
    (answer,) = compared(tmp_path, wrong, target, goals="balanced")
    assert (answer.goal, answer.loss) == (GOALS["balanced"], "logit-adjusted")
    assert re.search(r"ce is [\d.]+ to [\d.]+ points worse than logit-adjusted in balanced accuracy", said(answer))
    assert re.search(r"It costs accuracy: 90 errors against 60 of ce\. With 95 % confidence", said(answer))


def entry(**changed: Any) -> dict[str, Any]:
    return {"lr": [0.1], "weight_decay": [1e-4], "tuned": ["lr"], "tried": 9, "edge": False, "over": "rates",
            "why_not": "", **changed}  # fmt: skip


@pytest.mark.parametrize(
    ("tuning", "prefix", "sentence"),
    [
        (
            {"ce": entry(), "sln": entry()},
            "Accuracy: ",
            "Each loss was tuned over rates; 9 settings were tried per loss.",
        ),
        (
            {"ce": entry(widened=True), "sln": entry(widened=True)},
            "Accuracy: ",
            "For ce and sln the grid was widened once, because the best setting lay at its edge.",
        ),
        (
            {"ce": entry(edge=True), "sln": entry()},
            "Accuracy: ",
            "For ce the best setting lies at the edge of what was tried.",
        ),
        (
            {label: entry(tuned=[], why_not="--no-tune") for label in ("ce", "sln")},
            "Accuracy (rates not tuned): ",
            "Learning rate and weight decay of all losses were not tuned: --no-tune.",
        ),
        (
            {"ce": entry(), "sln": entry(tuned=[], why_not="too few rows")},
            "Accuracy (rates of sln not tuned): ",
            "Learning rate and weight decay of sln were not tuned: too few rows.",
        ),
    ],
)
def test_what_was_tuned_is_said_first(tmp_path: Path, tuning: Mapping[str, Any], prefix: str, sentence: str) -> None:
    (answer,) = compared(tmp_path, {"ce": [[1], [2]], "sln": [[1], [3]]}, np.arange(60) % 3, tuning=tuning)
    assert answer.headline.startswith(prefix)
    assert sentence in answer.sentences


def test_a_folder_without_a_comparison_does_not_know_what_was_tuned(tmp_path: Path) -> None:
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss), test={"accuracy": 0.9})
    (answer,) = answers(summarise(load(tmp_path)))
    assert answer.headline.startswith("Accuracy (tuning unknown): ")


def test_seeds_on_several_folds_are_told_as_rows_per_seed(tmp_path: Path) -> None:
    target = np.arange(100) % 4
    for loss, wrong in (("ce", 4), ("sln", 5)):
        for fold in range(3):
            decision = target.copy()
            decision[fold : fold + wrong] = (decision[fold : fold + wrong] + 1) % 4
            kept = {"target": torch.tensor(target).int(), "decision": torch.tensor(decision).int()}
            data = {"name": "digits", "options": {}, "seed": 0, "fold": fold}
            content = trial(loss, fold) | {"data": data}
            factory.done(tmp_path, content, test={"accuracy": 1 - wrong / 100}, rows=kept)
    (answer,) = answers(summarise(load(tmp_path)))
    assert answer.sentences[0] == (
        "ce has the best mean: 4 errors against 5 of sln, on 100 test rows per seed (300 in all), over 3 seeds."
    )


def test_goals_without_an_answer_are_told_in_one_sentence(tmp_path: Path) -> None:
    found = compared(tmp_path, {"ce": [[1], [2]], "sln": [[1], [3]]}, np.arange(60) % 3, goals="open-set,accuracy")
    assert found[0].problem
    assert (found[0].loss, found[0].decision) == ("", None)
    assert found[0].headline.startswith("Open-set score: the data cannot answer open-set")
    assert found[1].loss == "ce"


def test_one_group_has_no_answer_and_two_that_failed_have_a_problem(tmp_path: Path) -> None:
    factory.done(tmp_path, trial("ce"))
    assert answers(summarise(load(tmp_path))) == ()
    factory.failed(tmp_path, trial("sln"))
    (answer,) = answers(summarise(load(tmp_path)))
    assert "Only ce is left, so there is nothing to compare it with." in answer.headline


def test_a_loss_of_ones_own_counts_as_one_with_settings(tmp_path: Path) -> None:
    wrong = {"my_losses.Rooted": [[1], [2]], "mse": [[1], [3]], "batch-ce": [[1], [4]]}
    (answer,) = compared(tmp_path, wrong, np.arange(60) % 3)
    assert answer.loss == "mse"
