"""The rows compiled, as on a GPU, but by a backend that any machine has."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import kernels, linear_loss, plan, rows_coupled
from lastlayer.linear_loss import rows as by_rows
from tests.linear_loss.cases import (
    BATCH,
    PER_SAMPLE,
    K,
    N,
    assert_same,
    dense,
    layer,
    layer_for,
    make,
    options,
    rows,
    target,
)

pytestmark = pytest.mark.usefixtures("compiles", "no_triton")


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "row_kernels", lambda *_: None)


@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_compiled_row_functions_equal_dense(name: str) -> None:
    for kind, reduction in itertools.product(["index", "pairs", "probabilities"], ["mean", "none"]):
        if name in BATCH and (reduction == "none" or (name == "batch-max-margin" and kind != "index")):
            continue
        named = {} if name in BATCH else options(name, reduction, kind == "index")
        module, labels = make(name, **named), target(kind, ignore=name not in BATCH and kind != "probabilities")
        parts = layer_for(name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that it fell back
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=rows(4))
            assert_same(found, dense(module, parts, labels), parts, rtol=1e-9, atol=1e-10)


def test_a_mixed_pair_of_another_number_is_not_compiled_again() -> None:
    parts = layer()
    for lam in (0.3, 0.6, 0.1):
        labels = (*target("pair")[:2], lam)
        torch._dynamo.utils.counters.clear()
        found = linear_loss(*parts[:2], labels, "sln", plan=rows(6))
        torch.testing.assert_close(found, dense(make("sln"), [*parts[:2], None], labels))
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_layers_of_all_sorts_are_compiled() -> None:
    """torch.compile makes at most eight versions of one function, for one row and for several."""
    for k, dtype, kind, n in itertools.product([2, 5], [torch.float32, torch.bfloat16], ["index", "pair"], [1, 4]):
        parts, labels = layer(n, k=k, dtype=dtype), target(kind, n, k)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that it fell back
            found = linear_loss(*parts[:2], labels, "ce", plan=rows(4))
        torch.testing.assert_close(found, dense(make("ce", k), [*parts[:2], None], labels), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["ce", "batch-ce"])
def test_where_compiling_fails_eager_code_goes_on_and_says_so_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        def call(*_: Any) -> None:
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    parts, labels = layer(), target("index")
    expected = dense(make(name), parts, labels)
    with pytest.warns(UserWarning, match="no compiler here"):
        assert_same(linear_loss(*parts[:2], labels, name, parts[2], plan=rows(4)), expected, parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(linear_loss(*parts[:2], labels, name, parts[2], plan=rows(4)), expected, parts)


def test_what_is_not_computed_in_place_goes_by_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU chunks are sized for work in place. Without gradients, with numbers to learn or ties they are smaller."""
    monkeypatch.setitem(plan.__globals__, "CHUNK", 3 * K)
    seen = []
    for part in (by_rows, rows_coupled):
        monkeypatch.setattr(
            part, "logits_of", lambda *given, of=part.logits_of: seen.append(len(given[0])) or of(*given)
        )
    parts, labels = [*layer()[:2], None], target("index")
    tied = [p.detach().round().requires_grad_() for p in layer(d=1)[:2]]
    learnt = losses.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64)))
    for module, leaves in (
        (make("ce", reduction="none"), parts),
        (learnt, parts),
        (make("max-margin"), [*tied, None]),
    ):
        seen.clear()
        found = linear_loss(*leaves[:2], labels, module, plan=rows(N))
        assert_same(found, dense(module, leaves, labels), [*leaves, *module.parameters()])
        assert max(seen) == 3
