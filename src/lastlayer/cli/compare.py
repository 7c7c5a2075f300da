"""`lastlayer compare` and `lastlayer train`: train every chosen loss over several seeds, measure, tabulate."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastlayer.cli._settings import Settings, takes_settings

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lastlayer.runners import Event, Plan
    from lastlayer.training import Trial

Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..., or auto.")]
Workers = Annotated[int | None, typer.Option(help="Processes on the CPU; one a core if not given.")]
RetryFailed = Annotated[bool, typer.Option(help="Run failed trials again.")]
TensorBoard = Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")]


@takes_settings
def compare(
    settings: Settings,
    losses: Annotated[
        str | None, typer.Option(help="Names by commas, with hyperparameters by colons: ce,sln:gamma=0.5.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds a loss.", min=1)] = 3,
    tune: Annotated[bool, typer.Option(help="Search learning rate and weight decay for each loss first.")] = False,
    out: Out = Path("runs"),
    device: Device = "auto",
    workers: Workers = None,
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Which loss for this data, and what does it do to the features? Trains them all and shows one table and one page.

    Without options: scikit-learn's digits, six losses, three seeds. Runs are kept in ./runs; the same command again
    skips what is done and resumes what was cut. Every measure is taken on train and test, in evaluation mode, without
    augmentation, in float32.
    """
    from lastlayer.training.defaults import DEFAULT_LOSSES

    names = list(DEFAULT_LOSSES) if losses is None else [name.strip() for name in losses.split(",") if name.strip()]
    if not names:
        raise ValueError("--losses names no loss")
    plan = _plan(settings, out, device, workers, retry_failed, tensorboard)
    trials = settings.trials(names, list(range(seeds)))
    if tune:
        trials = _tuned(trials, plan)
    _run(trials, plan, f"{settings.data}: {len(names)} losses, {seeds} seeds")
    _show(trials, plan)


@takes_settings
def train(
    settings: Settings,
    loss: Annotated[str, typer.Option(help="A loss, with hyperparameters by colons: sln:gamma=0.5.")] = "ce",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Out = Path("runs"),
    device: Device = "auto",
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Train one loss with one seed, and measure it."""
    plan = _plan(settings, out, device, None, retry_failed, tensorboard)
    trials = settings.trials([loss], [seed])
    _run(trials, plan, f"{settings.data}: {loss}, seed {seed}")
    _show(trials, plan)
    typer.echo(f"run: {plan.folder(trials[0]).path}")


def _plan(
    settings: Settings, out: Path, device: str, workers: int | None, retry_failed: bool, tensorboard: Path | None
) -> Plan:
    from lastlayer.runners import Plan

    return Plan(out, device, workers, None, settings.data_root, retry_failed, tensorboard)


def _run(trials: Sequence[Trial], plan: Plan, title: str) -> None:
    from lastlayer.runners import run_trials
    from lastlayer.runs.files import write_json

    command = shlex.join(["lastlayer", *sys.argv[1:]])
    listed = [{"identity": trial.identity, "trial": trial.to_dict()} for trial in trials]
    write_json(_comparison_file(trials, plan), {"title": title, "trials": listed, "command": command})
    events = run_trials(trials, plan)
    try:
        with contextlib.closing(events), _shown(trials) as show:  # type: ignore[type-var]
            for event in events:
                show(event)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; every whole epoch is kept. To continue: {command}", err=True)
        raise typer.Exit(130) from None


def _comparison_file(trials: Sequence[Trial], plan: Plan) -> Path:
    together = hashlib.sha256("".join(trial.identity for trial in trials).encode()).hexdigest()[:8]
    return plan.root / f"compare-{together}.json"


@contextlib.contextmanager
def _shown(trials: Sequence[Trial]) -> Iterator[_Show]:
    """Live progress in a terminal: a line for each running trial and one for all. Elsewhere only failures are said."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _Show(bars, trials)


class _Show:
    """Turns events into progress bars."""

    def __init__(self, bars: Progress, trials: Sequence[Trial]) -> None:
        self.bars, self.trials = bars, trials
        self.rows: dict[int, TaskID] = {}
        self.ended = 0
        self.all = bars.add_task(f"{len(trials)} trials", total=len(trials), state="")

    def __call__(self, event: Event) -> None:
        trial = self.trials[event.index]
        name = f"{trial.loss.name} seed {trial.seed}"
        if event.kind == "start":
            self.rows[event.index] = self.bars.add_task(name, total=None, state="loading")
        elif event.kind == "progress" and event.progress is not None:
            now = event.progress
            state = f"epoch {now.epoch + 1}/{now.epochs}"
            if now.loss is not None and now.accuracy is not None:
                state += f"  loss {now.loss:.4f}  accuracy {now.accuracy:.1%}"
            self.bars.update(self.rows[event.index], completed=now.step, total=now.steps, state=state)
        if event.kind in ("done", "failed", "skip"):
            self.ended += 1
            if event.index in self.rows:
                self.bars.remove_task(self.rows.pop(event.index))
            self.bars.update(self.all, completed=self.ended, state=f"{self.ended} of {len(self.trials)} ended")
        if event.kind == "failed":
            self.bars.console.print(f"failed: {name}: {event.message}", markup=False)


def _show(trials: Sequence[Trial], plan: Plan) -> None:
    """Print the tables and write the page; end with exit code 1 if a trial is not done."""
    from lastlayer import reports

    comparison = _comparison_file(trials, plan)
    loaded = reports.load(plan.root, comparison)
    summary = reports.summarise(loaded)
    reports.print_tables(summary)
    if len(trials) > 1:
        page = comparison.with_suffix(".html")
        reports.write_page(summary, page)
        typer.echo(f"page: {page}")
    missing = sum(plan.folder(trial).status != "done" for trial in trials)
    if missing:
        typer.echo(f"{missing} of {len(trials)} trials are not done: lastlayer status {plan.root}", err=True)
        raise typer.Exit(1)


def _tuned(trials: Sequence[Trial], plan: Plan) -> list[Trial]:
    """The trials at the learning rate and weight decay that did best on a validation split, one budget for all."""
    from lastlayer.training.tuning import best_settings, candidates

    def without_seed(trial: Trial) -> Trial:
        return dataclasses.replace(trial, seed=0)

    settings = {without_seed(trial).identity: without_seed(trial) for trial in trials}
    grids = {key: candidates(trial) for key, trial in settings.items()}
    _run([candidate for grid in grids.values() for candidate in grid], plan, f"tuning of {len(settings)} settings")
    chosen = {}
    for key, trial in settings.items():
        chosen[key], note = best_settings(trial, grids[key], plan.folder)
        typer.echo(f"tuned {trial.loss.name}: {note}", err=True)
    return [dataclasses.replace(chosen[without_seed(trial).identity], seed=trial.seed) for trial in trials]
