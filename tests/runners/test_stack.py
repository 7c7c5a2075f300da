"""Stacked trainings against each training by itself."""

import dataclasses

import pytest
import torch

from lastlayer import data
from lastlayer.runners import stack
from lastlayer.runners.stack import WIDTH, Stack, is_small, stacking_key
from lastlayer.training import Augmentation, DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial
from lastlayer.training.loop import Training

TRIAL = Trial(
    data=DataChoice("digits", train=128),
    model=ModelChoice("resnet20"),
    schedule=Schedule(epochs=1),
    batch_size=16,
    augmentation=Augmentation(crop=1),
)


@pytest.fixture(scope="module")
def images() -> data.Dataset:
    """Small images with three channels, of float64 so that only mistakes differ."""
    generator = torch.Generator().manual_seed(0)
    splits = [
        data.Split(torch.rand(count, 3, 8, 8, generator=generator, dtype=torch.float64), torch.arange(count) % 10)
        for count in (64, 20)
    ]
    return data.Dataset("images", splits[0], splits[1], tuple("abcdefghij"))


def trainings(dataset: data.Dataset, count: int) -> list[Training]:
    """Different losses, heads, optimisers and seeds on one backbone."""
    parts = [
        (LossChoice("ce"), Optimiser(lr=0.1, weight_decay=1e-3)),
        (LossChoice("sln"), Optimiser(lr=0.05, weight_decay=0.0, clip=0.1)),
        (LossChoice("large-margin"), Optimiser("adam", lr=1e-3, weight_decay=1e-4)),
        (LossChoice("bce"), Optimiser("adamw", lr=1e-3, weight_decay=0.1)),
    ]
    made = []
    for seed, (loss, optimiser) in enumerate(parts[:count]):
        trial = dataclasses.replace(TRIAL, loss=loss, optimiser=optimiser, seed=seed).resolved()
        training = Training(trial, dataset)
        training.network.double().train()
        training.network.normalize = torch.nn.Identity()  # type: ignore[assignment]  # it would round to float32
        made.append(training)
    return made


@pytest.mark.parametrize("count", [1, WIDTH])
def test_a_stack_moves_each_training_as_its_own_steps_do(images: data.Dataset, count: int) -> None:
    together, alone = trainings(images, count), trainings(images, count)
    stacked = Stack(together)
    for _ in range(3):
        stacked.step()
        for training in alone:
            training.step()
    for ours, theirs in zip(together, alone, strict=True):
        expected = theirs.network.state_dict()
        for name, value in ours.network.state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=1e-7, atol=1e-9)
        assert (int(ours.cursor), int(ours.correct)) == (3, int(theirs.correct))


def test_dropout_is_not_stacked() -> None:
    dataset = data.load("digits")
    training = Training(dataclasses.replace(TRIAL, model=ModelChoice("mlp")).resolved(), dataset)
    training.draws = True
    with pytest.raises(ValueError, match="dropout"):
        Stack([training])


def test_small_layers_stack_and_large_ones_do_not(images: data.Dataset) -> None:
    assert is_small(dataclasses.replace(TRIAL, batch_size=128), images)
    assert not is_small(dataclasses.replace(TRIAL, batch_size=100_000), images)
    nowhere = dataclasses.replace(TRIAL, model=ModelChoice("lastlayer.nowhere:model"))
    assert not is_small(nowhere, images)


def test_loss_head_optimiser_and_seed_may_differ_within_a_stack_and_shapes_may_not() -> None:
    same = dataclasses.replace(TRIAL, loss=LossChoice("sln"), seed=7, optimiser=Optimiser(lr=1.0))
    assert stacking_key(same) == stacking_key(TRIAL)
    for other in ({"batch_size": 8}, {"precision": "bfloat16"}, {"model": ModelChoice("resnet32")}):
        assert stacking_key(dataclasses.replace(TRIAL, **other)) != stacking_key(TRIAL)  # type: ignore[arg-type]


def test_one_forward_serves_every_stack_of_an_architecture(images: data.Dataset) -> None:
    first, second = (Stack(trainings(images, 2)) for _ in range(2))
    assert first.forward is second.forward
    assert len(stack._FORWARDS) >= 1
