"""What a path computes and holds: the memory of its chunks, the cheaper of two ways, the modules it loads."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss, picked
from lastlayer.linear_loss import plan as linear_loss_plan
from tests.linear_loss.cases import (
    BATCH,
    PER_SAMPLE,
    assert_same,
    classes,
    dense,
    layer,
    make,
    peak,
    plans_for,
    target,
)


@pytest.mark.parametrize("name", [n for n in PER_SAMPLE if n != "logit-adjusted"] + BATCH)
def test_chunks_hold_far_less_than_the_logits(name: str) -> None:
    n, d, k = 2048, 8, 1024
    parts, labels = layer(n, d, k, dtype=torch.float32), target("index", n, k)
    matrix = 4 * n * k
    for plan in plans_for(name, 64, 32):

        def step(plan: Plan = plan) -> None:
            torch.autograd.grad(linear_loss(*parts[:2], labels, name, plan=plan), parts[:2])

        step()
        assert peak(step) < matrix / 3


def test_nce_computes_the_drawn_logits_alone() -> None:
    """At a million classes the logits of 64 samples take 256 MB; a weight of 4 MB and 10 drawn classes must do."""
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
    """W^T W takes K d^2, a pass N d K: the one is for few features, the other for few samples."""
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


def test_imports_torch_and_numpy_alone() -> None:
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import lastlayer.linear_loss; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - {'lastlayer', 'torch', 'numpy'}"
        " - set(sys.stdlib_module_names)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
