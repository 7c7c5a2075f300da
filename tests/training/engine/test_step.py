"""A batch with more logits than are held at once trains by parts, to the same result."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest
import torch

from lastlayer import heads, losses
from lastlayer.linear_loss import plan as plan_module
from lastlayer.training import HeadChoice, LossChoice, ModelChoice, Schedule, Trial, finish_fit, fit
from lastlayer.training.engine import step
from lastlayer.training.engine.step import loss_of

STEP = "lastlayer.training.engine.step"
N, D, K = 12, 5, 7
HEADS = {
    "linear": lambda: heads.LinearHead(D, K),
    "normalized": lambda: heads.NormalizedHead(D, K, scale=torch.nn.Parameter(torch.tensor(4.0))),
    "batch-norm": lambda: heads.BatchNormHead(D, K),
}


@pytest.fixture
def few_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any two logits are many, and two rows of them fill a chunk."""
    monkeypatch.setattr(f"{STEP}.MANY_LOGITS", 1)
    monkeypatch.setattr(f"{STEP}.DECIDED_AT_ONCE", 2 * K)
    for name, number in (("SMALL", 1), ("CHUNK", 2 * K), ("FEWEST_ROWS", 1)):
        monkeypatch.setitem(plan_module.__globals__, name, number)


@pytest.mark.usefixtures("few_fit")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "mse", "max-margin", "batch-ce", "nce"])
def test_loss_gradients_and_decisions_are_those_of_the_logits(
    name: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, layer = losses.create(name, K), HEADS[head]().train()
    features = torch.randn(N, D, requires_grad=True)
    target: Any = torch.randint(K, (N,))
    for answer in (target, (target, target.flip(0), 0.3)):
        value, decided = loss_of(layer, module, features, answer, None)
        logits = layer(features)
        expected = module(logits, answer)
        assert torch.equal(decided, logits.argmax(1))
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)
        leaves = [features, *layer.parameters()]
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        for a, b in zip(
            found, torch.autograd.grad(expected, leaves, allow_unused=True, materialize_grads=True), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("few_fit")
@pytest.mark.parametrize("rows_of_a_chunk", [1, 9])  # by rows, by classes
def test_the_large_margin_head_anneals_as_it_does_in_the_plain_way(
    rows_of_a_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plan_module.__globals__, "FEWEST_ROWS", rows_of_a_chunk)
    torch.manual_seed(0)
    module, layer = losses.create("large-margin", K), heads.LargeMarginHead(D, K, margin=2, lam=(3.0, 0.0))
    features, target = torch.randn(N, D, requires_grad=True), torch.randint(K, (N,))
    for taken in (0, 1):
        value, decided = loss_of(layer, module, features, target, None)
        assert decided.shape == (N,)
        assert layer.step == taken + 1
        assert torch.equal(decided, (features @ layer.weight.T).argmax(1))
        expected = losses.large_margin(features, layer.weight, target, margin=2, lam=3.0 / (1 + 0.12 * taken))
        torch.testing.assert_close(value, expected)
        for a, b in zip(*(torch.autograd.grad(v, [features, layer.weight]) for v in (value, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("few_fit")
@pytest.mark.parametrize("head", ["linear", "normalized"])
def test_a_training_by_parts_ends_where_the_plain_one_does(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(
        model=ModelChoice("mlp", {"width": 16}), head=HeadChoice(head), loss=LossChoice("sln"),
        schedule=Schedule(epochs=2), evaluations=1,
    )  # fmt: skip
    taken = []
    by_parts = step.loss_by_parts

    def watched(*arguments: Any) -> Any:
        taken.append(by_parts(*arguments))
        return taken[-1]

    monkeypatch.setattr(f"{STEP}.loss_by_parts", watched)
    found = finish_fit(fit(trial))["measures"]["train"]
    assert taken
    assert all(answer is not None for answer in taken)
    monkeypatch.setattr(f"{STEP}.MANY_LOGITS", 2**24)
    plain = finish_fit(fit(dataclasses.replace(trial)))["measures"]["train"]
    assert found["accuracy"] == pytest.approx(plain["accuracy"], abs=0.01)
    assert found["nc1"] == pytest.approx(plain["nc1"], rel=0.02)


def test_few_logits_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{STEP}.loss_by_parts", lambda *_: pytest.fail("these are few"))
    value, logits = loss_of(heads.LinearHead(D, K), losses.create("ce"), torch.randn(N, D), torch.zeros(N).long(), None)
    assert logits.shape == (N, K)
    assert value.isfinite()


def test_more_logits_than_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 samples of 400,000 classes: 102 MB of logits, of which no more than a part is made at once."""
    n, k, seen = 64, 400_000, []
    linear = torch.nn.functional.linear

    def watched(*arguments: Any) -> Any:
        seen.append(linear(*arguments))
        return seen[-1]

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    head = heads.LinearHead(2, k)
    value, decided = loss_of(head, losses.create("bce"), torch.randn(n, 2), torch.arange(n), None)
    value.backward()
    assert decided.shape == (n,)
    assert head.weight.grad.isfinite().all()
    assert max(made.numel() for made in seen) < n * k / 1.5


def test_few_logits_of_the_large_margin_head_anneal_as_the_head_itself_does() -> None:
    torch.manual_seed(0)
    trained, called = (heads.LargeMarginHead(D, K, margin=3, lam=(8.0, 0.0)) for _ in range(2))
    called.load_state_dict(trained.state_dict())
    features, target = torch.randn(5, D), torch.randint(K, (5,))
    for _ in range(3):
        value, _ = loss_of(trained, losses.create("large-margin", K), features, target, None)
        torch.testing.assert_close(value, losses.cross_entropy(called(features, target), target))
    assert trained.step == called.step == 3


def test_the_compiler_is_not_imported_before_it_is_asked_for() -> None:
    code = "import sys, lastlayer.training; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"  # it takes as long as torch itself
