"""What to train: one frozen description, checked before anything is loaded, with a stable identity."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

from lastlayer._words import nearest

Options = Mapping[str, Any]


@dataclass(frozen=True)
class DataChoice:
    """Which samples.

    Attributes:
        name: a data set's name, or the path of a folder of images, a .npz or a .safetensors file.
        options: what its reader takes.
        classes: keep the first this many classes; None for all.
        train: keep this many training samples, drawn with `seed`; None for all.
        long_tail: imbalance factor of an exponential class profile; None leaves the classes as they are.
        unknown: number of classes hidden from training, met at test time only.
        unknown_from: name of another data set whose test samples are the unknown ones.
        arpl: known classes as in the published lists of the ARPL protocol, instead of `unknown`; `seed` is the number
            of the list, 0 to 4.
        holdout: share of the training set kept for validation.
        seed: of every choice above; the trial's own seed does not change the data.
    """

    name: str = "digits"
    options: Options = field(default_factory=dict)
    classes: int | None = None
    train: int | None = None
    long_tail: float | None = None
    unknown: int | None = None
    unknown_from: str | None = None
    arpl: bool = False
    holdout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _within(self, "classes", 2)
        _within(self, "train", 1)
        _within(self, "long_tail", 1.0)
        _within(self, "unknown", 1)
        _within(self, "holdout", 0.0, 0.9)
        if self.arpl and self.unknown is not None:
            raise ValueError(f"data.arpl takes its classes from published lists: leave out data.unknown={self.unknown}")


@dataclass(frozen=True)
class ModelChoice:
    """The backbone: its name in `lastlayer.models` and the options of its factory."""

    name: str = "mlp"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class HeadChoice:
    """The head: linear, normalized, batch-norm, simplex or large-margin, and the arguments of its class."""

    name: str = "linear"
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of(self, "name", HEADS)


@dataclass(frozen=True)
class LossChoice:
    """The loss: its name for `lastlayer.losses.create` and its hyperparameters."""

    name: str = "ce"
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Optimiser:
    """How parameters move.

    Attributes:
        name: sgd (momentum), adam (weight decay as an L2 term in the gradient) or adamw (decoupled).
        lr: peak learning rate; None takes the loss's own.
        weight_decay: None takes the loss's own.
        momentum: of sgd.
        nesterov: of sgd.
        clip: largest norm of the whole gradient; None does not clip.
        decay: what the weight decay acts on: all parameters, or those of the head.
    """

    name: str = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    decay: str = "all"

    def __post_init__(self) -> None:
        _one_of(self, "name", ("sgd", "adam", "adamw"))
        _one_of(self, "decay", ("all", "head"))
        _within(self, "lr", 0.0, open_low=True)
        _within(self, "weight_decay", 0.0)
        _within(self, "momentum", 0.0, 1.0)
        _within(self, "clip", 0.0, open_low=True)


@dataclass(frozen=True)
class Schedule:
    """How long, and how the learning rate moves, step by step.

    Attributes:
        name: cosine or linear (to 0), milestones, or constant.
        epochs: passes over the training set.
        warmup: epochs of linear rise from 0.
        milestones: shares of the training after which the rate is multiplied by `factor`.
        factor: at each milestone.
    """

    name: str = "cosine"
    epochs: int = 30
    warmup: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        _one_of(self, "name", ("cosine", "linear", "milestones", "constant"))
        _within(self, "epochs", 1)
        _within(self, "warmup", 0.0, self.epochs)
        _within(self, "factor", 0.0, 1.0)
        if any(not 0 < m < 1 for m in self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"schedule.milestones must be rising shares between 0 and 1, got {self.milestones}")


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the training images, drawn on the device.

    Attributes:
        crop: pixels of padding before a random crop of the old size.
        flip: mirror half of the images.
        rotation: largest angle in degrees.
        mixup, cutmix: parameter alpha of the Beta distribution of lam; 0 is off. With both, each batch takes one.
        mix_probability: share of the batches that are mixed.
    """

    crop: int = 0
    flip: bool = False
    rotation: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0

    def __post_init__(self) -> None:
        _within(self, "crop", 0)
        _within(self, "rotation", 0.0, 180.0)
        _within(self, "mixup", 0.0)
        _within(self, "cutmix", 0.0)
        _within(self, "mix_probability", 0.0, 1.0)


