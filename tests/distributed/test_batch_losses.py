"""Batch-coupled losses across real gloo processes: every rank sees the whole batch's loss, DDP its gradients."""

from __future__ import annotations

import functools
import sys

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lastlayer import losses
from tests.distributed.processes import joined

K, D = 4, 3
CASES = ["random", "one sample a rank", "an empty rank", "ties", "one class", "huge"]
LOSSES = {
    "batch_cross_entropy": losses.batch_cross_entropy,
    "batch_cross_entropy, probabilities": losses.batch_cross_entropy,
    "batch_cross_entropy, pair": losses.batch_cross_entropy,
    "batch_max_margin": losses.batch_max_margin,
    "batch_max_margin, pair": losses.batch_max_margin,
    "batch_max_margin, extremes": functools.partial(losses.batch_max_margin, sample_term=False, margin=30.0),
}


def shares(case, world):
    """How many samples each rank holds."""
    if case == "one sample a rank":
        return [1] * world
    if case == "an empty rank":
        return [3] * (world - 1) + [0]
    return [5, 2, 4][:world]


def data(case, world):
    generator = torch.Generator().manual_seed(7)
    N, classes = sum(shares(case, world)), 1 if case == "one class" else K
    x = torch.randn(N, D, dtype=torch.float64, generator=generator)
    if case == "ties":
        x = x[:1].repeat(N, 1).round()  # every sample has the same logits
    if case == "huge":
        x = 1e4 * x
    y = torch.randint(classes, (N,), generator=generator)
    other = torch.randint(classes, (N,), generator=generator)
    weight = torch.randn(classes, D, dtype=torch.float64, generator=generator)
    return x, y, other, weight


def target_of(name, y, other, part):
    if name.endswith("probabilities"):
        classes = max(int(y.max()) + 1, K) if y.max() > 0 else 1
        lam = torch.linspace(0, 1, len(y), dtype=torch.float64).unsqueeze(1)
        one_hot = torch.eye(classes, dtype=torch.float64)
        return (lam * one_hot[y] + (1 - lam) * one_hot[other])[part]
    if name.endswith("pair"):
        return (y[part], other[part], 0.3)
    return y[part]


def module(weight):
    layer = torch.nn.Linear(D, len(weight), bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def whole(name, case, world):
    """One process with the whole batch."""
    x, y, other, weight = data(case, world)
    layer = module(weight)
    loss = LOSSES[name](layer(x), target_of(name, y, other, slice(None)))
    loss.backward()
    return loss.detach(), layer.weight.grad


def rank(index, world, folder):
    with joined(index, world, folder) as answers:
        for case in CASES:
            x, y, other, weight = data(case, world)
            start = sum(shares(case, world)[:index])
            part = slice(start, start + shares(case, world)[index])
            for name, loss in LOSSES.items():
                layer = DistributedDataParallel(module(weight))
                value = loss(layer(x[part]), target_of(name, y, other, part), group=dist.group.WORLD)
                value.backward()
                answers[case, name] = value.detach(), layer.module.weight.grad
        # A Module takes the group too.
        x, y, _, weight = data("random", world)
        start = sum(shares("random", world)[:index])
        part = slice(start, start + shares("random", world)[index])
        answers["module"] = losses.BatchCrossEntropyLoss(group=dist.group.WORLD)(x[part] @ weight.T, y[part])


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", LOSSES)
def test_every_rank_has_the_loss_and_gradient_of_the_whole_batch(ranks, name, case):
    world, answers = ranks
    value, gradient = whole(name, case, world)
    assert value.isfinite()
    for found_value, found_gradient in (answer[case, name] for answer in answers):
        torch.testing.assert_close(found_value, value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found_gradient, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_coupling_matters(ranks):
    """The mean of the ranks' own losses is another number: without the group the test above would fail."""
    world, answers = ranks
    x, y, _, weight = data("random", world)
    parts = torch.split(torch.arange(len(y)), shares("random", world))
    own = torch.stack([losses.batch_cross_entropy(x[part] @ weight.T, y[part]) for part in parts])
    together = whole("batch_cross_entropy", "random", world)[0]
    assert (own.mean() - together).abs() > 1e-3
    for answer in answers:
        torch.testing.assert_close(answer["module"], together, rtol=1e-12, atol=0.0)
