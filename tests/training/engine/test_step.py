"""A batch with more logits than are held at once trains by parts, to the same result."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer import data, heads, losses
from lastlayer.linear_loss import plan as plan_module
from lastlayer.training import HeadChoice, LossChoice, ModelChoice, Schedule, Trial
from lastlayer.training.engine import evaluate
from lastlayer.training.engine.step import loss_of, step
from lastlayer.training.fit import begin, train_epoch

STEP = "lastlayer.training.engine.step"
N, D, K = 12, 5, 7
HEADS = {
    "linear": lambda: heads.LinearHead(D, K),
    "normalized": lambda: heads.NormalizedHead(D, K, scale=torch.nn.Parameter(torch.tensor(4.0))),
    "batch-norm": lambda: heads.BatchNormHead(D, K),
}


@pytest.fixture
def few_fit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any two logits are many, and two rows of them fill a chunk. Its parameter is the fewest rows of a chunk."""
    monkeypatch.setattr(f"{STEP}.MANY_LOGITS", 1)
    monkeypatch.setattr(f"{STEP}.DECIDED_AT_ONCE", 2 * K)
    for name, number in (("SMALL", 1), ("CHUNK", 2 * K), ("FEWEST_ROWS", getattr(request, "param", 1))):
        monkeypatch.setitem(plan_module.__globals__, name, number)


@pytest.mark.usefixtures("few_fit")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "mse", "max-margin", "batch-ce", "nce"])
def test_loss_gradients_and_decisions_are_those_of_the_logits(name: str, head: str) -> None:
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
@pytest.mark.parametrize("few_fit", [1, 9], indirect=True)  # by rows, by classes
def test_the_large_margin_head_anneals_as_it_does_in_the_plain_way() -> None:
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


@pytest.mark.parametrize("head", ["linear", "normalized"])
def test_a_training_by_parts_ends_where_the_plain_one_does(head: str, request: pytest.FixtureRequest) -> None:
    model = ModelChoice("mlp", {"width": 16})
    trial = Trial(model=model, head=HeadChoice(head), loss=LossChoice("sln"), schedule=Schedule(epochs=2)).resolved()
    dataset, ended = data.load("digits"), []
    for by_parts in (False, True):
        if by_parts:
            request.getfixturevalue("few_fit")
        state, feed = begin(trial, dataset)
        calls: list[Any] = []
        state.network.head.register_forward_hook(lambda *call, calls=calls: calls.append(call))
        for _ in range(trial.schedule.epochs):
            for _ in train_epoch(state, feed, functools.partial(step, state, feed)):
                pass
        assert len(calls) == (0 if by_parts else state.steps)  # by parts the head makes features, and no logits
        made = evaluate.outputs(state.network, dataset.train)
        ended.append(evaluate.measure(state.network, state.loss, dataset, made, on_test=False))
    plain, found = ended
    assert found["accuracy"] == pytest.approx(plain["accuracy"], abs=0.01)
    assert found["nc1"] == pytest.approx(plain["nc1"], rel=0.02)


def test_few_logits_go_the_plain_way() -> None:
    value, logits = loss_of(heads.LinearHead(D, K), losses.create("ce"), torch.randn(N, D), torch.zeros(N).long(), None)
    assert logits.shape == (N, K)
    assert value.isfinite()


class Sizes(TorchDispatchMode):
    """Notes how many numbers lie in memory for what an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.largest = max(self.largest, made.untyped_storage().nbytes() // made.element_size())
        return made


def test_more_logits_than_are_held() -> None:
    """64 samples of 400,000 classes: 102 MB of logits, of which no more than a part is made at once."""
    n, k = 64, 400_000
    head = heads.LinearHead(2, k)
    with Sizes() as sizes:
        value, decided = loss_of(head, losses.create("bce"), torch.randn(n, 2), torch.arange(n), None)
        value.backward()
    assert decided.shape == (n,)
    assert head.weight.grad.isfinite().all()
    assert 2 * k <= sizes.largest < n * k / 1.5


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
