"""The options that `compare` and `train` share, and the way from options to trials.

Tests: tests/cli/test_options.py.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer.cli._run import check_trials, refuse_other_data

if TYPE_CHECKING:
    from lastlayer.runners import Placement
    from lastlayer.training import Trial

MOST_SEEDS = 10_000  # a number such as 20260101 is meant as a seed, and would be that many trials
FIELDS = {
    "data": "data.name",
    "train_samples": "data.train",
    "long_tail": "data.long_tail",
    "unknown": "data.unknown",
    "unknown_from": "data.unknown_from",
    "holdout": "data.holdout",
    "epochs": "schedule.epochs",
    "schedule": "schedule.name",
    "warmup": "schedule.warmup",
    "batch_size": "batch_size",
    "optimiser": "optimiser.name",
    "lr": "optimiser.lr",
    "weight_decay": "optimiser.weight_decay",
    "decay": "optimiser.decay",
    "clip": "optimiser.clip",
    "crop": "augmentation.crop",
    "flip": "augmentation.flip",
    "rotation": "augmentation.rotation",
    "mixup": "augmentation.mixup",
    "cutmix": "augmentation.cutmix",
    "precision": "precision",
    "teacher": "teacher",
}  # the field of a trial that each option sets

Losses = Annotated[
    str, typer.Option(help="Names separated by commas; hyperparameters follow a colon: ce,sln:gamma=0.5.")
]
Seeds = Annotated[int, typer.Option(help="How many seeds per loss.", min=1, max=MOST_SEEDS)]
For = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="What the loss is wanted for, separated by commas: accuracy, balanced, single-logit, calibration, "
        "open-set, tail, transfer. If not given, accuracy, and balanced accuracy where classes are skewed.",
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Print every measure on every split.")]
Tune = Annotated[
    bool | None,
    typer.Option(
        "--tune/--no-tune",
        help="Search learning rate and weight decay for each loss first, on training samples that are held out. If "
        "neither is given, we tune if the data are large enough and if it should take less than ten minutes.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of the runs.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ..., or auto.")]
Workers = Annotated[int | None, typer.Option(help="Processes on the CPU; one per core if not given.", min=1)]
Pack = Annotated[int | None, typer.Option(help="Trials at a time on a GPU; what fits if not given.", min=1)]
Devices = Annotated[
    int, typer.Option(help="Devices that each trial spans; more than one needs the extra devices.", min=1)
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder that holds the data sets; $LASTLAYER_DATA or the user's cache if not given."),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run failed trials again.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Module of your own code that a run you give may name, such as a teacher."),
]
TensorBoard = Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")]


_data = functools.partial(typer.Option, rich_help_panel="Data")
_model = functools.partial(typer.Option, rich_help_panel="Model")
_training = functools.partial(typer.Option, rich_help_panel="Training")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user asked for; None means not given."""

    data: Annotated[str, _data(help="A data set, a folder of images, or a .npz or .safetensors file.")] = "digits"
    data_root: Annotated[Path | None, _data(help="Folder that holds the data sets.")] = None
    train_samples: Annotated[int | None, _data(help="Keep this many training samples.")] = None
    long_tail: Annotated[float | None, _data(help="Make a long tail: largest class over smallest, e.g. 100.")] = None
    unknown: Annotated[int | None, _data(help="Number of classes to hide from training.")] = None
    unknown_from: Annotated[str | None, _data(help="Data set whose test samples are the unknown ones.")] = None
    holdout: Annotated[float | None, _data(help="Share of the training set kept for validation, e.g. 0.1.")] = None
    model: Annotated[str | None, _model(help="A backbone, package.module:factory, timm:NAME or hf:NAME.")] = None
    pretrained: Annotated[bool, _model(help="Start from pretrained weights, for timm: and hf: models.")] = False
    head: Annotated[str | None, _model(help="linear, normalized, batch-norm or simplex.")] = None
    scale: Annotated[
        float | None, _model(help="Scale of the head's logits. Without --head, this also selects the normalized head.")
    ] = None
    epochs: Annotated[int | None, _training(help="Passes over the training set; 30 if not given.")] = None
    batch_size: Annotated[
        int | None, _training(help="Samples per step; if not given, 64, or 128 from 20,000 training samples on.")
    ] = None
    optimiser: Annotated[str | None, _training(help="sgd, adam or adamw.")] = None
    lr: Annotated[float | None, _training(help="Learning rate; each loss's own if not given.")] = None
    weight_decay: Annotated[float | None, _training(help="Weight decay; each loss's own if not given.")] = None
    decay: Annotated[str | None, _training(help="What weight decay applies to: all or head.")] = None
    clip: Annotated[float | None, _training(help="Largest gradient norm.")] = None
    schedule: Annotated[str | None, _training(help="cosine, linear, milestones or constant.")] = None
    warmup: Annotated[float | None, _training(help="Epochs at the start in which the rate rises.")] = None
    label_smoothing: Annotated[float | None, _training(help="Share of each label spread over all classes.")] = None
    crop: Annotated[int | None, _training(help="Pixels of padding before a random crop.")] = None
    flip: Annotated[bool | None, _training(help="Mirror half of the images.")] = None
    rotation: Annotated[float | None, _training(help="Largest random rotation in degrees.")] = None
    mixup: Annotated[float | None, _training(help="Mix pairs of images with mixup; its alpha, e.g. 0.2.")] = None
    cutmix: Annotated[float | None, _training(help="Mix pairs of images with cutmix; its alpha, e.g. 1.")] = None
    precision: Annotated[str | None, _training(help="float32 or bfloat16.")] = None
    teacher: Annotated[Path | None, _training(help="Folder of a finished run to learn from, for kd and fn-kd.")] = None
    set: Annotated[
        list[str] | None, _training(metavar="NAME=VALUE", help="Set any field of a trial, e.g. loss.gamma=0.5.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse a path that is not there. Torch is not imported yet, so this is answered at once."""
        is_path = os.sep in self.data or self.data.endswith((".npz", ".safetensors"))
        if is_path and not Path(self.data).exists():
            raise ValueError(f"--data {self.data}: there is no such file or folder")

    def trials(
        self, losses: Sequence[str], seeds: Sequence[int], placement: Placement
    ) -> tuple[list[Trial], list[str]]:
        """One resolved trial per loss and seed, and notes for the user.

        Args:
            losses: names; hyperparameters may follow, as in sln:gamma=0.5:tau=0.3.
            seeds: of the trials.
            placement: where they will run.

        Raises:
            ValueError: if a trial cannot be trained, or if data have changed since the finished runs of the placement
                were trained on them.
        """
        from lastlayer.losses import entry
        from lastlayer.training import Trial, load_data
        from lastlayer.training.recipes import default_trial

        # Losses are looked up before large data is read, so that a misspelt name is refused at once.
        taught = {name: entry(name).module.needs_teacher for name in (loss.split(":")[0] for loss in losses)}
        changed = assignments(self.set or [])
        if "seed" in changed:
            raise ValueError("--set seed: compare takes seeds 0, 1, ... (--seeds 5), train one (--seed 7)")
        given = self._given()
        about_data = [{key: one[key] for key in one if key.partition(".")[0] == "data"} for one in (given, changed)]
        choice = Trial().with_settings(*about_data).data
        dataset = load_data(choice, self.data_root)
        base = default_trial(dataset).with_settings(given)

        def make(name: str, options: Mapping[str, Any]) -> Trial:
            if self.label_smoothing is not None:
                options = {"label_smoothing": self.label_smoothing, **options}
            # If some of the losses learn from a teacher, the others are trained without it.
            own = base if taught[name] or not any(taught.values()) else dataclasses.replace(base, teacher=None)
            return own.with_settings({"loss": {"name": name, "options": options}}, changed).resolved(self.data_root)

        trials = for_each_loss(losses, seeds, make)
        notes = check_trials(trials, dataset, placement.trust)
        refuse_other_data(trials, placement, dataset)
        return trials, notes

    def given(self) -> dict[str, Any]:
        """The fields of a trial that options and --set give, by their dotted names."""
        return {**self._given(), **assignments(self.set or [])}

    def _given(self) -> dict[str, Any]:
        """The fields of a trial that options set, by their dotted names."""
        values = {field: getattr(self, option) for option, field in FIELDS.items()}
        given = {key: str(one) if isinstance(one, Path) else one for key, one in values.items() if one is not None}
        if self.pretrained and ":" not in (self.model or ""):
            raise ValueError(f"--pretrained goes with --model timm:NAME or hf:NAME, got {self.model or 'no --model'}")
        if self.model is not None:
            given["model"] = {"name": self.model, "options": {"pretrained": True} if self.pretrained else {}}
        if self.head is not None or self.scale is not None:
            options = {} if self.scale is None else {"scale": self.scale}
            given["head"] = {"name": "normalized" if self.head is None else self.head, "options": options}
        return given


def free_settings(given: Mapping[str, Any]) -> list[str]:
    """The settings that may be tuned: learning rate and weight decay, if they are not among the fields given."""
    whole = given.get("optimiser")
    fixed = whole if isinstance(whole, Mapping) else {}
    return [name for name in ("lr", "weight_decay") if f"optimiser.{name}" not in given and name not in fixed]


def for_each_loss(
    losses: Sequence[str], seeds: Sequence[int], make: Callable[[str, Mapping[str, Any]], Trial]
) -> list[Trial]:
    """The trials of all losses and seeds. `make` turns the name of a loss and its hyperparameters into a trial."""
    trials = []
    for text in losses:
        name, *given = text.split(":")
        trial = make(name, assignments(given, f"loss {text}"))
        trials += [dataclasses.replace(trial, seed=seed) for seed in seeds]
    return trials


def split_losses(text: str) -> list[str]:
    """The losses of --losses, separated by commas. A comma inside brackets, as in weight=[1,2], separates nothing.

    Example:
        >>> split_losses("ce:weight=[1,2], sln")
        ['ce:weight=[1,2]', 'sln']
    """
    names = [name.strip() for name in re.split(r",(?![^\[\]]*\])", text) if name.strip()]
    if not names:
        raise ValueError("--losses names no loss")
    return names


def assignments(texts: Sequence[str], where: str = "--set") -> dict[str, Any]:
    """Names and values of texts of the form NAME=VALUE. A value that is not JSON is text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{where}: {text!r} must have the form NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator: give a command the options of Settings, and pass them to it as its first argument."""
    shared = inspect.signature(Settings, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        settings = Settings(**{name: given.pop(name) for name in shared})
        command(settings, **given)

    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in [*own, *shared.values()]]
    wrapped.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {option.name: option.annotation for option in options}
    return wrapped
