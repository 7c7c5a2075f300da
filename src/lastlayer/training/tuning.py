"""Learning rate and weight decay, chosen by successive halving on training samples that are held out.

Test samples take no part: a candidate is never measured on them. Every loss gets the same budget:

1. The trial's own rate times 0.3, 1 and 3 and its own decay times 0.1, 1 and 10 make nine settings. Each trains for a
   sixth of the epochs.
2. For each rate, the decay that did best goes on, and trains for all epochs. Short trainings favour large rates, so
   the rates are not compared before this.
3. If the best setting lies at the edge of what was tried, one more is tried beyond that edge. The smallest decay is no
   edge: it is next to none, and a smaller one would change nothing.

The best has the highest accuracy on the held-out samples, or balanced accuracy. NLL decides ties.

Tests: tests/training/test_tuning.py.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

import torch

from lastlayer.data import Dataset
from lastlayer.training.build import build, own_modules
from lastlayer.training.engine.step import loss_of
from lastlayer.training.facts import Facts
from lastlayer.training.load import load
from lastlayer.training.trial import Optimiser, Trial

TUNING_SEED = 1_000_003  # not a seed that anyone compares with
HOLDOUT = 0.1
RATE_FACTORS = (0.3, 1.0, 3.0)
DECAY_FACTORS = (0.1, 1.0, 10.0)
SHORT = 6  # the first candidates train for this part of the epochs
TRAININGS = 6  # what the search for one choice costs, in whole trainings: 9 / SHORT, 3, and one or two beyond the edge
LEAST_STEPS = 100
LEAST_ROWS = 20

Score = Mapping[str, float]
Search = Generator[list[Trial], Sequence[Score | None], "Choice"]


@dataclass(frozen=True)
class Choice:
    """What a search has found.

    Attributes:
        optimiser: with the settings that did best, or as it was if all candidates failed.
        tried: how many settings were tried.
        score: of the best one, on the held-out samples; None if all failed.
        edge: names of the settings whose value lies at the edge of what was tried, even after widening.
        widened: names of the settings for which a value beyond the first grid was tried.
    """

    optimiser: Optimiser
    tried: int
    score: Score | None
    edge: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()


def search(
    trial: Trial,
    names: Sequence[str] = ("lr", "weight_decay"),
    *,
    measure: str = "accuracy",
    holdout: float = HOLDOUT,
) -> Search:
    """Choose settings of the optimiser.

    This is a generator. It yields trials to train, and is sent what each of them measured on the held-out samples, or
    None for one that failed. It returns the choice. So whoever trains decides where, and may run several searches side
    by side.

    Args:
        trial: resolved. What is chosen does not depend on its seed.
        names: what to choose: "lr", "weight_decay" or both.
        measure: "accuracy" or "balanced_accuracy".
        holdout: share of each class that is held out, if the trial does not say itself.

    Example:
        >>> steps = search(Trial().resolved())
        >>> short = next(steps)
        >>> len(short), {candidate.schedule.epochs for candidate in short}
        (9, {5})
    """
    epochs = trial.schedule.epochs
    grid = settings = _grid(trial, names)
    short = max(1, round(epochs / SHORT))
    if len(names) > 1 and short < epochs:
        scores = yield [_candidate(one, short, holdout) for one in grid]
        grid = _best_of_each_rate(grid, scores, measure)
    scores = list((yield [_candidate(one, epochs, holdout) for one in grid])) if grid else []
    place = best(scores, measure)
    if place is None:
        return Choice(trial.optimiser, len(settings), None)
    wider = {name: one for name in names if (one := _beyond(grid[place], name, settings)) is not None}
    if wider:
        scores += yield [_candidate(one, epochs, holdout) for one in wider.values()]
        grid, settings = [*grid, *wider.values()], [*settings, *wider.values()]
        place = best(scores, measure)
        assert place is not None
    edge = tuple(name for name in names if _beyond(grid[place], name, settings) is not None)
    return Choice(grid[place].optimiser, len(settings), scores[place], edge, tuple(wider))


def best(scores: Sequence[Score | None], measure: str = "accuracy") -> int | None:
    """Which candidate has the highest value of a measure on held-out samples; the lower NLL decides ties.

    Args:
        scores: what each candidate measured; None for one that failed.
        measure: by its name in `lastlayer.measures`.

    Returns:
        The place of the best one; None if all have failed.

    Example:
        >>> best([None, {"accuracy": 0.9, "nll": 0.4}, {"accuracy": 0.9, "nll": 0.3}])
        2
    """

    def rank(place: int) -> tuple[float, float]:
        value, nll = ((scores[place] or {}).get(name, math.nan) for name in (measure, "nll"))
        return (-math.inf if math.isnan(value) else value, -math.inf if math.isnan(nll) else -nll)

    return max((place for place, score in enumerate(scores) if score is not None), key=rank, default=None)


def held_out(trial: Trial, holdout: float = HOLDOUT) -> Trial:
    """A resolved trial as a candidate: part of its training set is held out, and it is measured once, at the end."""
    data = dataclasses.replace(trial.data, holdout=trial.data.holdout or holdout)
    return dataclasses.replace(trial, data=data, seed=TUNING_SEED, evaluations=1)


def share_held_out(rows: int) -> float:
    """The share of the training samples to hold out: a tenth, or more if that is fewer than 100, up to a quarter.

    Example:
        >>> share_held_out(10_000), share_held_out(500), share_held_out(100)
        (0.1, 0.2, 0.25)
    """
    return round(min(0.25, max(HOLDOUT, 100 / rows)), 2)


def too_small(trial: Trial, rows: int) -> str:
    """Why a search would choose by chance, or "".

    Args:
        trial: resolved.
        rows: how many training samples there are.
    """
    held = round(rows * (trial.data.holdout or share_held_out(rows)))
    steps = max(1, (rows - held) // trial.batch_size) * trial.schedule.epochs
    if held < LEAST_ROWS:
        return f"{held} held-out samples are too few to tell settings apart"
    if steps < LEAST_STEPS:
        return f"trainings of {steps} steps are too short to tell settings apart"
    return ""


def training_seconds(
    trial: Trial, dataset: Dataset, device: torch.device | str = "cpu", trust: Collection[str] = ()
) -> float:
    """Roughly how long a training takes, without measuring: loss and gradients of one batch are timed a few times.

    No optimiser is made for this. In a new process it would import torch's compiler, which takes longer than the rest.

    Args:
        trial: resolved.
        dataset: its data.
        device: where it would train.
        trust: modules that the run of the teacher may name. Those that the trial itself names are trusted.
    """
    with torch.random.fork_rng(devices=[]):
        network, loss = build(trial, Facts.of(dataset))
        network, loss = network.to(device), loss.to(device)
    batch = torch.arange(min(trial.batch_size, len(dataset.train)))
    inputs, target = (part[batch].to(device) for part in (dataset.train.inputs, dataset.train.target))
    teacher = (
        None if trial.teacher is None else load(trial.teacher, trust=[*own_modules(trial), *trust]).network.to(device)
    )
    fastest = math.inf
    for _ in range(4):
        began = time.perf_counter()
        taught = None
        if teacher is not None:
            features = teacher.backbone(teacher.normalize(inputs))
            taught = teacher.head(features).detach(), features.detach()
        value, _ = loss_of(network.head, loss, network.backbone(network.normalize(inputs)), target, taught)
        value.backward()  # type: ignore[no-untyped-call]
        if value.is_cuda:
            torch.cuda.synchronize(value.device)
        fastest = min(fastest, time.perf_counter() - began)
        if fastest > 1:  # the first step is slower than the others, but here that hardly counts
            break
    return trial.schedule.epochs * max(1, len(dataset.train) // len(batch)) * fastest


def _candidate(trial: Trial, epochs: int, holdout: float) -> Trial:
    """A trial as it is tried: for so many epochs, and measured on the held-out samples alone."""
    warmup = trial.schedule.warmup * epochs / trial.schedule.epochs
    schedule = dataclasses.replace(trial.schedule, epochs=epochs, warmup=warmup)
    return dataclasses.replace(held_out(trial, holdout), schedule=schedule, evaluations=0)


def _grid(trial: Trial, names: Sequence[str]) -> list[Trial]:
    """The trial with its own settings and the others of the first grid, each once: a decay of 0 has no multiples."""
    rates = RATE_FACTORS if "lr" in names else (1.0,)
    decays = DECAY_FACTORS if "weight_decay" in names else (1.0,)
    grid = [_scaled(_scaled(trial, "lr", rate), "weight_decay", decay) for rate in rates for decay in decays]
    return list({one.identity: one for one in grid}.values())


def _best_of_each_rate(grid: Sequence[Trial], scores: Sequence[Score | None], measure: str) -> list[Trial]:
    """For each learning rate, the setting that did best. A rate at which all settings failed is left out."""
    chosen = []
    for rate in dict.fromkeys(one.optimiser.lr for one in grid):
        members = [place for place, one in enumerate(grid) if one.optimiser.lr == rate]
        place = best([scores[member] for member in members], measure)
        chosen += [] if place is None else [grid[members[place]]]
    return chosen


def _scaled(trial: Trial, name: str, factor: float) -> Trial:
    value = float(f"{getattr(trial.optimiser, name) * factor:.6g}")
    return trial.with_settings({f"optimiser.{name}": value})


def _beyond(chosen: Trial, name: str, settings: Sequence[Trial]) -> Trial | None:
    """If a setting of the chosen trial lies at the edge of what was tried, the trial with the next value beyond it."""
    values = sorted({getattr(one.optimiser, name) for one in settings})
    value = getattr(chosen.optimiser, name)
    edges = values[-1:] if name == "weight_decay" else [values[0], values[-1]]
    if len(values) < 2 or value not in edges:
        return None
    return _scaled(chosen, name, value / (values[1] if value == values[0] else values[-2]))
