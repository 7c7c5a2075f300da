"""`lastlayer compare`, `train` and `linear-probe`: train losses or heads over several seeds, measure, tabulate.

Tests: tests/cli/test_compare.py and, for the heads, tests/training/test_recipes.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._folds import on_folds
from lastlayer.cli._options import (
    All,
    Device,
    Devices,
    For,
    Losses,
    Out,
    Pack,
    RetryFailed,
    Seeds,
    Settings,
    TensorBoard,
    Trust,
    Tune,
    Workers,
    assignments,
    for_each_loss,
    free_settings,
    split_losses,
    takes_settings,
)
from lastlayer.cli._run import check_trials, goals_of, refuse_other_data, run, show_results
from lastlayer.cli._say import counted
from lastlayer.cli._tuning import tuned

if TYPE_CHECKING:
    from lastlayer.training import Trial

DEFAULT_LOSSES = "ce,ls,mse,bce,sln,batch-ce"
SETTABLE_DATA = ("data.holdout", "data.seed", "data.fold")  # by --set of linear-probe
_option = functools.partial(typer.Option, show_default=False)


@takes_settings
def compare(
    settings: Settings,
    losses: Losses = DEFAULT_LOSSES,
    seeds: Seeds = 3,
    tune: Tune = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    workers: Workers = None,
    pack: Pack = None,
    devices: Devices = 1,
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
    trust: Trust = None,
    goals: For = None,
    everything: All = False,
) -> None:
    """Which loss for this data? Trains them all, and says which to choose, how sure that is, and what it costs.

    Without options: scikit-learn's digits, six losses, three seeds. Runs are kept in ./runs. The same command again
    skips what is done and resumes what was interrupted. Every measure is taken on train and test, in evaluation mode,
    without augmentation, in float32.
    """
    from lastlayer.data import reading_once
    from lastlayer.reports import parse_goals
    from lastlayer.runners import Placement
    from lastlayer.runners.processes import keeping_workers
    from lastlayer.training import load_data

    names, asked = split_losses(losses), None if goals is None else parse_goals(goals)
    placement = Placement(
        out, device, workers, pack, devices=devices, data_root=settings.data_root, retry_failed=retry_failed,
        tensorboard=tensorboard, trust=tuple(trust or ()),
    )  # fmt: skip
    with reading_once(), keeping_workers():
        trials, notes = settings.trials(names, range(seeds), placement)
        samples = load_data(trials[0].data, settings.data_root)
        wanted, more = goals_of(asked, samples)
        given = settings.given()
        trials, notes = on_folds(trials, samples, [*notes, *more], placement, kept="data.fold" in given)
        chosen = tuned(trials, placement, samples, wanted=tune, names=free_settings(given), goals=wanted)
        refuse_other_data(chosen.trials, placement, samples)
        title = f"{settings.data}: {counted(len(names), 'loss')}, {counted(seeds, 'seed')}"
        run(chosen.trials, placement, title, notes=notes, comparison=chosen.comparison(placement, title))
    show_results(chosen.trials, placement, everything=everything)


@takes_settings
def train(
    settings: Settings,
    loss: Annotated[str, typer.Option(help="A loss; hyperparameters follow a colon: sln:gamma=0.5.")] = "ce",
    seed: Annotated[int, typer.Option(help="Seed of weights, order of samples and augmentation.", min=0)] = 0,
    out: Out = Path("runs"),
    device: Device = "auto",
    devices: Devices = 1,
    retry_failed: RetryFailed = False,
    tensorboard: TensorBoard = None,
    trust: Trust = None,
) -> None:
    """Train one loss with one seed, and measure it; `lastlayer report` makes a page of it."""
    from lastlayer.data import reading_once
    from lastlayer.runners import Placement

    placement = Placement(
        out, device, devices=devices, data_root=settings.data_root, retry_failed=retry_failed, tensorboard=tensorboard,
        trust=tuple(trust or ()),
    )  # fmt: skip
    with reading_once():
        trials, notes = settings.trials([loss], [seed], placement)
        run(trials, placement, f"{settings.data}: {loss}, seed {seed}", notes=notes)
    show_results(trials, placement, page=False)
    typer.echo(f"run: {placement.folder(trials[0]).path}")


def linear_probe(
    features: Annotated[Path, _option(help=".safetensors or .npz with features (N, d) and target (N,).")],
    test: Annotated[Path | None, _option(help="The same for testing; if not given, a fifth of each class.")] = None,
    losses: Losses = "ce,sln,bce,batch-ce",
    seeds: Seeds = 3,
    tune: Tune = None,
    head: Annotated[str, typer.Option(help="linear, normalized or batch-norm.")] = "linear",
    scale: Annotated[float | None, _option(help="Scale of the logits of a normalized head.")] = None,
    epochs: Annotated[int | None, _option(help="Passes over the rows; if not given, 5 to 50, for 800 steps.")] = None,
    batch_size: Annotated[int | None, _option(help="Rows per step; if not given, an eightieth, 64 to 1024.")] = None,
    lr: Annotated[float | None, _option(help="Learning rate of AdamW; each loss's own if not given.")] = None,
    weight_decay: Annotated[float | None, _option(help="Weight decay of AdamW; 0.05 if not given.")] = None,
    standardize: Annotated[
        bool, typer.Option(help="Subtract the mean of each entry of the features, and divide by its deviation.")
    ] = True,
    settings: Annotated[
        list[str] | None, _option("--set", metavar="NAME=VALUE", help="Set any field of a trial.")
    ] = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    retry_failed: RetryFailed = False,
    goals: For = None,
    everything: All = False,
) -> None:
    """Which loss for these embeddings? Trains a head for every loss and seed, and says which loss to choose.

    The features are read once and stay as they are: a .safetensors file is mapped, not copied. If the logits of all
    rows would not fit in memory, everything but accuracy is measured on an even share of each class, and a note says
    on how many rows. The same command again skips what is done and resumes what was interrupted.
    """
    for file in (features, test):
        if file is not None and not file.exists():
            raise FileNotFoundError(f"{file}: no such file")
    changed = assignments(settings or [])
    for name in changed:
        if name == "seed":
            raise ValueError("--set seed: linear-probe takes seeds 0, 1, ... (--seeds 5)")
        if name.partition(".")[0] == "data" and name not in SETTABLE_DATA:
            why = f"the data is that of --features and --test; only {', '.join(SETTABLE_DATA)} can be set"
            raise ValueError(f"--set {name}: {why}")
    from lastlayer.reports import parse_goals
    from lastlayer.runners import Placement
    from lastlayer.training import choose
    from lastlayer.training.facts import load_features
    from lastlayer.training.recipes import choose_rate, probe_trial

    asked = None if goals is None else parse_goals(goals)
    options: dict[str, Any] = {"standardize": standardize}
    given = {
        "schedule.epochs": epochs,
        "batch_size": batch_size,
        "optimiser.lr": lr,
        "optimiser.weight_decay": weight_decay,
        "head": {"name": head, "options": {} if scale is None else {"scale": scale}},
    }
    dataset = load_features(features, test, **options)
    base = probe_trial(dataset, features, test, **options)
    base = base.with_settings({name: value for name, value in given.items() if value is not None})

    def make(name: str, hyperparameters: Mapping[str, Any]) -> Trial:
        return choose_rate(base.with_settings({"loss": {"name": name, "options": hyperparameters}}, changed)).resolved()

    trials = for_each_loss(split_losses(losses), range(seeds), make)
    notes = check_trials(trials, dataset)
    wanted, more = goals_of(asked, dataset)
    placement = Placement(out, device, retry_failed=retry_failed)
    samples = choose(dataset, trials[0].data)
    notes += more
    trials, notes = on_folds(trials, samples, notes, placement, kept="data.fold" in changed, given=dataset)
    free = free_settings({**{name: value for name, value in given.items() if value is not None}, **changed})
    chosen = tuned(trials, placement, samples, wanted=tune, names=free, goals=wanted, given=dataset)
    refuse_other_data(chosen.trials, placement, dataset)
    title = f"heads on {dataset.name}: {len(dataset.train)} rows, {dataset.num_classes} classes"
    run(chosen.trials, placement, title, dataset, notes, chosen.comparison(placement, title))
    show_results(chosen.trials, placement, everything=everything)
