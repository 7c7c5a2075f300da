"""What to train: one frozen description, checked before anything is loaded, with a stable identity.

Tests: tests/training/test_trial.py.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lastlayer._core.registry import nearest
from lastlayer.runs import identity_of

Options = Mapping[str, Any]
LARGEST_SEED = 2**62  # a step beyond it torch takes no seed
LARGEST_FOLD = 10**6  # each shuffle takes a seed of its own


@dataclass(frozen=True)
class DataChoice:
    """Which samples to train and test on.

    Attributes:
        name: a data set's name, or the path of a folder of images, a .npz or a .safetensors file.
        options: what its reader takes.
        classes: keep only this many classes, the first ones; None keeps all.
        train: keep this many training samples, drawn with `seed`; None keeps all.
        long_tail: imbalance factor of an exponential class profile; None leaves the classes as they are.
        unknown: number of classes that are left out of training and appear only in the test set.
        unknown_from: name of another data set whose test samples are the unknown ones.
        arpl: take the known classes from the published lists of the ARPL protocol, instead of `unknown`. `seed` is the
            number of the list, 0 to 4.
        holdout: share of the training set kept for validation.
        seed: of every choice above. The trial's own seed does not change the data.
        fold: which fifth to test on, for data without a test set of their own: 0 to 4, or more for other shuffles. None
            leaves the test set as it was read.
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
    fold: int | None = None

    def __post_init__(self) -> None:
        settle(self, "data.")
        within(self.classes, "data.classes", 2)
        within(self.train, "data.train", 1)
        within(self.long_tail, "data.long_tail", 1.0)
        within(self.unknown, "data.unknown", 1)
        within(self.holdout, "data.holdout", 0.0, 0.9)
        within(self.seed, "data.seed", 0, LARGEST_SEED)
        within(self.fold, "data.fold", 0, LARGEST_FOLD)
        if self.arpl and self.unknown is not None:
            raise ValueError(f"data.arpl takes its classes from published lists: leave out data.unknown={self.unknown}")


@dataclass(frozen=True)
class ModelChoice:
    """The backbone: its name in `lastlayer.models` and the options of its factory."""

    name: str = "mlp"
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        settle(self, "model.")


@dataclass(frozen=True)
class HeadChoice:
    """The head: its name for `lastlayer.heads.create` and its options."""

    name: str = "linear"
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        settle(self, "head.")


@dataclass(frozen=True)
class LossChoice:
    """The loss: its name for `lastlayer.losses.create` and its hyperparameters."""

    name: str = "ce"
    options: Options = field(default_factory=dict)

    def __post_init__(self) -> None:
        settle(self, "loss.")


@dataclass(frozen=True)
class Optimiser:
    """How parameters are updated.

    Attributes:
        name: sgd (momentum), adam (weight decay as an L2 term in the gradient) or adamw (decoupled).
        lr: peak learning rate; None takes the default of the loss.
        weight_decay: None takes the default of the loss.
        momentum, nesterov: of sgd.
        clip: largest norm of the whole gradient; None does not clip.
        decay: what the weight decay acts on: "all" parameters, or those of the "head".
    """

    name: str = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    decay: str = "all"

    def __post_init__(self) -> None:
        settle(self, "optimiser.")
        one_of(self.name, "optimiser.name", ("sgd", "adam", "adamw"))
        one_of(self.decay, "optimiser.decay", ("all", "head"))
        within(self.lr, "optimiser.lr", 0.0, open_low=True)
        within(self.weight_decay, "optimiser.weight_decay", 0.0)
        within(self.momentum, "optimiser.momentum", 0.0, 1.0)
        within(self.clip, "optimiser.clip", 0.0, open_low=True)
        if self.nesterov and not self.momentum:
            raise ValueError("optimiser.nesterov needs optimiser.momentum > 0, got 0")


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how the learning rate changes from step to step.

    Attributes:
        name: cosine or linear (to 0), milestones, or constant.
        epochs: passes over the training set.
        warmup: epochs during which the rate rises linearly from 0.
        milestones: shares of the training after which the rate is multiplied by `factor`.
        factor: what the rate is multiplied by at each milestone.
    """

    name: str = "cosine"
    epochs: int = 30
    warmup: float = 0.0
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        settle(self, "schedule.")
        one_of(self.name, "schedule.name", ("cosine", "linear", "milestones", "constant"))
        within(self.epochs, "schedule.epochs", 1)
        within(self.warmup, "schedule.warmup", 0.0, self.epochs)
        within(self.factor, "schedule.factor", 0.0, 1.0)
        if any(not 0 < m < 1 for m in self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"schedule.milestones must be rising shares between 0 and 1, got {self.milestones}")


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the training images, drawn on the device.

    Attributes:
        crop: pixels of padding before a random crop of the old size.
        flip: mirror each image with probability 1/2.
        rotation: largest angle in degrees.
        mixup, cutmix: parameter alpha of the Beta distribution of the share of the first image; 0 is off. With both,
            each batch takes one of them.
        mix_probability: share of the batches that are mixed.
    """

    crop: int = 0
    flip: bool = False
    rotation: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0

    def __post_init__(self) -> None:
        settle(self, "augmentation.")
        within(self.crop, "augmentation.crop", 0)
        within(self.rotation, "augmentation.rotation", 0.0, 180.0)
        within(self.mixup, "augmentation.mixup", 0.0)
        within(self.cutmix, "augmentation.cutmix", 0.0)
        within(self.mix_probability, "augmentation.mix_probability", 0.0, 1.0)


