"""The noise that is read from run folders, against the same numbers computed from the rows by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lastlayer._core.files import read_json, write_json
from lastlayer.reports import GOALS, load, summarise
from lastlayer.reports.evidence import Evidence, Rows, evidence

from . import factory
from .factory import trial

Array = NDArray[Any]
N, CLASSES = 120, 3


def answers_of(rng: np.random.Generator, accuracy: float, target: Array) -> dict[str, torch.Tensor]:
    """What a run keeps that is right on about this share of the rows."""
    right = rng.random(len(target)) < accuracy
    decision = np.where(right, target, (target + 1) % CLASSES)
    return {
        "target": torch.tensor(target, dtype=torch.int32),
        "decision": torch.tensor(decision, dtype=torch.int32),
        "log_loss": torch.tensor(rng.exponential(size=len(target)) + ~right, dtype=torch.float32),
        "draw.auprc": torch.tensor(rng.normal(accuracy, 0.01, 200)),
    }


def measured(rows: dict[str, torch.Tensor]) -> dict[str, float]:
    target, right = rows["target"].numpy(), (rows["decision"] == rows["target"]).double().numpy()
    recalls = [float(right[target == k].mean()) for k in np.unique(target)]
    rare = recalls[2] if len(recalls) > 2 else float("nan")
    return {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "few": rare,
        "nll": float(rows["log_loss"].double().mean()),
        "auprc": float(rows["draw.auprc"].mean()) if "draw.auprc" in rows else float("nan"),
    }


def runs(
    root: Path, rng: np.random.Generator, *, seeds: int = 2, folds: bool = False, counts: tuple[int, ...] = (60, 50, 10)
) -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """Two losses that are right on 0.9 and 0.6 of the rows."""
    target = rng.integers(0, CLASSES, N)
    kept = {}
    for loss, accuracy in (("ce", 0.9), ("sln", 0.6)):
        for seed in range(seeds):
            data = {"name": "digits", "options": {}, "seed": 0, **({"fold": seed} if folds else {})}
            rows = answers_of(rng, accuracy, target)
            content = trial(loss, seed) | {"data": data}
            factory.done(root, content, test=measured(rows), rows=rows, counts=counts)
            kept[loss, seed] = rows
    return kept


def found(root: Path, goal: str) -> Evidence:
    return evidence(GOALS[goal], summarise(load(root)), Rows())


def test_noise_of_accuracy_is_the_covariance_of_right_answers(tmp_path: Path) -> None:
    kept = runs(tmp_path, np.random.default_rng(0))
    made = found(tmp_path, "accuracy")
    assert made.losses == ("ce", "ce", "sln", "sln")
    right = np.stack([(rows["decision"] == rows["target"]).numpy() for rows in kept.values()]).astype(float)
    assert made.values == pytest.approx(right.mean(1))
    expected = np.cov(right) / N
    same = np.kron(np.eye(2), np.ones((2, 2)))
    assert np.allclose(made.noise.covariance, expected + same / (N + 2) ** 2)  # and a row that only one loss gets right
    assert (made.folds, made.overlap, made.notes) == (None, 0.0, ())


def test_noise_of_a_mean_over_classes_and_of_rare_classes(tmp_path: Path) -> None:
    kept = runs(tmp_path, np.random.default_rng(0))
    balanced, tail = found(tmp_path, "balanced"), found(tmp_path, "tail")
    rows = kept["ce", 0]
    target, right = rows["target"].numpy(), (rows["decision"] == rows["target"]).double().numpy()
    by_class = [right[target == k] for k in range(CLASSES)]
    variance = sum(one.var(ddof=1) / len(one) for one in by_class) / CLASSES**2
    assert balanced.noise.covariance[0, 0] == pytest.approx(variance, rel=0.2)
    assert balanced.noise.covariance[0, 0] > variance
    assert tail.noise.rows == (target == 2).sum()
    assert tail.noise.covariance[0, 0] == pytest.approx(by_class[2].var(ddof=1) / len(by_class[2]), rel=0.3)


def test_noise_of_log_loss_and_of_resampled_measures(tmp_path: Path) -> None:
    kept = runs(tmp_path, np.random.default_rng(0))
    losses = np.stack([rows["log_loss"].double().numpy() for rows in kept.values()])
    assert np.allclose(found(tmp_path, "calibration").noise.covariance, np.cov(losses) / N)
    draws = np.stack([rows["draw.auprc"].numpy() for rows in kept.values()])
    assert np.allclose(found(tmp_path, "single-logit").noise.covariance, np.cov(draws))


def test_runs_with_fewer_draws_are_compared_on_the_draws_that_all_have(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES, N)
    draws = []
    for loss, count in (("ce", 400), ("sln", 200)):
        rows = answers_of(rng, 0.8, target)
        rows["draw.auprc"] = torch.tensor(rng.normal(0.8, 0.1, count))
        rows["draw.auprc"][7] = torch.nan  # a resample without a sample of some class
        factory.done(tmp_path, trial(loss), test=measured(rows) | {"auprc": 0.8}, rows=rows)
        draws.append(np.delete(rows["draw.auprc"][:200].numpy(), 7))
    assert np.allclose(found(tmp_path, "single-logit").noise.covariance, np.cov(np.stack(draws)))


def test_new_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES, N)
    for loss in ("ce", "sln"):
        for seed in range(2):
            rows = answers_of(rng, 0.9, target)
            rows["unknown_right"] = torch.tensor(rng.random(50) < 0.7, dtype=torch.uint8)
            rows["unknown_target"] = torch.tensor(rng.integers(0, 2, 50), dtype=torch.int32)
            test = measured(rows) | {"nearest_mean": float(rows["unknown_right"].double().mean())}
            factory.done(tmp_path, trial(loss, seed), test=test, rows=rows)
    made = found(tmp_path, "transfer")
    assert made.noise.rows == 50
    assert made.noise.covariance[0, 0] == pytest.approx(made.values[0] * (1 - made.values[0]) / 50, rel=0.2)


def test_seeds_on_different_folds_share_no_noise(tmp_path: Path) -> None:
    runs(tmp_path, np.random.default_rng(0), seeds=3, folds=True)
    made = found(tmp_path, "accuracy")
    assert made.folds is not None
    assert len(set(made.folds)) == 3
    assert made.folds[:3] == made.folds[3:]
    assert made.overlap == pytest.approx(0.2)  # 200 test rows and 1000 training rows
    assert made.noise.rows == 3 * N
    assert made.noise.covariance[0, 1] == made.noise.covariance[0, 4] == 0
    assert made.noise.covariance[0, 3] != 0


def test_training_sets_of_which_part_is_left_out_overlap_no_more_than_whole_folds(tmp_path: Path) -> None:
    """A long tail or --train-samples leaves fewer training rows, and what two folds share of them does not grow."""
    runs(tmp_path, np.random.default_rng(0), seeds=3, folds=True)
    for file in tmp_path.glob("*/result.json"):
        result = read_json(file)
        write_json(file, {**result, "data": {**result["data"], "samples": {"train": N, "test": N}}})
    assert found(tmp_path, "accuracy").overlap == 0.25


def test_only_folds_that_all_losses_have_finished_are_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES, N)
    for loss, folds in (("ce", (0, 1, 2)), ("sln", (0, 2))):
        for fold in folds:
            rows = answers_of(rng, 0.9, target)
            content = trial(loss, fold) | {"data": {"name": "digits", "options": {}, "seed": 0, "fold": fold}}
            factory.done(tmp_path, content, test=measured(rows), rows=rows)
    made = found(tmp_path, "accuracy")
    assert made.losses == ("ce", "ce", "sln", "sln")
    assert any("only the seeds that every loss has finished are compared: 0, 2" in note for note in made.notes)


def test_runs_that_were_tested_on_other_rows_are_taken_as_unrelated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, CLASSES, N)
    for loss in ("ce", "sln"):
        rows = answers_of(rng, 0.9, target)
        content = trial(loss) | {"data": {"name": "digits", "options": {}, "seed": int(loss == "ce")}}
        factory.done(tmp_path, content, test=measured(rows), rows=rows)
    made = found(tmp_path, "accuracy")
    assert made.noise.covariance[0, 1] == 0
    assert made.folds is None


def test_of_old_runs_the_noise_of_accuracy_is_that_of_a_share(tmp_path: Path) -> None:
    for loss, accuracy in (("ce", 0.9), ("sln", 1.0)):
        for seed in range(2):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": accuracy})
    made = found(tmp_path, "accuracy")
    p = 181 / 202  # of 200 rows 180 are right; one right and one wrong row are added
    assert made.noise.covariance[0, :2] == pytest.approx([p * (1 - p) / 200] * 2)  # seeds share the rows
    assert made.noise.covariance[0, 2:] == pytest.approx([0, 0])
    assert made.noise.covariance[2, 2] > 0
    assert "These runs do not hold what they answered on each test row" in made.notes[0]
    other = found(tmp_path, "single-logit")
    assert "noise of the test set is not known" in other.problem
    assert "These runs do not hold balanced accuracy" in found(tmp_path, "balanced").problem


def test_old_and_new_runs_together_are_compared_like_old_ones(tmp_path: Path) -> None:
    runs(tmp_path, np.random.default_rng(0))
    factory.done(tmp_path, trial("mse"), test={"accuracy": 0.8})
    made = found(tmp_path, "accuracy")
    assert made.noise.covariance[0, 2] == 0
    assert made.noise.covariance[0, 1] > 0
    assert any(note.startswith("1 of 5 runs do not hold") for note in made.notes)


def test_damaged_rows_are_named_and_the_run_counts_as_an_old_one(tmp_path: Path) -> None:
    runs(tmp_path, np.random.default_rng(0))
    path = tmp_path / factory.identity(trial("ce", 1)) / "rows.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    made = found(tmp_path, "accuracy")
    assert any(str(path) in note for note in made.notes)
    assert made.losses == ("ce", "ce", "sln", "sln")


@pytest.mark.parametrize("goal", ["accuracy", "balanced", "calibration"])
def test_a_loss_with_an_undefined_value_is_left_out_and_named(tmp_path: Path, goal: str) -> None:
    runs(tmp_path, np.random.default_rng(0))
    broken = {GOALS[goal].measure: float("nan")}
    factory.done(tmp_path, trial("mse", 3), test=broken)
    made = found(tmp_path, goal)
    assert set(made.losses) == {"ce", "sln"}
    assert made.notes[0] == f"mse is left out: its {GOALS[goal].noun} is undefined with seed 3."


def test_what_is_left_when_losses_failed(tmp_path: Path) -> None:
    factory.failed(tmp_path, trial("sln"))
    assert "All runs failed" in found(tmp_path, "accuracy").problem
    factory.done(tmp_path, trial("ce"), test={"accuracy": 0.9})
    assert found(tmp_path, "accuracy").problem == (
        "sln has no finished run, so it is not compared. Only ce is left, so there is nothing to compare it with."
    )


def test_a_class_without_test_rows_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for loss in ("ce", "sln"):
        for seed in range(2):
            rows = answers_of(rng, 0.9, rng.integers(0, 2, N))
            factory.done(tmp_path, trial(loss, seed), test=measured(rows), rows=rows, classes=("cat", "dog", "eel"))
    (note,) = found(tmp_path, "balanced").notes
    assert note == "No test row is of class eel, so balanced accuracy is the mean over the other classes."


def test_data_that_cannot_answer(tmp_path: Path) -> None:
    runs(tmp_path, np.random.default_rng(0))
    assert "no test samples of unknown classes" in found(tmp_path, "open-set").problem
    assert "no test samples of unknown classes" in found(tmp_path, "transfer").problem
