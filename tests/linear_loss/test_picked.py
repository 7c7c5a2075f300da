"""Losses of the picked classes, and squared norms from W^T W: against the whole logits, and what they hold."""

from __future__ import annotations

import itertools

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import linear_loss, picked
from lastlayer.linear_loss import plan as linear_loss_plan
from tests.linear_loss.cases import (
    REDUCTIONS,
    WEIGHT,
    K,
    N,
    assert_same,
    classes,
    dense,
    layer,
    make,
    peak,
    rows,
    target,
)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["index", "pair", "pairs"])
def test_nce_samples(shared: bool, kind: str) -> None:
    parts, labels = layer(), target(kind, ignore=True)
    samples = torch.randint(K, (4,) if shared else (N, 4), generator=torch.Generator().manual_seed(5))
    samples[..., 0] = samples[..., 1]  # drawn twice
    noise = torch.tensor([0.0, 0.3, 0.2, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    every = itertools.product(REDUCTIONS, (True, False), (None, noise), (None, WEIGHT))
    for reduction, include_target, q, weight in every:
        module = losses.NceLoss(
            samples=samples, include_target=include_target, noise=q, weight=weight, reduction=reduction
        )
        expected = dense(module, parts, labels)
        for plan in (rows(4), classes(4)):
            found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


def test_nce_computes_the_drawn_logits_alone() -> None:
    """At a million classes the logits of 64 samples take 256 MB. The weight here takes 4 MB; 10 classes are drawn."""
    n, k = 64, 1_000_000
    features, weight = torch.randn(n, 1), torch.randn(k, 1).requires_grad_()
    module = losses.NceLoss(samples=torch.randint(k, (n, 10)))

    def step() -> None:
        torch.autograd.grad(linear_loss(features, weight, torch.arange(n), module), weight)

    assert linear_loss_plan(n, 1, k, module).path == "classes"
    step()
    assert peak(step) < 4 * n * k / 8


def test_nce_of_probabilities_goes_by_rows() -> None:
    module = losses.NceLoss(samples=torch.arange(3))
    parts, labels = layer(), target("probabilities")
    assert linear_loss_plan(2**14, 4, 2**12, module, probabilities=True).path == "rows"
    with pytest.raises(ValueError, match="'rows' takes it"):
        linear_loss(*parts[:2], labels, module, plan=classes(3))


@pytest.mark.parametrize("name", ["sln", "ln"])
@pytest.mark.parametrize("d", [2, 64], ids=["W^T W", "a pass over the logits"])
def test_the_norm_of_the_logits_by_the_cheaper_way(name: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """W^T W costs K d^2, a pass over the logits N d K. The first is for few features, the second for few samples."""
    taken = []
    forward = picked.SquaredNorms.forward
    monkeypatch.setattr(picked.SquaredNorms, "forward", lambda *given: taken.append(d) or forward(*given))
    for kind, biased in itertools.product(["index", "pairs", "probabilities"], [True, False]):
        parts = [p if biased or p.dim() == 2 else None for p in layer(32, d, 29)]
        labels = target(kind, 32, 29, ignore=kind != "probabilities")
        with torch.no_grad():
            parts[0][3] = 0
        module = make(name, 29, weight=torch.linspace(0.2, 2.0, 29).double(), reduction="none")
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=classes(5))
        assert_same(found, dense(module, parts, labels), parts)
    assert bool(taken) == (d == 2)
