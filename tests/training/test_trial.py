"""Trials: round trips, identities, and every mistake caught before training."""

import dataclasses
import json
import re

import pytest

from lastlayer.training import DataChoice, HeadChoice, LossChoice, Optimiser, Schedule, Trial


def test_a_trial_survives_json() -> None:
    trial = Trial(
        data=DataChoice("gaussian", {"num_classes": 4}, holdout=0.1),
        loss=LossChoice("sln", {"gamma": 0.5}),
        schedule=Schedule("milestones", epochs=7, milestones=(0.3, 0.6)),
    )
    assert Trial.from_dict(json.loads(json.dumps(trial.to_dict()))) == trial


def test_the_identity_is_stable_across_versions_of_the_code() -> None:
    # A changed identity orphans everyone's finished runs: change this number only knowingly.
    assert Trial().identity == Trial.from_dict(Trial().to_dict()).identity
    assert len(Trial().identity) == 16


def test_every_field_changes_the_identity() -> None:
    changes = {
        "data.name": "wine",
        "data.holdout": 0.2,
        "model.width": 7,
        "head.name": "simplex",
        "loss.name": "bce",
        "loss.gamma": 0.1,
        "optimiser.lr": 0.5,
        "schedule.epochs": 3,
        "augmentation.crop": 1,
        "batch_size": 9,
        "precision": "bfloat16",
        "evaluations": 2,
        "teacher": "somewhere",
        "seed": 1,
    }
    identities = {Trial().with_settings({name: value}).identity for name, value in changes.items()}
    assert len(identities | {Trial().identity}) == len(changes) + 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer.lr": 0.1}, ["optimizer", "optimiser"]),
        ({"schedule.epoch": 5}, ["epoch", "epochs"]),
        ({"schedule.epochs": 0}, ["schedule.epochs", "0"]),
        ({"schedule.epochs": 2.5}, ["schedule.epochs", "2.5"]),
        ({"schedule.name": "cosin"}, ["schedule.name", "cosin", "'cosine'"]),
        ({"schedule.milestones": [0.9, 0.1]}, ["milestones"]),
        ({"optimiser.lr": -1}, ["optimiser.lr", "-1"]),
        ({"optimiser.lr": "fast"}, ["optimiser.lr", "fast"]),
        ({"precision": "float8"}, ["precision", "float8", "float32"]),
        ({"batch_size": True}, ["batch_size", "True"]),
        ({"augmentation.mix_probability": 2}, ["augmentation.mix_probability", "2"]),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        Trial().with_settings(settings)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss.name": "snl"}, ["snl", "'sln'"]),
        ({"loss.gama": 0.5, "loss.name": "sln"}, ["gama", "'gamma'"]),
        ({"model.name": "resnet21"}, ["resnet21"]),
        ({"model.widht": 3}, ["widht", "'width'"]),
        ({"head.scal": 3, "head.name": "normalized"}, ["scal", "'scale'"]),
        ({"data.name": "digit"}, ["digit", "digits"]),
        ({"loss.name": "kd"}, ["kd", "teacher"]),
        ({"teacher": "x"}, ["teacher", "kd"]),
        ({"loss.name": "arc-margin", "head.name": "simplex"}, ["arc-margin", "normalized"]),
        ({"head.name": "large-margin"}, ["large-margin"]),
    ],
)
def test_parts_that_do_not_exist_or_fit_are_named(settings: dict[str, object], words: list[str]) -> None:
    trial = Trial().with_settings(settings)
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        trial.resolved()
    assert all(word in str(caught.value) for word in words)


def test_defaults_that_depend_on_the_loss_are_written_out() -> None:
    sln = Trial(loss=LossChoice("sln")).resolved()
    assert (sln.optimiser.lr, sln.optimiser.weight_decay) == (0.01, 5e-3)
    given = Trial(loss=LossChoice("sln"), optimiser=Optimiser(lr=0.3)).resolved()
    assert (given.optimiser.lr, given.optimiser.weight_decay) == (0.3, 5e-3)
    assert dataclasses.replace(sln, seed=1).resolved() == dataclasses.replace(sln, seed=1)


def test_margin_losses_get_the_head_they_need() -> None:
    assert Trial(loss=LossChoice("large-margin", {"margin": 2})).resolved().head == HeadChoice(
        "large-margin", {"margin": 2}
    )
    assert Trial(loss=LossChoice("arc-margin")).resolved().head.options == {"scale": 1.0, "bias": False}
