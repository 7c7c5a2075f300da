"""What to train: one frozen description, checked before anything is loaded, with a stable identity."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastlayer._core.registry import nearest
from lastlayer.training._fields import Options, from_dict, one_of, settle, within

LARGEST_SEED = 2**62  # a step beyond it torch takes no seed


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
        settle(self, "data.")
        within(self.classes, "data.classes", 2)
        within(self.train, "data.train", 1)
        within(self.long_tail, "data.long_tail", 1.0)
        within(self.unknown, "data.unknown", 1)
        within(self.holdout, "data.holdout", 0.0, 0.9)
        within(self.seed, "data.seed", 0, LARGEST_SEED)
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
        settle(self, "augmentation.")
        within(self.crop, "augmentation.crop", 0)
        within(self.rotation, "augmentation.rotation", 0.0, 180.0)
        within(self.mixup, "augmentation.mixup", 0.0)
        within(self.cutmix, "augmentation.cutmix", 0.0)
        within(self.mix_probability, "augmentation.mix_probability", 0.0, 1.0)


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
        settle(self)
        within(self.batch_size, "batch_size", 1)
        one_of(self.precision, "precision", ("float32", "bfloat16"))
        within(self.evaluations, "evaluations", 1)
        within(self.seed, "seed", 0, LARGEST_SEED)

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
        trial: Trial = from_dict(cls, content)
        return trial

    def with_settings(self, *layers: Mapping[str, Any]) -> Trial:
        """A copy with some fields changed by their dotted names, such as {"loss.gamma": 0.5, "schedule.epochs": 10}.

        A name below data, model, head or loss that is no field of theirs goes into their options. A whole part, such
        as {"model": {"name": "mlp"}}, takes the place of the old one. Later layers are laid over earlier ones.
        """
        content, defaults = self.to_dict(), Trial().to_dict()
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
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def resolved(self, data_root: str | Path | None = None) -> Trial:
        """A copy with every default that depends on the loss written out, checked against what the library has.

        Args:
            data_root: where data sets lie.

        Raises:
            ValueError: for a loss, model, head or data set that does not exist, an option it does not take, or a
                combination that cannot be trained.
            FileNotFoundError: for a data file or folder that is not there.
        """
        from lastlayer.training.check import resolve

        return resolve(self, data_root)
