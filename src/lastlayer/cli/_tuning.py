"""Tuning before a comparison: whether it fits, the searches of all losses side by side, and what is said of them.

Tests: tests/cli/test_tuning.py.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lastlayer.cli._run import comparison_file, comparison_of, labels, refuse_other_data, run
from lastlayer.cli._say import counted

if TYPE_CHECKING:
    from lastlayer.data import Dataset
    from lastlayer.runners import Placement
    from lastlayer.runs import Comparison
    from lastlayer.training import Trial
    from lastlayer.training.tuning import Choice, Score, Search

LONGEST = 600.0  # seconds that tuning may take if nobody asked for it
TOGETHER = 8  # trials at a time on a GPU
WORDS = {"lr": "learning rate", "weight_decay": "weight decay"}
TOO_LONG = "it would take"


@dataclass(frozen=True)
class Tuned:
    """Trials with the settings that were chosen for them.

    Attributes:
        trials: to run.
        asked: the same trials with None for what was tuned, as a comparison file has them.
        facts: what a comparison file says of the tuning, by the label of the loss.
        goals: names of those that were asked for.
    """

    trials: list[Trial]
    asked: list[Trial]
    facts: dict[str, dict[str, Any]]
    goals: tuple[str, ...]

    def comparison(self, placement: Placement, title: str) -> Comparison:
        """What is written down of the comparison of these trials."""
        plain = comparison_of(self.trials, placement, title, self.asked)
        return dataclasses.replace(plain, goals=self.goals, tuning=self.facts)


def tuned(
    trials: Sequence[Trial],
    placement: Placement,
    dataset: Dataset,
    *,
    wanted: bool | None = None,
    names: Sequence[str] = ("lr", "weight_decay"),
    goals: Sequence[str] = (),
    given: Dataset | None = None,
) -> Tuned:
    """The trials with the learning rate and weight decay that did best on held-out training samples.

    Every loss gets the same budget. If each seed tests on another fold, the settings of a seed are chosen on the
    training samples of its own fold.

    Args:
        trials: resolved.
        placement: where and how the candidates run.
        dataset: the samples of the first trial.
        wanted: whether to tune; None tunes where it fits.
        names: settings of the optimiser that the user has not given.
        goals: names of those that were asked for.
        given: the data set as it was read, if the trials run in this process and share it.
    """
    from lastlayer.training.tuning import search, share_held_out

    settings = {_of_all_seeds(trial).identity: _of_all_seeds(trial) for trial in trials}
    share, measure = share_held_out(_rows(dataset)), _measure(goals, dataset)
    searches = {key: search(trial, names, measure=measure, holdout=share) for key, trial in settings.items()}
    why_not = _why_not(trials, list(settings.values()), searches, placement, dataset, wanted, names, given)
    if why_not:
        if wanted is None:
            typer.echo(f"learning rates are not tuned: {why_not}", err=True)
        facts = {label: _untuned(trial, why_not) for label, trial in zip(labels(trials), trials, strict=True)}
        return Tuned(list(trials), list(trials), facts, tuple(goals))
    choices, file = _run_searches(searches, placement, dataset, given)
    over = _over(names, measure, trials[0].data.holdout or share)
    made = [_with_choice(trial, choices[_of_all_seeds(trial).identity]) for trial in trials]
    asked = [_without(trial, names) for trial in trials]
    found: dict[str, list[Choice]] = {}
    for label, trial in zip(labels(asked), trials, strict=True):
        choice = choices[_of_all_seeds(trial).identity]
        if not any(choice is other for other in found.setdefault(label, [])):
            found[label].append(choice)
    for label, of_loss in found.items():
        typer.echo(_said(label, of_loss, measure), err=True)
    typer.echo(f"tuning: lastlayer report {file} shows every setting that was tried", err=True)
    facts = {label: _facts(of_loss, names, over) for label, of_loss in found.items()}
    return Tuned(made, asked, facts, tuple(goals))


def _measure(goals: Sequence[str], dataset: Dataset) -> str:
    """What to choose by: balanced accuracy if the first goal is about classes alike, and accuracy otherwise."""
    from lastlayer.reports import KnownData, default_goals

    first = goals[0] if goals else default_goals(KnownData.of(dataset), dataset.num_classes)[0].name
    return "balanced_accuracy" if first in ("balanced", "tail") else "accuracy"


def _run_searches(
    searches: dict[str, Search], placement: Placement, dataset: Dataset, given: Dataset | None
) -> tuple[dict[str, Choice], Path]:
    """Run all searches side by side, and keep one comparison file of all their candidates."""
    waiting = {key: next(one) for key, one in searches.items()}
    choices: dict[str, Choice] = {}
    every: list[Trial] = []
    file = comparison_file([trial for grid in waiting.values() for trial in grid], placement)
    while waiting:
        batch = [trial for grid in waiting.values() for trial in grid]
        every += batch
        refuse_other_data(batch, placement, dataset)
        title = f"tuning: {counted(len(every), 'trial')}"
        whole = dataclasses.replace(comparison_of(every, placement, title), file=file)
        run(batch, placement, title, given, comparison=whole)
        for key, grid in list(waiting.items()):
            try:
                waiting[key] = searches[key].send([_score(trial, placement) for trial in grid])
            except StopIteration as stop:
                choices[key] = stop.value
                del waiting[key]
    return choices, file


def _score(trial: Trial, placement: Placement) -> Score | None:
    """What a candidate measured; None if it failed, because a rate too large diverges."""
    folder = placement.folder(trial)
    if folder.status != "done":
        return None
    score: Score = folder.result()["measures"]["validation"]
    return score


def _why_not(
    trials: Sequence[Trial],
    settings: Sequence[Trial],
    searches: Mapping[str, Search],
    placement: Placement,
    dataset: Dataset,
    wanted: bool | None,
    names: Sequence[str],
    given: Dataset | None,
) -> str:
    """Why nothing is tuned; "" if it is. A command that is typed again decides as it did the first time."""
    from lastlayer.runs import DamagedFileError, read_comparison
    from lastlayer.training.tuning import search, share_held_out, too_small

    if wanted is False:
        return "--no-tune"
    if not names:
        return "the learning rate and the weight decay were given"
    if small := too_small(trials[0], _rows(dataset)):
        if wanted is None:
            return small
        typer.echo(f"--tune: {small}; what it chooses is chance", err=True)
    if wanted:
        return ""
    share = share_held_out(_rows(dataset))
    first = [trial for one in settings for trial in next(search(one, names, holdout=share))]
    if comparison_file(first, placement).exists():
        return ""
    try:
        before = read_comparison(comparison_file(trials, placement)).tuning or {}
        reasons = {str(entry.get("why_not", "")) for entry in before.values()}
    except (DamagedFileError, OSError):
        reasons = set()
    if said := next((reason for reason in reasons if reason.startswith(TOO_LONG)), ""):
        return said
    seconds = _estimate(settings, placement, dataset, given)
    if seconds <= LONGEST:
        return ""
    return f"{TOO_LONG} about {_in_words(seconds)}, more than {_in_words(LONGEST)}; --tune does it all the same"


def _estimate(settings: Sequence[Trial], placement: Placement, dataset: Dataset, given: Dataset | None) -> float:
    """Roughly how many seconds the searches take: some steps of the first trial are timed."""
    import torch

    from lastlayer._core.precision import threads
    from lastlayer.runners import resolve_device
    from lastlayer.training.tuning import TRAININGS, training_seconds

    device = resolve_device(placement.device)
    together = (
        1 if given is not None else TOGETHER if device.startswith("cuda") else placement.workers or os.cpu_count() or 1
    )
    untaught = next((trial for trial in settings if trial.teacher is None), settings[0])
    try:
        with threads(max(1, torch.get_num_threads() // together)):
            each = training_seconds(untaught, dataset, device, placement.trust)
    except Exception:  # a trial that cannot train says so itself, in its run folder
        each = 0.0
    return each * TRAININGS * len(settings) / together


def _in_words(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 7200 else f"{max(seconds, 60) / 60:.0f} minutes"


def _rows(dataset: Dataset) -> int:
    """Training samples, those included that are held out already."""
    return len(dataset.train) + (0 if dataset.validation is None else len(dataset.validation))


def _of_all_seeds(trial: Trial) -> Trial:
    return dataclasses.replace(trial, seed=0)


def _with_choice(trial: Trial, choice: Choice) -> Trial:
    return dataclasses.replace(trial, optimiser=choice.optimiser)


def _without(trial: Trial, names: Sequence[str]) -> Trial:
    return trial.with_settings({f"optimiser.{name}": None for name in names})


def _over(names: Sequence[str], measure: str, share: float) -> str:
    """What was tried and on which rows, as words that follow "tuned over"."""
    from lastlayer.training.tuning import DECAY_FACTORS, RATE_FACTORS

    factors = {"lr": RATE_FACTORS, "weight_decay": DECAY_FACTORS}
    grid = " and ".join(f"{WORDS[name]} x {', '.join(f'{one:g}' for one in factors[name])}" for name in names)
    by = measure.replace("_", " ")
    return f"{grid} of the loss's own, by {by} on {share:.0%} of each class, held out of training"


def _facts(choices: Sequence[Choice], names: Sequence[str], over: str) -> dict[str, Any]:
    """What the comparison file says of one loss."""
    failed = any(choice.score is None for choice in choices)
    return {
        "lr": [choice.optimiser.lr for choice in choices],
        "weight_decay": [choice.optimiser.weight_decay for choice in choices],
        "tuned": list(names),
        "tried": max(choice.tried for choice in choices),
        "widened": any(choice.widened for choice in choices),
        "edge": any(choice.edge for choice in choices),
        "over": over,
        "why_not": "all settings that were tried failed" if failed else "",
    }


def _untuned(trial: Trial, why_not: str) -> dict[str, Any]:
    optimiser = {"lr": [trial.optimiser.lr], "weight_decay": [trial.optimiser.weight_decay]}
    return {**optimiser, "tuned": [], "tried": 0, "edge": False, "over": "", "why_not": why_not}


def _said(label: str, choices: Sequence[Choice], measure: str) -> str:
    """What was chosen for one loss, in a line."""
    failed = sum(choice.score is None for choice in choices)
    if failed:
        whole = "" if failed == len(choices) else f" on {failed} of {len(choices)} folds"
        return f"tuning {label}: every setting failed{whole}, so it keeps its own learning rate and weight decay there"
    rates = ", ".join(f"{choice.optimiser.lr:g}" for choice in choices)
    decays = ", ".join(f"{choice.optimiser.weight_decay:g}" for choice in choices)
    scores = [choice.score[measure] for choice in choices if choice.score is not None]
    edges = sorted({WORDS[name] for choice in choices for name in choice.edge})
    wider = sorted({WORDS[name] for choice in choices for name in choice.widened})
    line = f"tuned {label}: lr {rates}, weight decay {decays}, "
    line += f"validation {measure.replace('_', ' ')} {sum(scores) / len(scores):.4f}, "
    line += f"{counted(max(choice.tried for choice in choices), 'setting')} tried"
    if wider:
        line += f"; the grid was widened for the {' and the '.join(wider)}"
    if edges:
        line += f"; the best {' and '.join(edges)} still {'lies' if len(edges) == 1 else 'lie'} at its edge"
    return line
