"""Trials: round trips, identities, and every mistake caught before training."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from lastlayer.training import DataChoice, HeadChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial


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


def test_a_fold_is_written_down_only_where_there_is_one() -> None:
    """Trials from before there were folds keep their identity."""
    assert "fold" not in Trial().to_dict()["data"]
    assert "fold" not in Trial().with_settings({"data.fold": 3}, {"data.fold": None}).to_dict()["data"]
    chosen = Trial().with_settings({"data.fold": 3.0})
    assert (chosen.data.fold, chosen.data.options, chosen.to_dict()["data"]["fold"]) == (3, {}, 3)
    assert Trial.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert chosen.with_settings({"data": {"name": "wine"}}).data == DataChoice("wine")


def test_every_field_changes_the_identity() -> None:
    changes = {
        "data.name": "wine",
        "data.fold": 0,
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
        ({"augmentation.mix_probability": 2}, ["augmentation.mix_probability must be >= 0 and <= 1, got 2"]),
        ({"schedule.epochs": 0}, ["schedule.epochs must be >= 1, got 0"]),
        ({"optimiser.lr": float("inf")}, ["optimiser.lr must be > 0 and finite, got inf"]),
        ({"optimiser.lr": float("nan")}, ["optimiser.lr must be > 0, got nan"]),
        ({"optimiser.nesterov": True, "optimiser.momentum": 0}, ["optimiser.nesterov", "momentum"]),
        ({"schedule.milestones": 0.5}, ["schedule.milestones must be a list of numbers, got 0.5"]),
        ({"schedule.milestones": ["early"]}, ["schedule.milestones must be a list of numbers", "early"]),
        ({"loss": "sln"}, ["loss must be a mapping", "sln"]),
        ({"loss.options": 5}, ["loss.options must be a mapping", "5"]),
        ({"seed": 2**70}, ["seed must be >= 0 and <=", str(2**70)]),
        ({"data.fold": -1}, ["data.fold", ">= 0", "-1"]),
        ({"data.fold": "two"}, ["data.fold", "whole number", "'two'"]),
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
        ({"loss.gama": 1}, ["loss ce has no option 'gama' ('gamma' is an option of focal, sln)"]),
        ({"loss.name": "batch-ce", "loss.margin": 1}, ["batch-ce", "'margin' is an option of arc-margin", "has none"]),
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


def test_equal_trials_have_one_identity_however_their_numbers_are_written() -> None:
    written = Trial(
        optimiser=Optimiser(lr=1, weight_decay=0),
        schedule=Schedule(epochs=3.0),
        model=ModelChoice("mlp", {"a": (1, 2)}),
    )  # type: ignore[arg-type]
    read = Trial.from_dict(json.loads(json.dumps(written.to_dict())))
    assert read == written
    assert read.identity == written.identity


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Trial(batch_size=2.5), "batch_size must be a whole number, got 2.5"),  # type: ignore[arg-type]
        (lambda: Trial(loss="ce"), "loss must be a mapping of settings, got 'ce'"),  # type: ignore[arg-type]
        (lambda: Schedule(epochs="3"), "schedule.epochs must be a whole number, got '3'"),  # type: ignore[arg-type]
        (lambda: DataChoice(train=True), "data.train must be a whole number or null, got True"),
        (lambda: ModelChoice("mlp", {"width": {1, 2}}), "model.options must hold only numbers, texts, lists"),
    ],
)
def test_the_wrong_type_is_refused_where_a_trial_is_made(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_a_file_of_the_data_root_can_be_named_without_its_ending(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "points.npz", x=numpy.random.rand(10, 3), y=numpy.arange(10) % 2)
    assert Trial(data=DataChoice("points")).resolved(tmp_path).data.name == "points"
    with pytest.raises(ValueError, match="'points' is unknown"):
        Trial(data=DataChoice("points")).resolved(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        Trial(data=DataChoice("gone.npz")).resolved(tmp_path)


def test_layers_of_settings_are_laid_one_over_another() -> None:
    layered = Trial().with_settings(
        {"model.width": 64, "optimiser.lr": 0.1},
        {"model": {"name": "mlp", "options": {"depth": 3}}, "optimiser": {"name": "adamw"}},
        {"model.width": 8},
    )
    assert layered.model == ModelChoice("mlp", {"depth": 3, "width": 8})
    assert layered.optimiser == Optimiser("adamw")  # of the part replaced nothing is left
    assert Trial().with_settings({"model": {"name": "vit"}}, {"model.depth": 2}).model == ModelChoice(
        "vit", {"depth": 2}
    )