@dataclass(frozen=True)
class Trial:
    """One training, completely described: what is not here does not change its result.

    Attributes:
        batch_size: samples a step; the last, shorter batch of an epoch is left out.
        precision: of the forward pass in training: float32 or bfloat16 (autocast). Measuring is always in float32.
        evaluations: how many times to measure on the way, the end included.
        teacher: folder of a finished run to distill from, or the name of a run beside this one.
        seed: of initial weights, order of samples and augmentation.

    Example:
        >>> trial = Trial(loss=LossChoice("sln", {"gamma": 0.5}))
        >>> Trial.from_dict(trial.to_dict()) == trial
        True
    """

    data: DataChoice = field(default_factory=DataChoice)
    model: ModelChoice = field(default_factory=ModelChoice)
    head: HeadChoice = field(default_factory=HeadChoice)
    loss: LossChoice = field(default_factory=LossChoice)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    augmentation: Augmentation = field(default_factory=Augmentation)
    batch_size: int = 64
    precision: str = "float32"
    evaluations: int = 10
    teacher: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _within(self, "batch_size", 1)
        _one_of(self, "precision", ("float32", "bfloat16"))
        _within(self, "evaluations", 1)
        _within(self, "seed", 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as in trial.json."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Trial:
        """The trial described by `to_dict`; fields left out take their defaults.

        Raises:
            ValueError: for an unknown field, with the nearest spelling, or a value out of range.
        """
        trial: Trial = _from_dict(cls, content, "")
        return trial

    def with_settings(self, settings: Mapping[str, Any]) -> Trial:
        """A copy with some fields changed by their dotted names, such as {"loss.gamma": 0.5, "schedule.epochs": 10}.

        A name below data, model, head or loss that is no field of theirs goes into their options.
        """
        content = self.to_dict()
        for name, value in settings.items():
            part, _, rest = name.partition(".")
            if not rest:
                content[part] = value
                continue
            if part not in content or not isinstance(content[part], dict):
                raise ValueError(f"there is no setting {name!r}{nearest(part, content)}")
            target = content[part]
            if rest not in target and "options" in target:
                target = target["options"]
                rest = rest.removeprefix("options.")
            target[rest] = value
        return Trial.from_dict(content)

    @property
    def identity(self) -> str:
        """Sixteen hexadecimal digits that change with any field: the name of the trial's run folder."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def resolved(self) -> Trial:
        """A copy with every default that depends on the loss written out, checked against what the library has.

        Raises:
            ValueError: for a loss, model, head or data set that does not exist, an option it does not take, or a
                combination that cannot be trained.
        """
        from lastlayer.training.parts import check_parts

        return check_parts(self)


HEADS = ("linear", "normalized", "batch-norm", "simplex", "large-margin")


def _from_dict(cls: type[Any], content: Mapping[str, Any], prefix: str) -> Any:
    if not isinstance(content, Mapping):
        raise ValueError(f"{prefix.rstrip('.') or 'a trial'} must be a mapping, got {content!r}")
    hints = get_type_hints(cls)
    arguments = {}
    for name, value in content.items():
        if name not in hints:
            raise ValueError(f"there is no setting {prefix}{name!s}{nearest(name, hints)}")
        arguments[name] = _typed(hints[name], value, f"{prefix}{name}")
    return cls(**arguments)


def _typed(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _from_dict(hint, value, f"{name}.")  # type: ignore[arg-type]
    allowed = get_args(hint) or (hint,)
    if value is None:
        if type(None) in allowed:
            return None
    elif bool in allowed:
        if isinstance(value, bool):
            return value
    elif isinstance(value, bool):
        pass
    elif int in allowed and isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    elif float in allowed and isinstance(value, int | float):
        return float(value)
    elif str in allowed and isinstance(value, str):
        return value
    elif hint == tuple[float, ...] and isinstance(value, list | tuple):
        return tuple(float(v) for v in value)
    elif hint == Options and isinstance(value, Mapping):
        return dict(value)
    raise ValueError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")


def _within(choice: Any, name: str, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    value = getattr(choice, name)
    if value is None:
        return
    if not isinstance(value, int | float) or not (low < value if open_low else low <= value) or not value <= high:
        sign = ">" if open_low else ">="
        raise ValueError(f"{_path(choice)}{name} must be {sign} {low:g} and <= {high:g}, got {value!r}")


def _one_of(choice: Any, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(choice, name)
    if value not in allowed:
        raise ValueError(
            f"{_path(choice)}{name} must be one of {', '.join(allowed)}, got {value!r}{nearest(str(value), allowed)}"
        )


def _path(choice: Any) -> str:
    names = {DataChoice: "data.", HeadChoice: "head.", Optimiser: "optimiser.", Schedule: "schedule."}
    names[Augmentation] = "augmentation."
    return names.get(type(choice), "")
