"""`lastlayer compare` and `lastlayer train`: train every chosen loss over several seeds, measure, tabulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lastlayer.cli._running import counted, run, show_results
from lastlayer.cli._settings import Settings, split_losses, takes_settings
from lastlayer.cli._tuning import tuned

Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..., or auto.")]
Workers = Annotated[int | None, typer.Option(help="Processes on the CPU; one a core if not given.", min=1)]
Pack = Annotated[int | None, typer.Option(help="Trials at a time on a GPU; what fits if not given.", min=1)]
Devices = Annotated[int, typer.Option(help="Devices each trial spans; more than one needs the extra devices.", min=1)]
RetryFailed = Annotated[bool, typer.Option(help="Run failed trials again.")]
TensorBoard = Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")]
MOST_SEEDS = 10_000  # a number such as 20260101 is meant as a seed, and would be that many trials


@takes_settings
def compare(
    settings: Settings,
    losses: Annotated[
        str | None,
        typer.Option(
            help="Names by commas, with hyperparameters by colons: ce,sln:gamma=0.5.",
            show_default="ce,ls,mse,bce,sln,batch-ce",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds a loss.", min=1, max=MOST_SEEDS)] = 3,
    tune: Annotated[bool, typer.Option(help="Search learning rate and weight decay for each loss first.")] = False,
    out: Out = Path("runs"),
    device: Device = "auto",
    workers: Workers = None,
    pack: Pack = None,
    devices: Devices = 1,
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Which loss for this data, and what does it do to the features? Trains them all and shows one table and one page.

    Without options: scikit-learn's digits, six losses, three seeds. Runs are kept in ./runs; the same command again
    skips what is done and resumes what was cut. Every measure is taken on train and test, in evaluation mode, without
    augmentation, in float32.
    """
    from lastlayer.runners import Placement
    from lastlayer.training.recipes import DEFAULT_LOSSES

    names = list(DEFAULT_LOSSES) if losses is None else split_losses(losses)
    plan = Placement(
        out, device, workers, pack, devices=devices, data_root=settings.data_root, retry_failed=retry_failed,
        tensorboard=tensorboard,
    )  # fmt: skip
    trials, notes = settings.trials(names, list(range(seeds)), plan)
    if tune:
        trials = tuned(trials, plan)
    run(trials, plan, f"{settings.data}: {counted(len(names), 'loss')}, {counted(seeds, 'seed')}", notes=notes)
    show_results(trials, plan)


@takes_settings
def train(
    settings: Settings,
    loss: Annotated[str, typer.Option(help="A loss, with hyperparameters by colons: sln:gamma=0.5.")] = "ce",
    seed: Annotated[int, typer.Option(help="Of weights, order and augmentation.", min=0)] = 0,
    out: Out = Path("runs"),
    device: Device = "auto",
    devices: Devices = 1,
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
) -> None:
    """Train one loss with one seed, and measure it; `lastlayer report` makes a page of it."""
    from lastlayer.runners import Placement

    plan = Placement(
        out, device, devices=devices, data_root=settings.data_root, retry_failed=retry_failed, tensorboard=tensorboard
    )
    trials, notes = settings.trials([loss], [seed], plan)
    run(trials, plan, f"{settings.data}: {loss}, seed {seed}", notes=notes)
    show_results(trials, plan, page=False)
    typer.echo(f"run: {plan.folder(trials[0]).path}")
