"""Estimates: shapes known without files, operations of models with published counts."""

import math
import os

import pytest

from lastlayer.papers import cost
from lastlayer.training import DataChoice, ModelChoice, Trial


def test_shapes_without_files():
    assert cost.shape(DataChoice("cifar10")) == (50_000, (3, 32, 32), 10)
    assert cost.shape(DataChoice("tiny-imagenet", classes=50, holdout=0.1)) == (22_500, (3, 64, 64), 50)
    assert cost.shape(DataChoice("tiny-imagenet", {"size": 32})) == (100_000, (3, 32, 32), 200)
    assert cost.shape(DataChoice("imagenet", {"size": 299}))[1] == (3, 299, 299)
    assert cost.shape(DataChoice("mnist", train=2000)) == (2000, (1, 28, 28), 10)
    assert cost.shape(DataChoice("cifar10", unknown=4)) == (30_000, (3, 32, 32), 6)
    samples, shape, classes = cost.shape(DataChoice("digits"))
    assert (shape, classes) == ((1, 8, 8), 10)
    assert 1000 < samples < 1797


@pytest.mark.parametrize(("model", "shape", "published"), [
    ("resnet20", (3, 32, 32), 40.8e6),
    ("resnet56", (3, 32, 32), 125.5e6),
    ("resnet50", (3, 224, 224), 4.1e9),
])  # fmt: skip
def test_operations_are_twice_the_published_multiply_adds(model, shape, published):
    options = {} if shape[1] == 32 else {"stem": "imagenet"}
    assert cost.operations(ModelChoice(model, options), shape) == pytest.approx(2 * published, rel=0.02)


def test_a_longer_training_takes_longer_and_the_unknown_is_unknown():
    one = Trial().resolved()
    of_epochs = [cost.seconds([one.with_settings({"schedule.epochs": many})], "cpu") for many in (30, 60, 300)]
    assert of_epochs[2] - of_epochs[0] == pytest.approx(9 * (of_epochs[1] - of_epochs[0]))
    assert cost.seconds([one, one], "cpu") == pytest.approx(2 * cost.seconds([one], "cpu"))
    assert math.isnan(cost.seconds([one.with_settings({"model.name": "nowhere.to:find"})], "cpu"))


def test_no_trial_is_for_nothing():
    """The smallest takes half a second to build, measure and write on one core."""
    tiny = Trial().with_settings({"data": {"name": "digits", "train": 50}, "schedule.epochs": 1}).resolved()
    assert cost.seconds([tiny] * 12, "cpu") >= 12 * 0.5 / os.cpu_count()


def test_published_open_sets_have_their_number_of_classes():
    assert cost.shape(DataChoice("mnist", arpl=True, seed=4)) == (36_000, (1, 28, 28), 6)
    assert cost.shape(DataChoice("cifar10", arpl=True, unknown_from="cifar100")) == (20_000, (3, 32, 32), 4)
