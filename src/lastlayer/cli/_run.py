"""Running trials from the command line: checks first, progress while they run, tables and the page at the end.

Tests: tests/cli/test_run.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lastlayer._core.progress import TIME_WIDTH, bars
from lastlayer.cli._say import counted, make_folder, say_stopped, typed

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lastlayer.data import Dataset
    from lastlayer.reports import Goal
    from lastlayer.runners import Event, Placement
    from lastlayer.runs import Comparison
    from lastlayer.training import Progress as Moment
    from lastlayer.training import Trial

# Columns of a terminal.
_EPOCH = len("epoch 100/100")
_STATE = len("epoch 100/100  loss 0.0000  accuracy 100.0%")
_BAR = 10


def check_trials(trials: Sequence[Trial], dataset: Dataset, trust: Sequence[str] = ()) -> list[str]:
    """Refuse a loss that is given twice, and trials whose first step fails. Returns notes for the user."""
    from lastlayer.training import Facts
    from lastlayer.training.check import rehearse

    seen, facts = set(), Facts.of(dataset)
    notes = dict.fromkeys(dataset.notes)
    for trial in trials:
        if not trial.evaluations:
            raise ValueError("--set evaluations=0: then nothing is measured on test samples; give 1 or more")
        if trial.identity in seen:
            raise ValueError(f"--losses: {loss_in_words(trial)} is there twice; name each once")
        seen.add(trial.identity)
        if trial.seed == trials[0].seed:
            notes.update(dict.fromkeys(rehearse(trial, facts, trust)))
    return list(notes)


def _finished(trials: Sequence[Trial], placement: Placement) -> Iterator[tuple[Trial, Path, Mapping[str, Any]]]:
    """The trials that are done, each with its folder and result. Damaged ones are reported with the results."""
    from lastlayer.runs import look

    for trial in trials:
        state = look(placement.folder(trial).path)
        if state.result is not None:
            yield trial, state.path, state.result


def refuse_other_data(trials: Sequence[Trial], placement: Placement, dataset: Dataset) -> None:
    """Raise if a finished run used data that has changed since: a trial names its files, not what is in them."""
    for trial, path, result in _finished(trials, placement):
        if result["data"]["checksums"] != dict(dataset.checksums):
            why = f"{trial.data.name} has changed since {path} was trained on it"
            raise ValueError(f"{why}: choose another --out, or delete that folder")


def _changed_code(trials: Sequence[Trial], placement: Placement) -> list[str]:
    """Notes on finished runs that used older code of the user's own loss or model: a trial holds only its name."""
    from lastlayer.training.build import changed_code, code_of

    older: dict[str, list[str]] = {}
    for trial, path, result in _finished([trial for trial in trials if code_of(trial)], placement):
        for part in changed_code(trial, result.get("code", {})):
            older.setdefault(part, []).append(str(path))
    return [
        f"{part} has changed since {counted(len(folders), 'run')} of these {'was' if len(folders) == 1 else 'were'} "
        f"trained. They stay as they are: to train them anew, delete {' '.join(folders)}"
        for part, folders in older.items()
    ]


def loss_in_words(trial: Trial) -> str:
    """A trial's loss with its hyperparameters."""
    return " ".join([trial.loss.name, *(f"{name}={value}" for name, value in trial.loss.options.items())])


def names_of(trials: Sequence[Trial]) -> list[str]:
    """What each trial is called while it runs: its name in the table, and its seed."""
    return [f"{label} seed {trial.seed}" for label, trial in zip(labels(trials), trials, strict=True)]


def labels(trials: Sequence[Trial]) -> list[str]:
    """The name of each trial in the table of results. Trials that differ only in seed and fold share it."""
    from lastlayer.reports.collect import group_of
    from lastlayer.reports.summary import labels_of

    keys = [json.dumps(group_of(trial.to_dict())) for trial in trials]
    apart = list(dict.fromkeys(keys))
    found = dict(zip(apart, labels_of([json.loads(one) for one in apart]), strict=True))
    return [found[one] for one in keys]


