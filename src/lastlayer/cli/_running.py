"""Running trials from the command line: progress while they run, tables and the page when they are done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lastlayer.data import Dataset
    from lastlayer.runners import Event, Placement
    from lastlayer.training import Trial
    from lastlayer.training.steps import Progress as Moment

# columns of a terminal
_STATE, _EPOCH = (len(f"epoch 100/100{more}") for more in ("  loss 0.0000  accuracy 100.0%", ""))
_BAR, _LEFT = 10, 5


def run(
    trials: Sequence[Trial], plan: Placement, title: str, dataset: Dataset | None = None, notes: Sequence[str] = ()
) -> None:
    """Run what is not done, with live progress; Ctrl-C ends it with the command that goes on.

    Args:
        trials: resolved.
        plan: where and how.
        title: of the comparison, for reports.
        dataset: the data of all trials, if it is loaded already.
        notes: to be said first.
    """
    from lastlayer._core.files import write_json
    from lastlayer.runners import run_trials
    from lastlayer.training.logging import import_writer

    events = run_trials(trials, plan, dataset)
    if plan.tensorboard is not None:
        import_writer()
        make_folder("--tensorboard", plan.tensorboard)
    make_folder("--out", plan.root)
    listed = [{"identity": trial.identity, "trial": trial.to_dict()} for trial in trials]
    try:
        write_json(comparison_file(trials, plan), {"title": title, "trials": listed, "command": _command()})
    except OSError as error:
        raise ValueError(
            f"--out {plan.root}: nothing can be written there ({error.strerror}); choose another"
        ) from error
    for note in [*notes, *_changed_code(trials, plan)]:
        typer.echo(note, err=True)
    try:
        with contextlib.closing(events), _shown(trials, plan) as show:  # type: ignore[type-var]
            for event in events:
                show(event)
    except KeyboardInterrupt:
        say_stopped("checkpoints are kept")


def say_stopped(kept: str) -> NoReturn:
    """End after Ctrl-C with what is kept and the command that goes on."""
    typer.echo(f"\nstopped; {kept}. To continue: {_command()}", err=True)
    raise typer.Exit(130) from None


def _command() -> str:
    """What was typed."""
    return shlex.join(["lastlayer", *sys.argv[1:]])


def make_folder(option: str, folder: Path) -> None:
    """Make a folder to write to, before anything runs: hours later is late to hear that there can be none.

    Raises:
        ValueError: naming the option.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{option} {folder}: no folder can be made there ({error.strerror}); choose another"
        ) from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{option} {folder}: nothing can be written there; choose another")


def check_trials(trials: Sequence[Trial], dataset: Dataset) -> list[str]:
    """Refuse a loss that is there twice, and what only a first step would bring to light; give notes for the user."""
    from lastlayer.training import Facts
    from lastlayer.training.check import rehearse

    seen, facts = set(), Facts.of(dataset)
    notes = dict.fromkeys(dataset.notes)
    for trial in trials:
        if trial.identity in seen:
            raise ValueError(f"--losses: {loss_in_words(trial)} is there twice; name each once")
        seen.add(trial.identity)
        if trial.seed == trials[0].seed:
            notes.update(dict.fromkeys(rehearse(trial, facts)))
    return list(notes)


def loss_in_words(trial: Trial) -> str:
    """A trial's loss with its hyperparameters."""
    return " ".join([trial.loss.name, *(f"{name}={value}" for name, value in trial.loss.options.items())])


def refuse_other_data(trials: Sequence[Trial], plan: Placement, dataset: Dataset) -> None:
    """Raise where a run was done on data that has changed since: a trial names its files, not what is in them."""
    from lastlayer.runs import DamagedFileError

    for trial in trials:
        folder = plan.folder(trial)
        if folder.status != "done":
            continue
        try:
            checksums = folder.result()["data"]["checksums"]
        except DamagedFileError:  # it will be told among the results
            continue
        if checksums != dict(dataset.checksums):
            raise ValueError(
                f"{trial.data.name} has changed since {folder.path} was trained on it: choose another --out, "
                "or delete that folder"
            )


