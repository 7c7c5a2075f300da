"""The settings that `compare` and `train` share: options of the command line to trials."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._running import check_trials, refuse_other_data

if TYPE_CHECKING:
    from lastlayer.data import Dataset
    from lastlayer.runners import Placement
    from lastlayer.training import Trial
    from lastlayer.training.trial import DataChoice

_DATA, _MODEL, _TRAINING = "Data", "Model", "Training"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user asked for; None where nothing was said."""

    data: Annotated[
        str,
        typer.Option(help="A data set's name, a folder of images, a .npz or .safetensors file.", rich_help_panel=_DATA),
    ] = "digits"
    data_root: Annotated[Path | None, typer.Option(help="Where data sets lie.", rich_help_panel=_DATA)] = None
    train_samples: Annotated[int | None, typer.Option(help="Keep this many of train.", rich_help_panel=_DATA)] = None
    long_tail: Annotated[float | None, typer.Option(help="Imbalance factor, e.g. 100.", rich_help_panel=_DATA)] = None
    unknown: Annotated[int | None, typer.Option(help="Classes hidden from training.", rich_help_panel=_DATA)] = None
    unknown_from: Annotated[
        str | None, typer.Option(help="Data set whose test samples are unknown ones.", rich_help_panel=_DATA)
    ] = None
    holdout: Annotated[
        float | None, typer.Option(help="Share of train kept for validation, e.g. 0.1.", rich_help_panel=_DATA)
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="A backbone, package.module:factory, timm:NAME or hf:NAME.", rich_help_panel=_MODEL),
    ] = None
    pretrained: Annotated[bool, typer.Option(help="For timm: and hf: models.", rich_help_panel=_MODEL)] = False
    head: Annotated[
        str | None, typer.Option(help="linear, normalized, batch-norm, simplex.", rich_help_panel=_MODEL)
    ] = None
    scale: Annotated[
        float | None, typer.Option(help="Of the head; without --head, of a normalized one.", rich_help_panel=_MODEL)
    ] = None
    epochs: Annotated[int | None, typer.Option(help="30 if not given.", rich_help_panel=_TRAINING)] = None
    batch_size: Annotated[
        int | None,
        typer.Option(help="64, or 128 from 20,000 training samples on, if not given.", rich_help_panel=_TRAINING),
    ] = None
    optimiser: Annotated[str | None, typer.Option(help="sgd, adam, adamw.", rich_help_panel=_TRAINING)] = None
    lr: Annotated[float | None, typer.Option(help="Each loss's own if not given.", rich_help_panel=_TRAINING)] = None
    weight_decay: Annotated[
        float | None, typer.Option(help="Each loss's own if not given.", rich_help_panel=_TRAINING)
    ] = None
    decay: Annotated[str | None, typer.Option(help="Decay on all or head.", rich_help_panel=_TRAINING)] = None
    clip: Annotated[float | None, typer.Option(help="Largest gradient norm.", rich_help_panel=_TRAINING)] = None
    schedule: Annotated[
        str | None, typer.Option(help="cosine, linear, milestones, constant.", rich_help_panel=_TRAINING)
    ] = None
    warmup: Annotated[float | None, typer.Option(help="Epochs of linear rise.", rich_help_panel=_TRAINING)] = None
    label_smoothing: Annotated[
        float | None, typer.Option(help="Share of a label spread over all classes.", rich_help_panel=_TRAINING)
    ] = None
    crop: Annotated[int | None, typer.Option(help="Padding of random crops.", rich_help_panel=_TRAINING)] = None
    flip: Annotated[bool | None, typer.Option(help="Mirror half of the images.", rich_help_panel=_TRAINING)] = None
    rotation: Annotated[float | None, typer.Option(help="Largest angle.", rich_help_panel=_TRAINING)] = None
    mixup: Annotated[float | None, typer.Option(help="alpha of mixup.", rich_help_panel=_TRAINING)] = None
    cutmix: Annotated[float | None, typer.Option(help="alpha of cutmix.", rich_help_panel=_TRAINING)] = None
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16.", rich_help_panel=_TRAINING)] = None
    teacher: Annotated[
        Path | None, typer.Option(help="A finished run, for kd and fn-kd.", rich_help_panel=_TRAINING)
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(
            help="Any field of a trial, e.g. loss.gamma=0.5.", metavar="NAME=VALUE", rich_help_panel=_TRAINING
        ),
    ] = None

    def trials(self, losses: list[str], seeds: list[int], plan: Placement) -> tuple[list[Trial], list[str]]:
        """One resolved trial for each loss and seed, and notes for the user.

        Losses may carry hyperparameters, as in sln:gamma=0.5:tau=0.3.

        Raises:
            ValueError: for anything that cannot be trained, before anything is; for data that is no longer what the
                plan's finished runs were trained on.
        """
        from lastlayer.losses import entry
        from lastlayer.training import load_data

        # Entries are made before large data is read, so that a misspelt name is refused at once.
        taught = {name: entry(name).module.needs_teacher for name in (loss.split(":")[0] for loss in losses)}
        changed = dict(assignment(item, "--set") for item in self.set or [])
        if "seed" in changed:
            raise ValueError("--set seed: compare takes seeds 0, 1, ... (--seeds 5), train one (--seed 7)")
        choice = self._data(changed)
        dataset = load_data(choice, self.data_root)
        base = self._base(dataset, choice)
        trials = []
        for loss in losses:
            name, *given = loss.split(":")
            options = dict(assignment(item, f"loss {loss}") for item in given)
            if self.label_smoothing is not None:
                options.setdefault("label_smoothing", self.label_smoothing)
            # beside losses that learn from the teacher the others do without
            own = base if taught[name] or not any(taught.values()) else dataclasses.replace(base, teacher=None)
            trial = own.with_settings({"loss": {"name": name, "options": options}, **changed}).resolved(self.data_root)
            trials += [dataclasses.replace(trial, seed=seed) for seed in seeds]
        notes = check_trials(trials, dataset)
        refuse_other_data(trials, plan, dataset)
        return trials, notes

    def _data(self, changed: dict[str, Any]) -> DataChoice:
        from lastlayer.training.trial import DataChoice, Trial

        if (os.sep in self.data or self.data.endswith((".npz", ".safetensors"))) and not Path(self.data).exists():
            raise ValueError(f"--data {self.data}: there is no such file or folder")
        asked = {
            "train": self.train_samples,
            "long_tail": self.long_tail,
            "unknown": self.unknown,
            "unknown_from": self.unknown_from,
            "holdout": self.holdout,
        }
        choice = DataChoice(self.data, **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]
        ours = {name: value for name, value in changed.items() if name.partition(".")[0] == "data"}
        return Trial(data=choice).with_settings(ours).data

    def _base(self, dataset: Dataset, choice: DataChoice) -> Trial:
        from lastlayer.training.recipes import default_trial

        trial = dataclasses.replace(default_trial(dataset), data=choice)
        changes: dict[str, Any] = {
            "schedule.epochs": self.epochs,
            "schedule.name": self.schedule,
            "schedule.warmup": self.warmup,
            "batch_size": self.batch_size,
            "optimiser.name": self.optimiser,
            "optimiser.lr": self.lr,
            "optimiser.weight_decay": self.weight_decay,
            "optimiser.decay": self.decay,
            "optimiser.clip": self.clip,
            "augmentation.crop": self.crop,
            "augmentation.flip": self.flip,
            "augmentation.rotation": self.rotation,
            "augmentation.mixup": self.mixup,
            "augmentation.cutmix": self.cutmix,
            "precision": self.precision,
            "teacher": None if self.teacher is None else str(self.teacher),
        }
        if self.pretrained and ":" not in (self.model or ""):
            raise ValueError(f"--pretrained goes with --model timm:NAME or hf:NAME, got {self.model or 'no --model'}")
        if self.model is not None:
            changes["model"] = {"name": self.model, "options": {"pretrained": True} if self.pretrained else {}}
        if self.head is not None or self.scale is not None:
            options = {} if self.scale is None else {"scale": self.scale}
            changes["head"] = {"name": "normalized" if self.head is None else self.head, "options": options}
        return trial.with_settings({name: value for name, value in changes.items() if value is not None})


def split_losses(text: str) -> list[str]:
    """The losses of --losses, separated by commas; those of a list such as weight=[1,2] separate nothing.

    Example:
        >>> split_losses("ce:weight=[1,2], sln")
        ['ce:weight=[1,2]', 'sln']
    """
    names = [name.strip() for name in re.split(r",(?![^\[\]]*\])", text) if name.strip()]
    if not names:
        raise ValueError("--losses names no loss")
    return names


def assignment(text: str, where: str) -> tuple[str, Any]:
    """NAME=VALUE as a name and a value: JSON where it is, text otherwise."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{where}: {text!r} must have the form NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: give a command the options of Settings and hand them to it as its first argument."""
    fields = {field.name: field for field in dataclasses.fields(Settings)}
    hints = inspect.get_annotations(Settings, eval_str=True)
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[name])
        for name, field in fields.items()
    ]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        settings = Settings(**{name: given.pop(name) for name in fields})
        command(settings, **given)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    wrapped.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*keyword, *shared]}
    return wrapped
