"""The names of the library that the golden files need. If one of them moves, only this file changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lastlayer import data
from lastlayer.training import Trial


def train(trial: Trial, folder: Path) -> dict[str, Any]:
    """Train a trial in a run folder and return its result."""
    from lastlayer.training import finish_fit, fit

    return finish_fit(fit(trial, folder))


def checkpoint(folder: Path) -> dict[str, Any]:
    """The last checkpoint of a run."""
    from lastlayer.runs import RunFolder

    state = RunFolder(folder).load_checkpoint()
    assert state is not None
    return state


def compared_trials(losses: list[str], **options: Any) -> list[Trial]:
    """The trials of `lastlayer compare` with some losses and options, two seeds each."""
    from lastlayer.cli._options import Settings  # private: no other way from options to trials
    from lastlayer.runners import Placement

    return Settings(**options).trials(losses, [0, 1], Placement(Path("no-such-folder")))[0]


def default_losses() -> list[str]:
    """The losses of `lastlayer compare` without options."""
    from lastlayer.cli.compare import DEFAULT_LOSSES

    return DEFAULT_LOSSES.split(",")


def probe_trials(losses: list[str]) -> list[Trial]:
    """The trials of `lastlayer linear-probe` on a small file of features."""
    from lastlayer.training.recipes import choose_rate, probe_trial

    base = probe_trial(data.load("gaussian"), "features.npz", "test.npz", test_fraction=0.3)
    return [choose_rate(base.with_settings({"loss": {"name": loss}})) for loss in losses]
