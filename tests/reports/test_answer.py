"""What is recommended and in which words: the four cases of a first comparison, and data with little to say."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lastlayer.reports import Answer, answers, load, parse_goals, summarise

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
    return answers(summarise(load(root)), parse_goals(goals) if goals else None)


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
    assert "3,572 training samples and the smallest 52" in balanced.sentences[0]
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


def test_no_symbols(tmp_path: Path) -> None:
    (answer,) = compared(tmp_path, {"ce": [[1], [2]], "sln": [[3], [4]]}, np.arange(60) % 3)
    assert not SYMBOLS.search(said(answer))