@dataclass(frozen=True)
class Trial:
    """One training, completely described. What is not here does not change its result.

    Attributes:
        batch_size: samples per step. The last, shorter batch of an epoch is left out.
        precision: of the forward pass in training: float32 or bfloat16 (autocast). Measuring is always in float32.
        evaluations: how many times to measure during training, including at the end. 0 measures the validation samples
            alone, once, at the end: enough to choose between settings, and blind to the test samples.
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
        settle(self)
        within(self.batch_size, "batch_size", 1)
        one_of(self.precision, "precision", ("float32", "bfloat16"))
        within(self.evaluations, "evaluations", 0)
        within(self.seed, "seed", 0, LARGEST_SEED)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as in trial.json.

        `data.fold` is left out while it is None: older trials do not have it, and their identities must not change.
        """
        plain = self._fields()
        if plain["data"]["fold"] is None:
            del plain["data"]["fold"]
        return plain

    def _fields(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Trial:
        """The trial described by `to_dict`. Fields that are left out take their defaults.

        Raises:
            ValueError: for a value out of range or of another type, or an unknown field. The message suggests the
                nearest one.
        """
        trial: Trial = from_dict(cls, content)
        return trial

    def with_settings(self, *layers: Mapping[str, Any]) -> Trial:
        """A copy with some fields changed by their dotted names, such as {"loss.gamma": 0.5, "schedule.epochs": 10}.

        If a name below data, model, head or loss is not one of its fields, it goes into its options. A whole part, such
        as {"model": {"name": "mlp"}}, replaces the old one. Later layers overwrite earlier ones.
        """
        content, defaults = self._fields(), Trial()._fields()
        for name, value in (item for layer in layers for item in layer.items()):
            part, _, rest = name.partition(".")
            if not rest:
                whole = isinstance(value, Mapping) and isinstance(defaults.get(part), Mapping)
                content[part] = copy.deepcopy({**defaults[part], **value}) if whole else value
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
        return identity_of(self.to_dict())

    def resolved(self, data_root: str | Path | None = None) -> Trial:
        """A copy with every default that depends on the loss written out. All parts are checked to exist and to fit.

        Args:
            data_root: where data sets lie.

        Raises:
            ValueError: for a loss, model, head or data set that does not exist, an option it does not take, or a
                combination that cannot be trained.
            FileNotFoundError: for a data file or folder that is not there.
        """
        from lastlayer.training.check import resolve

        return resolve(self, data_root)


# Checking the fields of the frozen parts above.

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}
_hints = functools.cache(get_type_hints)  # reading the types of a class takes longer than everything else here


def settle(part: Any, path: str = "") -> None:
    """Give every field of a frozen dataclass its declared type, so that equal trials have one identity: 1 becomes 1.0.

    Raises:
        ValueError: for a value of another type. The message names the field, with `path` before it.
    """
    for name, hint in _hints(part.__class__).items():
        object.__setattr__(part, name, _typed(hint, getattr(part, name), f"{path}{name}"))


def from_dict(cls: Any, content: Any, path: str = "") -> Any:
    """What `Trial.from_dict` does, for any of the dataclasses. `path` is put before the names of fields."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{path.rstrip('.') or 'a trial'} must be a mapping of settings, got {content!r}")
    hints = _hints(cls)
    for name in content:
        if name not in hints:
            raise ValueError(f"there is no setting {path}{name}{nearest(str(name), hints)}; known: {', '.join(hints)}")
    # nested parts first, because they know their full path
    return cls(**{name: _typed(hints[name], value, f"{path}{name}") for name, value in content.items()})


def within(value: float | None, name: str, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """Raise ValueError unless a number is finite and within its range. None passes."""
    if value is None:
        return
    if not (low < value if open_low else low <= value) or not value <= high or not math.isfinite(value):
        above = f"must be {'>' if open_low else '>='} {low:g}"
        below = "" if high == math.inf else f" and <= {high:g}"
        finite = " and finite" if value == math.inf else ""
        raise ValueError(f"{name} {above}{below}{finite}, got {value!r}")


def one_of(value: str, name: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless a text is one of those allowed. The message suggests the nearest."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{nearest(value, allowed)}")


def _typed(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(hint, value, f"{name}.")  # type: ignore[arg-type]
    allowed = get_args(hint) or (hint,)
    if hint == Options:
        return _plain(value, name)
    if hint == tuple[float, ...]:
        if isinstance(value, list | tuple) and all(_is_number(v) for v in value):
            return tuple(float(v) for v in value)
        raise ValueError(f"{name} must be a list of numbers, got {value!r}")
    if type(value) in (bool, str, type(None)):
        if type(value) in allowed:
            return value
    elif int in allowed and _is_number(value) and float(value).is_integer():
        return int(value)
    elif float in allowed and _is_number(value):
        return float(value)
    raise ValueError(f"{name} must be {' or '.join(_TYPES[kind] for kind in allowed)}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any, name: str) -> dict[str, Any]:
    """Options as they will be read from trial.json, where a tuple is a list."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping of settings, got {value!r}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(value)))
    except TypeError as error:
        raise ValueError(f"{name} must hold only numbers, texts, lists and mappings: {error}") from None
    return plain