def comparison_file(trials: Sequence[Trial], placement: Placement) -> Path:
    """Where a comparison of these trials is written down."""
    together = hashlib.sha256("".join(trial.identity for trial in trials).encode()).hexdigest()[:8]
    return placement.root / f"compare-{together}.json"


def comparison_of(
    trials: Sequence[Trial], placement: Placement, title: str, asked: Sequence[Trial] | None = None
) -> Comparison:
    """What is written down of a comparison. `asked` are the trials with None for what was tuned."""
    from lastlayer.runs import Comparison

    listed = {trial.identity: one.to_dict() for trial, one in zip(trials, asked or trials, strict=True)}
    return Comparison(comparison_file(trials, placement), title, typed(), listed)


def run(
    trials: Sequence[Trial],
    placement: Placement,
    title: str,
    dataset: Dataset | None = None,
    notes: Sequence[str] = (),
    comparison: Comparison | None = None,
) -> None:
    """Run what is not done, with live progress. Ctrl-C ends it and prints the command that continues.

    Args:
        trials: resolved.
        placement: where and how.
        title: of the comparison, for reports.
        dataset: the data set of all trials as it was read, if it is loaded already.
        notes: printed first.
        comparison: what to write down, if it is not simply these trials and the title.
    """
    from lastlayer.runners import run_trials
    from lastlayer.runs import write_comparison
    from lastlayer.training.engine.checkpoint import import_writer

    events = run_trials(trials, placement, dataset)
    if placement.tensorboard is not None:
        import_writer()
        make_folder("--tensorboard", placement.tensorboard)
    make_folder("--out", placement.root)
    try:
        write_comparison(comparison or comparison_of(trials, placement, title))
    except OSError as error:
        why = f"nothing can be written there ({error.strerror}); choose another"
        raise ValueError(f"--out {placement.root}: {why}") from error
    for note in [*notes, *_changed_code(trials, placement)]:
        typer.echo(note, err=True)
    try:
        with contextlib.closing(events), _shown(trials, placement) as show:  # type: ignore[type-var]
            for event in events:
                show(event)
    except KeyboardInterrupt:
        say_stopped("checkpoints are kept")


def goals_of(asked: Sequence[Goal] | None, dataset: Dataset) -> tuple[tuple[str, ...], list[str]]:
    """The names of the goals of `--for`, and notes on the data: what they cannot answer, or that classes are skewed.

    Args:
        asked: the goals; None if `--for` is not given.
        dataset: of the trials.

    Raises:
        ValueError: if the data can answer none of the goals.
    """
    from lastlayer.reports import KnownData, about_skew, answerable

    data = KnownData.of(dataset)
    if asked is None:
        return (), [about_skew(data)] if data.is_skewed(dataset.num_classes) else []
    _, refused = answerable(asked, data)
    return tuple(goal.name for goal in asked), list(refused)


def show_results(trials: Sequence[Trial], placement: Placement, *, page: bool = True, everything: bool = False) -> None:
    """Print the answer and write the page, if wanted. Ends with exit code 1 if a trial is not done.

    Args:
        trials: of the comparison.
        placement: where they lie.
        page: write the page.
        everything: print every measure on every split.
    """
    from lastlayer import reports

    comparison = comparison_file(trials, placement)
    summary = reports.summarise(reports.load(placement.root, comparison))
    reports.print_tables(summary, everything=everything, more=f"lastlayer report {comparison} --all")
    if page:
        typer.echo(f"page: {reports.write_page(summary, comparison.with_suffix('.html'))}")
    missing = len(summary.problems)  # damaged runs too, which are there but cannot be read
    if missing:
        typer.echo(f"{missing} of {len(trials)} trials are not done: see lastlayer status {placement.root}", err=True)
        raise typer.Exit(1)


