"""`--tune`: learning rate and weight decay of every setting, searched with the same budget before the trials run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from lastlayer.cli._running import counted, loss_in_words, refuse_other_data, run

if TYPE_CHECKING:
    from lastlayer.data import Dataset
    from lastlayer.runners import Placement
    from lastlayer.training import Trial


def tuned(trials: Sequence[Trial], plan: Placement, dataset: Dataset | None = None) -> list[Trial]:
    """The trials at the learning rate and weight decay that did best on a validation split, one budget for all.

    Args:
        trials: resolved.
        plan: where and how the candidates run.
        dataset: the data of all trials, if it is loaded already; its validation samples are held out here.
    """
    from lastlayer.data import hold_out
    from lastlayer.training.tuning import best_settings, candidates

    def without_seed(trial: Trial) -> Trial:
        return dataclasses.replace(trial, seed=0)

    settings = {without_seed(trial).identity: without_seed(trial) for trial in trials}
    grids = {key: candidates(trial) for key, trial in settings.items()}
    every = [candidate for grid in grids.values() for candidate in grid]
    if dataset is not None:
        refuse_other_data(every, plan, dataset)
        if dataset.validation is None:
            dataset = hold_out(dataset, every[0].data.holdout, every[0].data.seed)
    run(every, plan, f"tuning of {counted(len(settings), 'setting')}", dataset)
    chosen = {}
    for key, trial in settings.items():
        chosen[key], note = best_settings(trial, grids[key], plan.folder)
        typer.echo(f"tuned {loss_in_words(trial)}: {note}", err=True)
    return [dataclasses.replace(chosen[without_seed(trial).identity], seed=trial.seed) for trial in trials]
