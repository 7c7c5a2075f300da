"""Checks before anything trains: what the parts of a trial need, on two made-up rows and on facts alone."""

import dataclasses
import re

import pytest

from lastlayer.data import CorruptFileError
from lastlayer.training import DataChoice, Facts, HeadChoice, LossChoice, ModelChoice, Optimiser, Trial, finish_fit, fit
from lastlayer.training.check import check_at_hand, check_inputs, rehearse

POINTS = Facts("points", ("a", "b", "c"), (5,), counts=(4, 4, 4))
IMAGES = dataclasses.replace(POINTS, name="images", in_shape=(3, 32, 32))


@pytest.mark.parametrize("name", ["crop", "flip", "rotation", "cutmix"])
def test_what_only_images_can_undergo_is_refused_for_features(name: str) -> None:
    trial = Trial(data=DataChoice("wine")).with_settings({f"augmentation.{name}": True if name == "flip" else 1})
    with pytest.raises(ValueError, match=rf"augmentation.{name} is for images; inputs of wine have shape \(13,\)"):
        finish_fit(fit(trial))
    check_inputs(trial, IMAGES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": LossChoice("sln", {"gamma": 5.0})}, r"loss sln gamma=5.0: .*\[0.0, 1.0\]"),
        ({"head": HeadChoice("normalized", {"scale": -1.0})}, "head normalized scale=-1.0: "),
        ({"model": ModelChoice("mlp", {"width": 0})}, "model mlp width=0: "),
        (
            {"model": ModelChoice("identity"), "head": HeadChoice("simplex")},
            "simplex on model identity has nothing",
        ),
        ({"head": HeadChoice("batch-norm"), "batch_size": 1}, "head batch-norm: it normalises over a batch"),
        ({"loss": LossChoice("kd"), "teacher": "nowhere"}, "teacher nowhere is no finished run"),
    ],
)
def test_a_value_that_a_part_does_not_take_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rehearse(dataclasses.replace(Trial(), **change).resolved(), POINTS)  # type: ignore[arg-type]


def test_large_models_are_rehearsed_without_memory_for_their_weights() -> None:
    wide = Trial(model=ModelChoice("mlp", {"width": 400_000, "depth": 2}))  # 640 GB
    assert rehearse(wide.resolved(), dataclasses.replace(POINTS, in_shape=(5,))) == ()


def test_an_optimiser_takes_the_rates_of_its_loss_or_its_own() -> None:
    def rates(**given: object) -> tuple[float | None, float | None]:
        optimiser = Trial(loss=LossChoice("sln"), optimiser=Optimiser(**given)).resolved().optimiser  # type: ignore[arg-type]
        return optimiser.lr, optimiser.weight_decay

    assert rates() == (0.01, 5e-3)
    assert rates(name="adam") == (1e-3, 5e-3)
    assert rates(name="adamw") == (1e-3, 0.05)
    assert rates(name="adamw", lr=0.3, weight_decay=0.0) == (0.3, 0.0)


def test_data_are_read_once_to_see_whether_they_are_whole(tmp_path) -> None:
    (tmp_path / "points.npz").write_bytes(b"no zip")
    trial = Trial(data=DataChoice(str(tmp_path / "points.npz")))
    with pytest.raises(CorruptFileError, match=re.escape("points.npz")):
        check_at_hand(trial, None, set())
    check_at_hand(trial, None, {trial.data.name})
    known: set[str] = set()
    check_at_hand(Trial(data=DataChoice("iris")), None, known)
    assert known == {"iris"}