@contextlib.contextmanager
def _shown(trials: Sequence[Trial], placement: Placement) -> Iterator[_Show]:
    """Live progress in a terminal: one line per running trial and one for all.

    In a narrow terminal the bars are dropped first, then the loss, then the accuracy; names wrap last. Elsewhere, as
    in the log of a batch job, a line every half minute says how far all trials are. There a failure is printed only if
    its run folder has no note of it: the others are listed with the results.
    """
    from rich.console import Console
    from rich.progress import TextColumn

    console = Console(stderr=True)
    room = _room(console.width, names_of(trials))
    with bars(TextColumn("{task.fields[state]}"), whole=room >= _EPOCH, drawn=room >= _STATE + _BAR) as drawn:
        yield _Show(drawn, trials, None if console.is_terminal else placement)


def _room(width: int, names: Sequence[str]) -> int:
    """Columns for the state of a trial and its bar, beside the longest name and the time left."""
    return width - max(map(len, names), default=0) - TIME_WIDTH - 2


class _Show:
    """Shows events as progress bars or as lines, and prints failures.

    Args:
        bars: drawn in a terminal.
        trials: that run.
        placement: given if there is no terminal. Progress is then printed in lines, `EVERY` seconds apart. A failure is
            printed only if its run folder has no note of it.
    """

    EVERY = 30.0

    def __init__(self, bars: Progress, trials: Sequence[Trial], placement: Placement | None = None) -> None:
        self.bars, self.trials, self.placement = bars, trials, placement
        self.began = self.said = time.monotonic()
        self.names = names_of(trials)
        self.rows: dict[int, TaskID] = {}
        self.parts: dict[int, float] = {}  # the share of each running trial that is trained
        self.ended = 0
        self.all = bars.add_task(counted(len(trials), "trial"), total=len(trials), state="")

    def __call__(self, event: Event) -> None:
        name, now = self.names[event.index], event.progress
        if event.kind != "progress" and event.index in self.rows:  # it ended, or found no memory and starts again
            self.bars.remove_task(self.rows.pop(event.index))
        if event.kind == "start":
            self.rows[event.index] = self.bars.add_task(name, total=None, state="loading")
        elif now is not None:
            self.bars.update(self.rows[event.index], completed=now.step, total=now.steps, state=self._state(now))
            self.parts[event.index] = now.step / max(now.steps, 1)
        else:
            self.ended += 1
            self.parts.pop(event.index, None)
        ended = f"{self.ended} of {len(self.trials)} ended" if self.ended else ""
        self.bars.update(self.all, completed=self.ended + sum(self.parts.values()), state=ended)
        if self.placement is not None and time.monotonic() - self.said >= self.EVERY:
            self._say_how_far()
        if event.kind == "failed" and not self._is_noted(event.index):
            self.bars.console.print(f"failed: {name}: {event.message}", markup=False, highlight=False, soft_wrap=True)

    def _state(self, now: Moment) -> str:
        """What a trial is doing, and as much of its loss and accuracy as there is room for."""
        state = "measuring" if now.measuring else f"epoch {now.epoch + 1}/{now.epochs}"
        if now.loss is None or now.accuracy is None:
            return state
        accuracy, room = f"  accuracy {now.accuracy:.1%}", _room(self.bars.console.width, self.names)
        longer = (f"{state}  loss {now.loss:.4f}{accuracy}", f"{state}{accuracy}")
        return next((text for text in longer if len(text) <= room), state)

    def _say_how_far(self) -> None:
        self.said = time.monotonic()
        line = f"{self.said - self.began:.0f} s: {self.ended} of {counted(len(self.trials), 'trial')} ended"
        if self.parts:
            line += f", {len(self.parts)} running ({sum(self.parts.values()) / len(self.parts):.0%} trained)"
        self.bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _is_noted(self, index: int) -> bool:
        return self.placement is not None and self.placement.folder(self.trials[index]).status == "failed"
