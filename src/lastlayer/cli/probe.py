"""`lastlayer linear-probe`: train and compare heads on given features. Tests: tests/training/test_probe.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._running import check_trials, refuse_other_data, run, show_results
from lastlayer.cli._tuning import tuned
from lastlayer.cli.compare import MOST_SEEDS

if TYPE_CHECKING:
    from lastlayer.training import Trial

_OF_DATA = ("data.holdout", "data.seed")


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
    seeds: Annotated[int, typer.Option(help="How many seeds a loss.", min=1, max=MOST_SEEDS)] = 3,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search learning rate and weight decay for each loss first.")
    ] = False,
    head: Annotated[str, typer.Option(help="linear, normalized, batch-norm.")] = "linear",
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
    from lastlayer.data import hold_out
    from lastlayer.runners import Placement
    from lastlayer.training.probe import load_features, probe_trial

    options: dict[str, Any] = {"standardize": standardize}
    changes = {
        "schedule.epochs": epochs,
        "batch_size": batch_size,
        "optimiser.lr": lr,
        "optimiser.weight_decay": weight_decay,
        "head": {"name": head, "options": {} if scale is None else {"scale": scale}},
    }
    dataset = load_features(features, test, **options)
    base = probe_trial(dataset, features, test, **options)
    base = base.with_settings({name: value for name, value in changes.items() if value is not None})
    trials = make_trials(base, losses, seeds, settings or [])
    notes = check_trials(trials, dataset)
    plan = Placement(out, device, retry_failed=retry_failed)
    if trials[0].data.holdout:
        dataset = hold_out(dataset, trials[0].data.holdout, trials[0].data.seed)
    if tune:
        trials = tuned(trials, plan, dataset)
    refuse_other_data(trials, plan, dataset)
    run(
        trials,
        plan,
        f"heads on {dataset.name}: {len(dataset.train)} rows, {dataset.num_classes} classes",
        dataset,
        notes,
    )
    show_results(trials, plan)


def make_trials(base: Trial, losses: str, seeds: int, settings: Sequence[str]) -> list[Trial]:
    """A resolved trial for each loss and seed."""
    from lastlayer.cli._settings import assignment, split_losses
    from lastlayer.training.probe import choose_rate

    changes = dict(assignment(item, "--set") for item in settings)
    for name in changes:
        if name == "seed":
            raise ValueError("--set seed: linear-probe takes seeds 0, 1, ... (--seeds 5)")
        if name.partition(".")[0] == "data" and name not in _OF_DATA:
            raise ValueError(
                f"--set {name}: the data is that of --features and --test; {' and '.join(_OF_DATA)} alone can be set"
            )
    made = []
    for text in split_losses(losses):
        name, *given = text.split(":")
        options = dict(assignment(item, f"loss {text}") for item in given)
        trial = choose_rate(base.with_settings({"loss": {"name": name, "options": options}, **changes})).resolved()
        made += [dataclasses.replace(trial, seed=seed) for seed in range(seeds)]
    return made
