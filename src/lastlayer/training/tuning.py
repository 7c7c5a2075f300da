"""Searching learning rate and weight decay of a trial on a validation split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from lastlayer.runs import RunFolder
from lastlayer.training.trial import Trial

RATE_FACTORS = (0.1, 0.3, 1.0, 3.0)
DECAY_FACTORS = (0.1, 1.0, 10.0)
TUNING_SEED = 1_000_003  # not a seed anyone compares with
HOLDOUT = 0.1


def candidates(trial: Trial) -> list[Trial]:
    """The grid around a resolved trial's own learning rate and weight decay: twelve trials with a tenth held out."""
    assert trial.optimiser.lr is not None
    assert trial.optimiser.weight_decay is not None
    data = dataclasses.replace(trial.data, holdout=trial.data.holdout or HOLDOUT)
    grid = []
    for rate in RATE_FACTORS:
        for decay in DECAY_FACTORS:
            optimiser = dataclasses.replace(
                trial.optimiser,
                lr=float(f"{trial.optimiser.lr * rate:.6g}"),
                weight_decay=float(f"{trial.optimiser.weight_decay * decay:.6g}"),
            )
            grid.append(dataclasses.replace(trial, data=data, optimiser=optimiser, seed=TUNING_SEED, evaluations=1))
    return grid


def best_candidate(grid: Sequence[Trial], folder: Callable[[Trial], RunFolder]) -> tuple[Trial, float, int]:
    """The candidate with the highest validation accuracy, ties by validation NLL.

    Candidates that failed (a rate too large diverges) count as worst.

    Returns:
        The candidate, its validation accuracy, and how many candidates were done.

    Raises:
        ValueError: when every candidate failed.
    """
    scored = []
    for candidate in grid:
        if folder(candidate).status == "done":
            measures = folder(candidate).result()["measures"]["validation"]
            scored.append((measures["accuracy"], -measures["nll"], candidate))
    if not scored:
        raise ValueError(f"every setting tried for {grid[0].loss.name} failed: see lastlayer status")
    accuracy, _, best = max(scored, key=lambda entry: entry[:2])
    return best, accuracy, len(scored)


def best_settings(trial: Trial, grid: Sequence[Trial], folder: Callable[[Trial], RunFolder]) -> tuple[Trial, str]:
    """The trial with the learning rate and weight decay of its `best_candidate`, and a sentence on what was chosen."""
    best, accuracy, done = best_candidate(grid, folder)
    optimiser = best.optimiser
    rates = sorted({candidate.optimiser.lr or 0.0 for candidate in grid})
    edge = " (at the edge of the grid)" if optimiser.lr in (rates[0], rates[-1]) else ""
    note = (
        f"lr {optimiser.lr:g}{edge}, weight decay {optimiser.weight_decay:g}, validation accuracy {accuracy:.4f}, "
        f"{done} of {len(grid)} candidates done"
    )
    return dataclasses.replace(trial, optimiser=optimiser), note