def _changed_code(trials: Sequence[Trial], plan: Placement) -> list[str]:
    """Notes on runs that were done with older code of a loss or model of the user's own, which trials only name."""
    from lastlayer.runs import DamagedFileError
    from lastlayer.training.build import changed_code, code_of

    older: dict[str, list[str]] = {}
    for trial in trials:
        folder = plan.folder(trial)
        if not code_of(trial) or folder.status != "done":
            continue
        with contextlib.suppress(DamagedFileError):  # it will be told among the results
            for part in changed_code(trial, folder.result().get("code", {})):
                older.setdefault(part, []).append(str(folder.path))
    return [
        f"{part} has changed since {counted(len(folders), 'run')} of these {'was' if len(folders) == 1 else 'were'} "
        f"trained, which stay as they are: to train them anew, delete {' '.join(folders)}"
        for part, folders in older.items()
    ]


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "loss"), counted(2, "loss"), counted(3, "seed")
        ('1 loss', '2 losses', '3 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def comparison_file(trials: Sequence[Trial], plan: Placement) -> Path:
    """Where a comparison of these trials is written down."""
    together = hashlib.sha256("".join(trial.identity for trial in trials).encode()).hexdigest()[:8]
    return plan.root / f"compare-{together}.json"


def names_of(trials: Sequence[Trial]) -> list[str]:
    """What each trial is called while it runs: as in the table, and by its seed."""
    from lastlayer.reports.labels import labels_of

    keys = [json.dumps({**trial.to_dict(), "seed": None}) for trial in trials]
    apart = list(dict.fromkeys(keys))
    labels = dict(zip(apart, labels_of([json.loads(key) for key in apart]), strict=True))
    return [f"{labels[key]} seed {trial.seed}" for key, trial in zip(keys, trials, strict=True)]


@contextlib.contextmanager
def _shown(trials: Sequence[Trial], plan: Placement) -> Iterator[_Show]:
    """Live progress in a terminal: a line for each running trial and one for all.

    A narrow one goes without bars, the loss and the accuracy, in this order, before a name is broken over lines.
    Elsewhere, as in the log of a batch job, a line now and then says how far all of them are. A failure is said there
    only where its run folder has no note of it, from which it would be told among the results.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    room = _room(console.width, names_of(trials))
    name = TextColumn("{task.description}", table_column=Column(no_wrap=room >= _EPOCH, overflow="fold"))
    bar = [BarColumn()] if room >= _STATE + _BAR else []
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=_LEFT))
    columns = (name, *bar, TextColumn("{task.fields[state]}"), left)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _Show(bars, trials, None if console.is_terminal else plan)


def _room(width: int, names: Sequence[str]) -> int:
    """Columns for the state of a trial and its bar beside the longest name and the time left."""
    return width - max(map(len, names), default=0) - _LEFT - 2


class _Show:
    """Turns events into progress bars, and failures into lines: all, or those that the plan's run folders lack.

    With a plan, for where bars cannot be drawn, progress is said in lines, `EVERY` seconds apart.
    """

    EVERY = 30.0

    def __init__(self, bars: Progress, trials: Sequence[Trial], plan: Placement | None = None) -> None:
        self.bars, self.trials, self.plan = bars, trials, plan
        self.began = self.said = time.monotonic()
        self.names = names_of(trials)
        self.rows: dict[int, TaskID] = {}
        self.parts: dict[int, float] = {}
        self.ended = 0
        self.all = bars.add_task(counted(len(trials), "trial"), total=len(trials), state="")

    def __call__(self, event: Event) -> None:
        name = self.names[event.index]
        if event.kind == "start":
            if event.index in self.rows:  # it found no memory and starts again
                self.bars.remove_task(self.rows[event.index])
            self.rows[event.index] = self.bars.add_task(name, total=None, state="loading")
        elif event.kind == "progress" and event.progress is not None:
            now = event.progress
            self.bars.update(self.rows[event.index], completed=now.step, total=now.steps, state=self._state(now))
            self.parts[event.index] = now.step / max(now.steps, 1)
            self.bars.update(self.all, completed=self.ended + sum(self.parts.values()))
        if event.kind in ("done", "failed", "skip"):
            self.ended += 1
            self.parts.pop(event.index, None)
            if event.index in self.rows:
                self.bars.remove_task(self.rows.pop(event.index))
            done = self.ended + sum(self.parts.values())
            self.bars.update(self.all, completed=done, state=f"{self.ended} of {len(self.trials)} ended")
        if self.plan is not None:
            self._say_now_and_then()
        if event.kind == "failed" and not self._is_noted(event.index):
            self.bars.console.print(f"failed: {name}: {event.message}", markup=False, highlight=False, soft_wrap=True)

    def _state(self, now: Moment) -> str:
        """What a trial is at, and of its loss and accuracy what there is room for."""
        state = "measuring" if now.measuring else f"epoch {now.epoch + 1}/{now.epochs}"
        if now.loss is None or now.accuracy is None:
            return state
        accuracy, room = f"  accuracy {now.accuracy:.1%}", _room(self.bars.console.width, self.names)
        longer = (f"{state}  loss {now.loss:.4f}{accuracy}", f"{state}{accuracy}")
        return next((text for text in longer if len(text) <= room), state)

    def _say_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self.said < self.EVERY:
            return
        self.said = now
        line = f"{now - self.began:.0f} s: {self.ended} of {counted(len(self.trials), 'trial')} ended"
        if self.parts:
            line += f", {len(self.parts)} running ({sum(self.parts.values()) / len(self.parts):.0%} trained)"
        self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _is_noted(self, index: int) -> bool:
        return self.plan is not None and self.plan.folder(self.trials[index]).status == "failed"


def show_results(trials: Sequence[Trial], plan: Placement, *, page: bool = True) -> None:
    """Print the tables and write the page, if wanted; end with exit code 1 if a trial is not done."""
    from lastlayer import reports

    comparison = comparison_file(trials, plan)
    loaded = reports.load(plan.root, comparison)
    summary = reports.summarise(loaded)
    reports.print_tables(summary)
    if page:
        typer.echo(f"page: {reports.write_page(summary, comparison.with_suffix('.html'))}")
    missing = len(summary.problems)  # damaged runs too, which are there but cannot be read
    if missing:
        typer.echo(f"{missing} of {len(trials)} trials are not done: see lastlayer status {plan.root}", err=True)
        raise typer.Exit(1)
