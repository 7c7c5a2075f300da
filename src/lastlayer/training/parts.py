"""The parts of a trial: found by name, checked before training, built from the data."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lastlayer import data, losses, models
from lastlayer._core.registry import digest, nearest
from lastlayer.losses.distillation import DISTILLING
from lastlayer.models.external import find_factory
from lastlayer.training.network import HEAD_CLASSES, Network
from lastlayer.training.trial import DataChoice, HeadChoice, Trial

ADAPTIVE_LR = 1e-3
ADAMW_DECAY = 0.05  # both from table 6 of Soft Logit Normalization


def check_parts(trial: Trial, data_root: str | Path | None = None) -> Trial:
    """Check that every named part exists and fits the others, and write out defaults that depend on the loss."""
    trial = _fit_head_to_loss(trial)
    _check_loss(trial)
    _check_head(trial.head)
    _check_model(trial)
    _check_data(trial.data, data_root)
    loss = losses.entry(trial.loss.name).module
    optimiser = trial.optimiser
    if optimiser.lr is None:
        lr = loss.learning_rate if optimiser.name == "sgd" else ADAPTIVE_LR
        optimiser = dataclasses.replace(optimiser, lr=lr)
    if optimiser.weight_decay is None:
        decay = ADAMW_DECAY if optimiser.name == "adamw" else loss.weight_decay
        optimiser = dataclasses.replace(optimiser, weight_decay=decay)
    return dataclasses.replace(trial, optimiser=optimiser)


def _fit_head_to_loss(trial: Trial) -> Trial:
    """Two losses need a head of their own; with the default head they get it."""
    name, head = trial.loss.name, trial.head
    if name == "large-margin":
        if head.name not in ("linear", "large-margin"):
            raise ValueError(f"loss large-margin needs head large-margin, got {head.name}")
        wanted = {k: v for k, v in trial.loss.options.items() if k in ("margin", "lam")}
        head = HeadChoice("large-margin", {**wanted, **(head.options if head.name == "large-margin" else {})})
    elif name == "arc-margin":
        if head.name not in ("linear", "normalized"):
            raise ValueError(f"loss arc-margin takes cosines and needs head normalized, got {head.name}")
        options = {"scale": 1.0, "bias": False, **(head.options if head.name == "normalized" else {})}
        if options["scale"] != 1.0 or options["bias"]:
            raise ValueError("loss arc-margin has a scale of its own: give head normalized with scale=1, bias=false")
        head = HeadChoice("normalized", options)
    elif head.name == "large-margin":
        raise ValueError(f"head large-margin goes with loss large-margin, got loss {name}")
    return dataclasses.replace(trial, head=head)


def _check_loss(trial: Trial) -> None:
    entry = losses.entry(trial.loss.name)
    known = _hyperparameters(entry)
    for option in trial.loss.options:
        if option not in known:
            hint = nearest(option, known) or _of_another_loss(option)
            raise ValueError(
                f"loss {trial.loss.name} has no setting {option!r}{hint}; it has {', '.join(known) or 'none'}"
            )
    if trial.loss.name in DISTILLING and trial.teacher is None:
        raise ValueError(f"loss {trial.loss.name} needs a teacher: the folder of a finished run (--set teacher=RUN)")
    if trial.teacher is not None and trial.loss.name not in DISTILLING:
        raise ValueError(f"a teacher goes with loss {' or '.join(DISTILLING)}, got loss {trial.loss.name}")


def _hyperparameters(entry: losses.Entry) -> list[str]:
    return [p for p in inspect.signature(entry.module).parameters if p not in ("num_classes", "reduction", "group")]


def _of_another_loss(option: str) -> str:
    """Where a setting belongs that a loss does not have, in its nearest spelling; "" where no loss has one like it."""
    owners: dict[str, list[str]] = {}
    for name in losses.available():
        for known in _hyperparameters(losses.entry(name)):
            owners.setdefault(known, []).append(name)
    close = difflib.get_close_matches(option, owners, n=1, cutoff=0.6)
    return f" ({close[0]!r} is a setting of {', '.join(owners[close[0]])})" if close else ""


def _check_head(head: HeadChoice) -> None:
    parameters = list(inspect.signature(HEAD_CLASSES[head.name]).parameters)
    known = [p for p in parameters if p not in ("in_features", "num_classes", "generator")]
    for option in head.options:
        if option not in known:
            raise ValueError(
                f"head {head.name} has no setting {option!r}{nearest(option, known)}; it has {', '.join(known)}"
            )


def _check_model(trial: Trial) -> None:
    if ":" in trial.model.name:
        models.check_external(trial.model.name)
        return
    known = models.describe(trial.model.name).options
    for option in trial.model.options:
        if option not in known:
            raise ValueError(
                f"model {trial.model.name} has no setting {option!r}{nearest(option, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )


def _check_data(choice: DataChoice, root: str | Path | None) -> None:
    for name in (choice.name, choice.unknown_from):
        if name is not None:
            data.find(name, root)


def check_at_hand(trial: Trial, data_root: str | Path | None, known: set[str]) -> None:
    """Check that the packages and the data sets that a trial needs are there and whole.

    Args:
        trial: resolved or not.
        data_root: where data sets lie.
        known: data sets that were read before and are not again; those read here are added.

    Raises:
        ImportError, OSError, CorruptFileError: what is missing or damaged, and how to get it.
    """
    trial.resolved(data_root)
    for name, options in ((trial.data.name, trial.data.options), (trial.data.unknown_from, {})):
        if name is None or name in known:
            continue
        if data.find(name, data_root) is not None or data.describe(name).needs_files:
            data.load(name, data_root, **options)  # half of it may be there, which a look at one file does not show
        known.add(name)


def code_of(trial: Trial) -> dict[str, str]:
    """Checksums of the code of those parts that are the user's own, by what they are called."""
    code = {}
    if trial.loss.name not in losses.available():
        module = trial.loss.name.rpartition(".")[0]
        code[f"loss {trial.loss.name}"] = digest(module, losses.entry(trial.loss.name).module)
    module, colon, _ = trial.model.name.partition(":")
    if colon and module not in ("timm", "hf"):
        code[f"model {trial.model.name}"] = digest(module, find_factory(trial.model.name))
    return code


