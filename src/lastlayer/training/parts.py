"""The parts of a trial: found by name, checked before training, built from the data."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path

from lastlayer import data, heads, losses, models
from lastlayer._core.registry import check_options, digest, split_path
from lastlayer.models.external import find_factory
from lastlayer.training.network import Network
from lastlayer.training.trial import DataChoice, HeadChoice, Trial

ADAPTIVE_LR = 1e-3
ADAMW_DECAY = 0.05  # both from table 6 of Soft Logit Normalization


def check_parts(trial: Trial, data_root: str | Path | None = None) -> Trial:
    """Check that every named part exists and fits the others, and write out defaults that depend on the loss."""
    trial = _fit_head_to_loss(trial)
    _check_loss(trial)
    check_options(f"head {trial.head.name}", trial.head.options, heads.options(trial.head.name))
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
    """If the loss needs a head of its own, a trial with the default head gets that one."""
    name, head, loss = trial.loss.name, trial.head, losses.entry(trial.loss.name).module
    needed = loss.needed_head
    if needed is None:
        for other in losses.available():
            theirs = losses.entry(other).module.needed_head
            if theirs is not None and theirs.only and theirs.name == head.name:
                raise ValueError(f"head {head.name} goes with loss {other}, got loss {name}")
        return trial
    if head.name not in (HeadChoice().name, needed.name):
        takes = f" takes {loss.takes[0]} and" if loss.takes[0] != "logits" else ""
        raise ValueError(f"loss {name}{takes} needs head {needed.name}, got {head.name}")
    shared = {option: value for option, value in trial.loss.options.items() if option in needed.shared}
    given = head.options if head.name == needed.name else {}
    options = {**needed.options, **shared, **given}
    if any(options[option] != value for option, value in needed.options.items()):
        wanted = ", ".join(f"{option}={json.dumps(value)}" for option, value in needed.options.items())
        raise ValueError(f"loss {name} needs head {needed.name} with {wanted}, got {dict(given)}")
    return dataclasses.replace(trial, head=HeadChoice(needed.name, options))


def _check_loss(trial: Trial) -> None:
    name = trial.loss.name
    entry = losses.entry(name)
    check_options(f"loss {name}", trial.loss.options, entry.options, _of_another_loss)
    if entry.module.needs_teacher and trial.teacher is None:
        raise ValueError(f"loss {name} needs a teacher: the folder of a finished run (--set teacher=RUN)")
    if trial.teacher is not None and not entry.module.needs_teacher:
        taught = [other for other in losses.available() if losses.entry(other).module.needs_teacher]
        raise ValueError(f"a teacher goes with loss {' or '.join(taught)}, got loss {name}")


def _of_another_loss(option: str) -> str:
    """Name the losses that do have this option, or one spelled like it; "" if no loss has one."""
    owners: dict[str, list[str]] = {}
    for name in losses.available():
        for known in losses.entry(name).options:
            owners.setdefault(known, []).append(name)
    close = difflib.get_close_matches(option, owners, n=1, cutoff=0.6)
    return f" ({close[0]!r} is an option of {', '.join(owners[close[0]])})" if close else ""


def _check_model(trial: Trial) -> None:
    if ":" in trial.model.name:
        models.check_external(trial.model.name)
        return
    check_options(f"model {trial.model.name}", trial.model.options, models.describe(trial.model.name).options)


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
    if trial.loss.name not in losses.available() and (path := split_path(trial.loss.name)):
        code[f"loss {trial.loss.name}"] = digest(path[0], losses.entry(trial.loss.name).module)
    if trial.head.name not in heads.available() and (path := split_path(trial.head.name)):
        code[f"head {trial.head.name}"] = digest(path[0], heads.class_of(trial.head.name))
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
    head = heads.create(trial.head.name, width, dataset.num_classes, **trial.head.options)
    return Network(data.Normalize(dataset.mean, dataset.std, dataset.scale), backbone, head)


def make_loss(trial: Trial, dataset: data.Dataset) -> losses.Loss:
    """The trial's loss, with the class counts of the data where it wants them."""
    return losses.create_for(dataset.train_counts.tolist(), trial.loss.name, **trial.loss.options)
