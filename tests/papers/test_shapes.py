"""Every published setting builds at its real shapes and takes two optimiser steps; the largest are only built."""

import dataclasses

import pytest
import torch

from lastlayer import data
from lastlayer.papers import artifact, artifacts, cost
from lastlayer.training.build import build
from lastlayer.training.engine.step import step
from lastlayer.training.facts import Facts
from lastlayer.training.fit import begin

SAMPLES = 4  # a step
LARGEST = 2e9  # operations of a sample above which a model is only built
SLIM = 512  # units of a dense layer above which a model is built, and steps with so many: 4096 are 1e8 parameters


WORKED = set()  # what has worked in this process: artifacts share networks, losses and optimisers


def parts_of(trial):
    """Its model with the shapes of its data, its loss with its head, and its optimiser."""
    parts = (
        ("model", trial.model, cost.shape(trial.data)[1:]),
        ("loss", trial.loss, trial.head.name, sorted(trial.head.options)),  # a sweep of scales is built once
        ("optimiser", trial.optimiser.name, trial.optimiser.clip, trial.augmentation, trial.precision),
    )
    return {repr(part) for part in parts}


def fake(trial):
    _, shape, classes = cost.shape(trial.data)
    generator = torch.Generator().manual_seed(0)
    size = max(2 * SAMPLES, classes)  # every class once
    if len(shape) == 3:
        inputs = torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=generator)
    else:
        inputs = torch.randn(size, *shape, generator=generator)
    split = data.Split(inputs, torch.arange(size) % classes)
    mean = (0.5,) * shape[0] if len(shape) == 3 else None
    return data.Dataset("fake", split, split, tuple(map(str, range(classes))), 255.0 if mean else 1.0, mean, mean)


def works(trial, large=False, teacher=None):
    dataset = fake(trial)
    if large:
        tokens = len(dataset.in_shape) == 2
        with torch.device("meta"):
            network = build(trial, Facts.of(dataset))[0]
            inputs = torch.empty(2, *dataset.in_shape, dtype=torch.int32 if tokens else torch.float32)
            logits = network.head(network.backbone(inputs))
        assert logits.shape == (2, dataset.num_classes)
        return
    taught_by = None if teacher is None else build(teacher, Facts.of(dataset))[0]
    trial = dataclasses.replace(trial, batch_size=SAMPLES, schedule=dataclasses.replace(trial.schedule, warmup=0.0))
    state, feed = begin(trial, dataset, teacher=taught_by)
    before = [parameter.detach().clone() for parameter in state.network.parameters()]
    for _ in range(2):
        step(state, feed)
    assert state.total.isfinite()  # and so was every loss
    assert any(not torch.equal(a, b) for a, b in zip(before, state.network.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name, one in sorted(artifacts().items()) if one.compute is None])
def test_two_steps_at_the_published_shapes(name):
    grid = artifact(name).grid("paper")
    teachers = {cell.teacher.identity: cell.teacher for cell in grid.cells if cell.teacher is not None}
    for trial in (trial for trial in grid.trials() if trial.seed == 0):
        if (parts := parts_of(trial)) <= WORKED:
            continue
        try:
            large = cost.operations(trial.model, cost.shape(trial.data)[1]) > LARGEST
        except (ImportError, OSError) as error:  # a package or the files of a model are not here
            pytest.skip(str(error))
        slim = trial
        if not large and trial.model.options.get("hidden", 0) > SLIM:
            works(trial, large=True)
            slim = trial.with_settings({"model.hidden": SLIM})
        works(slim, large, teachers.get(trial.teacher))
        WORKED.update(parts)