def changed_code(trial: Trial, then: Mapping[str, str]) -> list[str]:
    """The parts of the user's own whose code is not what `code_of` noted then."""
    return [part for part, now in code_of(trial).items() if then.get(part, now) != now]


def load_data(choice: DataChoice, root: str | Path | None = None) -> data.Dataset:
    """Read the samples of a trial, chosen in the order: classes, subset, open set, long tail, hold-out."""
    dataset = data.load(choice.name, root, **choice.options)
    if dataset.num_classes < 2:
        raise ValueError(f"{choice.name} has one class, {dataset.class_names[0]}: a classifier needs two or more")
    if choice.classes is not None or choice.train is not None:
        dataset = data.subset(dataset, choice.train, classes=choice.classes, seed=choice.seed)
    if choice.unknown is not None or choice.unknown_from is not None or choice.arpl:
        other = None if choice.unknown_from is None else data.load(choice.unknown_from, root)
        split = choice.seed if choice.arpl else None
        dataset = data.open_set(dataset, choice.unknown, seed=choice.seed, split=split, unknown_from=other)
    if choice.long_tail is not None:
        dataset = data.long_tail(dataset, choice.long_tail, choice.seed)
    if choice.holdout:
        dataset = data.hold_out(dataset, choice.holdout, choice.seed)
    return dataset


def check_inputs(trial: Trial, dataset: data.Dataset) -> None:
    """ValueError where a trial would change its data in a way that only images can be changed."""
    if len(dataset.in_shape) == 3:
        return
    for name in ("crop", "flip", "rotation", "cutmix"):
        if getattr(trial.augmentation, name):
            raise ValueError(
                f"augmentation.{name} is for images; inputs of {dataset.name} have shape {dataset.in_shape}"
            )


def make_network(trial: Trial, dataset: data.Dataset) -> Network:
    """The trial's network, its weights drawn from torch's global generator."""
    backbone = models.create(trial.model.name, dataset.in_shape, **trial.model.options)
    width = backbone.num_features
    if not isinstance(width, int):
        raise TypeError(f"model {trial.model.name}: num_features must be an int, got {width!r}")
    head = HEAD_CLASSES[trial.head.name](width, dataset.num_classes, **trial.head.options)
    return Network(data.Normalize(dataset.mean, dataset.std, dataset.scale), backbone, head)


def make_loss(trial: Trial, dataset: data.Dataset) -> losses.Loss:
    """The trial's loss, with the class counts of the data where it wants them."""
    options: dict[str, Any] = dict(trial.loss.options)
    if trial.loss.name == "logit-adjusted":
        options.setdefault("counts", dataset.train_counts.tolist())
    return losses.create(trial.loss.name, dataset.num_classes, **options)
