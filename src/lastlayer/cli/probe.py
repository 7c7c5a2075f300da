"""`lastlayer linear-probe`: train and compare heads on given features. Tests: tests/training/test_probe.py."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from lastlayer.data import Dataset
    from lastlayer.runners import Event, Plan
    from lastlayer.training import Trial

REPORT_SECONDS = 0.2


def linear_probe(
    features: Annotated[
        Path, typer.Option(help=".safetensors or .npz with features (N, d) and target (N,).", show_default=False)
    ],
    test: Annotated[
        Path | None, typer.Option(help="The same for testing; else a fifth of each class.", show_default=False)
    ] = None,
    losses: Annotated[
        str, typer.Option(help="Names by commas, with hyperparameters by colons: ce,sln:gamma=0.5.")
    ] = "ce,sln,bce,batch-ce",
    seeds: Annotated[int, typer.Option(help="How many seeds a loss.", min=1)] = 3,
    head: Annotated[str, typer.Option(help="linear, normalized, batch-norm, simplex.")] = "linear",
    scale: Annotated[float | None, typer.Option(help="Of a normalized head.", show_default=False)] = None,
    epochs: Annotated[int | None, typer.Option(help="Else enough for 800 steps, 5 to 50.", show_default=False)] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Else an eightieth of the rows, 64 to 1024.", show_default=False)
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Of AdamW; each loss's own if not given.", show_default=False)
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of AdamW; else 0.05.", show_default=False)] = None,
    standardize: Annotated[bool, typer.Option(help="Divide out mean and deviation of each entry.")] = True,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any field of a trial.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..., or auto.")] = "auto",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")] = False,
) -> None:
    """Which loss for these embeddings? Trains a head for every loss and seed, and shows one table and one page.

    The features are read once and stay as they are: a .safetensors file is mapped, not copied. Where the logits of all
    rows would not fit in memory, everything but accuracy is measured on an even share of each class, and a note says
    on how many rows. The same command again skips what is done and resumes what was cut.
    """
    from lastlayer.runners import Plan
    from lastlayer.training.probe import load_features, probe_trial

    options: dict[str, Any] = {"standardize": standardize}
    changes = {
        "schedule.epochs": epochs,
        "batch_size": batch_size,
        "optimiser.lr": lr,
        "optimiser.weight_decay": weight_decay,
        "head": {"name": head, "options": {} if scale is None else {"scale": scale}},
    }
    try:
        dataset = load_features(features, test, **options)
        base = probe_trial(dataset, features, test, **options)
        base = base.with_settings({name: value for name, value in changes.items() if value is not None})
        trials = make_trials(base, losses, seeds, settings or [])
        plan = Plan(out, _device(device), workers=1, retry_failed=retry_failed)
        _refuse_other_data(trials, plan, dataset)
    except (ValueError, OSError) as error:
        _refuse(str(error))
    for note in dataset.notes:
        typer.echo(note, err=True)
    run(trials, plan, dataset)


def make_trials(base: Trial, losses: str, seeds: int, settings: Sequence[str]) -> list[Trial]:
    """A resolved trial for each loss and seed."""
    from lastlayer.cli._settings import _assignment
    from lastlayer.training.probe import choose_rate

    changes = dict(_assignment(item, "--set") for item in settings)
    names = [name.strip() for name in losses.split(",") if name.strip()]
    if not names:
        raise ValueError("--losses names no loss")
    made = []
    for text in names:
        name, *given = text.split(":")
        options = dict(_assignment(item, f"loss {text}") for item in given)
        trial = choose_rate(base.with_settings({"loss": {"name": name, "options": options}, **changes})).resolved()
        made += [dataclasses.replace(trial, seed=seed) for seed in range(seeds)]
    return made


def run(trials: Sequence[Trial], plan: Plan, dataset: Dataset) -> None:
    """Run what is not done, with progress; print the tables and write the page."""
    from lastlayer.cli.compare import _comparison_file, _show, _shown
    from lastlayer.runs.files import write_json

    command = shlex.join(["lastlayer", *sys.argv[1:]])
    title = f"heads on {dataset.name}: {len(dataset.train)} rows, {dataset.num_classes} classes"
    listed = [{"identity": trial.identity, "trial": trial.to_dict()} for trial in trials]
    write_json(_comparison_file(trials, plan), {"title": title, "trials": listed, "command": command})
    try:
        with contextlib.closing(events(trials, plan, dataset)) as happened, _shown(trials) as show:
            for event in happened:
                show(event)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; every whole epoch is kept. To continue: {command}", err=True)
        raise typer.Exit(130) from None
    _show(trials, plan)


def events(trials: Sequence[Trial], plan: Plan, dataset: Dataset) -> Generator[Event, None, None]:
    """As `run_trials`, in this process and one after another: all trials share one copy of the features."""
    from lastlayer.runners import Event
    from lastlayer.training.loop import fit

    for index, trial in enumerate(trials):
        folder = plan.folder(trial)
        if folder.status == "done":
            yield Event(index, "skip", message="done already")
            continue
        if folder.status == "failed" and not plan.retry_failed:
            yield Event(index, "failed", message=f"{folder.failure()['error']} (--retry-failed runs it again)")
            continue
        yield Event(index, "start")
        shown = 0.0
        try:
            for progress in fit(trial, folder, device=plan.device, dataset=dataset):
                if time.monotonic() - shown > REPORT_SECONDS:
                    shown = time.monotonic()
                    yield Event(index, "progress", progress)
        except Exception as error:  # the others go on; the run folder has the reason
            yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
        else:
            yield Event(index, "done")


def _device(asked: str) -> str:
    import torch

    if asked != "auto":
        return str(torch.device(asked))
    return "cuda" if torch.cuda.is_available() else "cpu"


def _refuse_other_data(trials: Sequence[Trial], plan: Plan, dataset: Dataset) -> None:
    """A trial names its files, not what is in them: runs on other content would be shown as runs on this."""
    for trial in trials:
        folder = plan.folder(trial)
        if folder.status == "done" and folder.result()["data"]["checksums"] != dict(dataset.checksums):
            raise ValueError(
                f"{trial.data.name} has changed since {folder.path} was trained on it: choose another --out, "
                "or delete that folder"
            )


def _refuse(why: str) -> NoReturn:
    typer.echo(f"lastlayer linear-probe: {' '.join(why.split())}", err=True)
    raise typer.Exit(2)
