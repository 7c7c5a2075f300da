"""Checking a trial before it trains: its parts exist, fit each other, and take two made-up rows.

Tests: tests/training/test_check.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lastlayer import data, heads, losses, models
from lastlayer._core.registry import check_options
from lastlayer.training.build import build_backbone, build_loss, own_modules
from lastlayer.training.engine.step import loss_of
from lastlayer.training.facts import Facts
from lastlayer.training.load import load
from lastlayer.training.trial import HeadChoice, Trial

ADAPTIVE_LR = 1e-3
ADAMW_DECAY = 0.05  # both from table 6 of Soft Logit Normalization
_SOME_WIDTH = 64  # in place of that of a model from timm or transformers, which may be unknown before a download


def resolve(trial: Trial, data_root: str | Path | None = None) -> Trial:
    """What `Trial.resolved` does: check that every part exists and fits the others, and write out its defaults."""
    trial = _fit_head_to_loss(trial)
    _check_loss(trial)
    check_options(f"head {trial.head.name}", trial.head.options, heads.options(trial.head.name))
    if ":" in trial.model.name:
        models.check_external(trial.model.name)
    else:
        check_options(f"model {trial.model.name}", trial.model.options, models.describe(trial.model.name).options)
    for name in (trial.data.name, trial.data.unknown_from):
        if name is not None:
            data.find(name, data_root)
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


def check_at_hand(trial: Trial, data_root: str | Path | None, known: set[str]) -> None:
    """Check that the packages and the data sets that a trial needs are there and whole.

    Args:
        trial: resolved or not.
        data_root: where data sets lie.
        known: names of data sets that are not read again. Those read here are added.

    Raises:
        ImportError, OSError, CorruptFileError: for what is missing or damaged. The message says how to get it.
    """
    trial.resolved(data_root)
    for name, options in ((trial.data.name, trial.data.options), (trial.data.unknown_from, {})):
        if name is None or name in known:
            continue
        if data.find(name, data_root) is not None or data.describe(name).needs_files:
            data.load(name, data_root, **options)  # only reading shows whether a file is missing
        known.add(name)


def check_inputs(trial: Trial, facts: Facts) -> None:
    """Raise ValueError if a trial augments inputs that are not images as only images can be."""
    if len(facts.in_shape) == 3:
        return
    for name in ("crop", "flip", "rotation", "cutmix"):
        if getattr(trial.augmentation, name):
            raise ValueError(f"augmentation.{name} is for images; inputs of {facts.name} have shape {facts.in_shape}")


def rehearse(trial: Trial, facts: Facts, trust: Collection[str] = ()) -> tuple[str, ...]:
    """Build the parts of a trial and call its loss once on two made-up rows.

    This reports a value that a loss, a head or a model does not take before anything trains. The backbone is built
    without memory for its weights.

    Args:
        trial: resolved.
        facts: what is known of the data that it trains on.
        trust: modules that the run of the teacher may name. Those that the trial itself names are trusted.

    Returns:
        Notes for the user.

    Raises:
        ValueError: for a mistake that only building or calling a part shows. The message names the part and its
            options.
    """
    check_inputs(trial, facts)
    notes: tuple[str, ...] = ()
    with torch.random.fork_rng(devices=[]):
        backbone, width = None, max(_SOME_WIDTH, facts.num_classes)
        source, elsewhere, _ = trial.model.name.partition(":")
        if source not in ("timm", "hf"):
            # a user's own factory may need tensors with content
            place = torch.device("cpu" if elsewhere else "meta")
            with _part("model", trial.model.name, trial.model.options), place:
                backbone, width = build_backbone(trial, facts)
                _check_batch(trial, backbone)
            if taken_off := getattr(backbone, "taken_off", None):
                notes = (f"model {trial.model.name}: the head takes the place of its last layer ({taken_off})",)
        with _part("head", trial.head.name, trial.head.options):
            head = heads.create(trial.head.name, width, facts.num_classes, **trial.head.options)
            _check_batch(trial, head)
        if backbone is not None and not any(p.requires_grad for p in nn.ModuleList([backbone, head]).parameters()):
            named = f"head {trial.head.name} on model {trial.model.name}"  # such as a simplex on given features
            raise ValueError(f"{named} has nothing to learn: choose another of the two")
        if trial.teacher is not None:
            _check_teacher(trial.teacher, facts, [*own_modules(trial), *trust])
        with _part("loss", trial.loss.name, trial.loss.options):
            features = torch.randn(2, width)
            with torch.no_grad():
                taught = None if trial.teacher is None else (head(features), features)
            loss_of(head, build_loss(trial, facts), features, torch.tensor([0, 1]), taught)
    return notes


def _check_batch(trial: Trial, part: nn.Module) -> None:
    """Refuse batches of one sample if a part subtracts the mean over the batch: only zeros would be left."""
    if trial.batch_size == 1 and any(isinstance(module, nn.BatchNorm1d) for module in part.modules()):
        raise ValueError("it normalises over a batch: batch_size must be >= 2, got 1")


def _check_teacher(folder: str, facts: Facts, trust: Collection[str]) -> None:
    """Refuse a teacher that is not a finished run, or was trained on other classes or inputs."""
    try:
        theirs = load(folder, trust=trust).facts  # of the whole run: if loading fails, it would fail in every trial
    except OSError as error:
        raise ValueError(f"teacher {folder} is no finished run: {error}") from error
    if (theirs.num_classes, theirs.in_shape) != (facts.num_classes, facts.in_shape):
        raise ValueError(
            f"teacher {folder} has {theirs.num_classes} classes and inputs {theirs.in_shape}; "
            f"{facts.name} has {facts.num_classes} and {facts.in_shape}"
        )
    if theirs.normalize != facts.normalize:  # the teacher gets the inputs that the student gets
        raise ValueError(f"teacher {folder} was trained on inputs that were normalised unlike those of {facts.name}")


@contextlib.contextmanager
def _part(part: str, name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Errors inside this context name the part of the trial and its options."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        what = " ".join([part, name, *(f"{option}={value}" for option, value in options.items())])
        raise ValueError(f"{what}: {error}") from error
