"""Searching learning rate and weight decay of a trial on a validation split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lastlayer.runs import RunFolder
from lastlayer.training.trial import Trial

RATE_FACTORS = (0.1, 0.3, 1.0, 3.0)
DECAY_FACTORS = (0.1, 1.0, 10.0)
TUNING_SEED = 1_000_003  # not a seed anyone compares with
HOLDOUT = 0.1


def held_out(trial: Trial) -> Trial:
    """A resolved trial as a candidate: part of its training set is held out, and it is measured once, at the end."""
    data = dataclasses.replace(trial.data, holdout=trial.data.holdout or HOLDOUT)
    return dataclasses.replace(trial, data=data, seed=TUNING_SEED, evaluations=1)


def candidates(trial: Trial) -> list[Trial]:
    """The grid around a resolved trial's own learning rate and weight decay: twelve trials with a tenth held out."""
    assert trial.optimiser.lr is not None
    assert trial.optimiser.weight_decay is not None
    base = held_out(trial)
    grid = []
    for rate in RATE_FACTORS:
        for decay in DECAY_FACTORS:
            optimiser = dataclasses.replace(
                trial.optimiser,
                lr=float(f"{trial.optimiser.lr * rate:.6g}"),
                weight_decay=float(f"{trial.optimiser.weight_decay * decay:.6g}"),
            )
            grid.append(dataclasses.replace(base, optimiser=optimiser))
    return grid


def validation(run: RunFolder) -> Mapping[str, float] | None:
    """What a candidate measured on the part held out; None if it failed (a rate too large diverges)."""
    measures: Mapping[str, float] | None = run.result()["measures"]["validation"] if run.status == "done" else None
    return measures


def best_candidate(
    grid: Sequence[Trial], scores: Sequence[Mapping[str, float] | None], runs: Path
) -> tuple[Trial, Mapping[str, float]]:
    """The candidate with the highest validation accuracy, ties by validation NLL, and its score; None counts as worst.

    Args:
        grid: the candidates.
        scores: what each measured on validation data.
        runs: folder of their runs, for whoever is to look there.

    Raises:
        ValueError: when every candidate failed.
    """
    scored = [(score, candidate) for score, candidate in zip(scores, grid, strict=True) if score is not None]
    if not scored:
        raise ValueError(f"every setting tried for {grid[0].loss.name} failed: see lastlayer status {runs}")
    score, best = max(scored, key=lambda entry: (entry[0]["accuracy"], -entry[0]["nll"]))
    return best, score


def best_settings(trial: Trial, grid: Sequence[Trial], folder: Callable[[Trial], RunFolder]) -> tuple[Trial, str]:
    """The trial with the learning rate and weight decay of its `best_candidate`, and a sentence on what was chosen."""
    scores = [validation(folder(candidate)) for candidate in grid]
    best, score = best_candidate(grid, scores, folder(trial).path.parent)
    optimiser = best.optimiser
    rates = sorted({candidate.optimiser.lr or 0.0 for candidate in grid})
    edge = " (at the edge of the grid)" if optimiser.lr in (rates[0], rates[-1]) else ""
    note = (
        f"lr {optimiser.lr:g}{edge}, weight decay {optimiser.weight_decay:g}, "
        f"validation accuracy {score['accuracy']:.4f}, {len(grid) - scores.count(None)} of {len(grid)} candidates done"
    )
    return dataclasses.replace(trial, optimiser=optimiser), note
