"""The Triton kernels, by Triton's interpreter where there is no GPU, against float64 on the whole logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from lastlayer import losses
from lastlayer.linear_loss import Plan, kernels, linear_loss, plan, products
from lastlayer.linear_loss.kernels import coupled
from lastlayer.linear_loss.kernels import labels as label_kernels
from lastlayer.linear_loss.kernels import rows as row_kernels
from lastlayer.linear_loss.rows import takes
from tests.linear_loss.cases import BY_KERNELS, DEVICE, assert_same, dense, gradients, layer, make, target

N, D, K = 11, 5, 37
pytestmark = BY_KERNELS
WEIGHT = torch.linspace(0.2, 2.0, K)
ROWS = Plan("rows", "test", rows=4)


def single(parts: list[Any]) -> list[Any]:
    return [None if p is None else p.detach().float().to(DEVICE).requires_grad_() for p in parts]


MODULES: dict[str, Callable[..., losses.Loss]] = {
    "ce": lambda **common: losses.CrossEntropyLoss(K, **common),
    "ce, temperature": lambda **common: losses.CrossEntropyLoss(K, temperature=0.4, **common),
    "ls": lambda **common: losses.CrossEntropyLoss(K, temperature=0.7, label_smoothing=0.2, **common),
    "sln": lambda **common: losses.SoftLogitNormLoss(K, **common),
    "sln, gamma": lambda **common: losses.SoftLogitNormLoss(K, gamma=0.3, tau=0.5, **common),
    **{name: lambda name=name, **common: make(name, K, **common) for name in
       ["ln", "self-norm", "focal", "soft-margin", "logit-adjusted", "bce", "arc-margin", "max-margin", "nce", "mse"]},
    "nce, without the label": lambda **common: losses.NceLoss(K, num_noise=3, include_target=False, **common),
    "mse, rescaled": lambda **common: losses.MseLoss(K, kappa=3.0, beta=2.0, **common),
}  # fmt: skip


@pytest.mark.parametrize(("size", "tile"), [(4, 16), (N, 16), (N, 64), (N, 2048)],
                         ids=["chunks by rows", "by rows", "by four rows", "at once"])  # fmt: skip
@pytest.mark.parametrize("name", MODULES)
def test_equal_dense(name: str, size: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_kernels, "TILE", tile)  # 16 columns of a row at a time
    for reduction, weighted, biased in (("mean", False, True), ("none", True, False)):
        if weighted and name == "ls":
            continue
        common = {"reduction": reduction} | ({"weight": WEIGHT.double()} if weighted else {})
        exact = layer(N, D, K)
        if name == "arc-margin":
            exact = [(p.detach() / 8).requires_grad_() for p in exact]
        exact = [p if biased or p.dim() == 2 else None for p in exact]
        labels = target("index", N, K, ignore=True)
        expected = dense(MODULES[name](**common), exact, labels)
        wanted = gradients(expected, exact)
        parts = single(exact)
        module = MODULES[name](**common).to(DEVICE)
        assert takes(labels.to(DEVICE), module, parts[0], K, size)
        plan = Plan("rows", "test", rows=size)
        value = linear_loss(parts[0], parts[1], labels.to(DEVICE), module, parts[2], plan=plan)
        torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
        found = gradients_on(value, parts)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=2e-5)


def gradients_on(value: torch.Tensor, parts: list[Any]) -> list[torch.Tensor]:
    upstream = torch.linspace(-1.0, 2.0, value.numel()).reshape(value.shape) if value.dim() else torch.tensor(1.7)
    return list(torch.autograd.grad(value, [p for p in parts if p is not None], upstream.to(value.device)))


@pytest.mark.parametrize("ignored", [(), (2,), range(N)], ids=["none", "one", "all"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("size", [4, N], ids=["chunks", "one chunk"])
def test_very_many_rows_are_added_like_few(size: int, reduction: str, ignored: Any, monkeypatch: Any) -> None:
    labels = target("index", N, K)
    labels[list(ignored)] = -100
    found = []
    for most in (N, N - 1):
        monkeypatch.setattr(label_kernels, "ONE_PROGRAM", most)
        parts = single(layer(N, D, K))
        module = losses.CrossEntropyLoss(K, weight=WEIGHT, reduction=reduction).to(DEVICE)
        value = linear_loss(parts[0], parts[1], labels.to(DEVICE), module, plan=Plan("rows", "test", rows=size))
        found.append((value.detach(), *torch.autograd.grad(value, parts[:2], 1.7 * torch.ones_like(value))))
    for few, many in zip(*found, strict=True):
        torch.testing.assert_close(many, few, equal_nan=True)


@pytest.mark.parametrize("kind", ["index", "pair", "probabilities"])
def test_batch_cross_entropy(kind: str) -> None:
    labels, exact = target(kind, N, K), layer(N, D, K)
    expected = dense(make("batch-ce", K), exact, labels)
    parts = single(exact)
    on_device = tuple(p.to(DEVICE) if isinstance(p, torch.Tensor) else p for p in labels) if kind == "pair" else labels
    value = linear_loss(*parts[:2], on_device if kind == "pair" else labels.to(DEVICE), "batch-ce", parts[2], plan=ROWS)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(gradients_on(value, parts), gradients(expected, exact), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("rise", [5.0, 100.0])
def test_batch_cross_entropy_of_chunks_that_rise_waits_for_nothing(rise: float, monkeypatch: Any) -> None:
    """Each chunk has higher logits than the one before: by less than the exponentials can hold, or by more."""
    exact = layer(12, D, K)
    exact[2] = None
    with torch.no_grad():
        exact[0] += rise * torch.arange(12).div(4, rounding_mode="floor").unsqueeze(1)
        exact[1].abs_()
    labels = target("index", 12, K)
    expected = dense(make("batch-ce", K), exact, labels)
    parts = single(exact)
    value = linear_loss(*parts[:2], labels.to(DEVICE), "batch-ce", plan=ROWS)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(gradients_on(value, parts), gradients(expected, exact[:2]), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4)
    on_device = labels.to(DEVICE)
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    else:
        monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: pytest.fail("waits to read a number"))
    try:
        linear_loss(*parts[:2], on_device, "batch-ce", plan=ROWS).backward()
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("size", [3, 7], ids=["chunks", "one chunk"])
def test_batch_cross_entropy_of_large_logits_keeps_its_digits(size: int) -> None:
    """Logits near 5003 are exact to 5e-4 here. Their log-sum would not be."""
    exact = [torch.eye(7).double().requires_grad_(), (5003 + 8 * torch.eye(7)).double().requires_grad_(), None]
    labels = torch.arange(7)
    expected = dense(make("batch-ce", 7), exact, labels)
    parts = single(exact)
    plan = Plan("rows", "test", rows=size)
    value = linear_loss(parts[0], parts[1], labels.to(DEVICE), "batch-ce", plan=plan)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-4, atol=0.0)
    wanted = gradients(expected, exact)[1]
    torch.testing.assert_close(gradients_on(value, parts)[1].double().cpu(), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [3, N], ids=["chunks", "one chunk"])
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "self-norm", "focal", "max-margin", "batch-max-margin"])
def test_one_class_and_confident_samples(name: str, size: int) -> None:
    for exact, labels in (
        ([p.detach() for p in layer(N, D, 1)[:2]], torch.zeros(N, dtype=torch.long)),
        ([torch.eye(7).double(), 18 * torch.eye(7).double() - 9], torch.arange(7)),
    ):
        exact = [p.requires_grad_() for p in exact]
        module = make(name, exact[1].shape[0])
        expected = dense(module, [*exact, None], labels)
        parts = single([*exact, None])
        plan = Plan("rows", "test", rows=size)
        value = linear_loss(parts[0], parts[1], labels.to(DEVICE), module.to(DEVICE), plan=plan)
        torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=5e-7)
        for a, b in zip(gradients_on(value, parts), gradients(expected, exact), strict=True):
            torch.testing.assert_close(a.double().cpu(), b * 1.0, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ties_and_the_first_of_them(dtype: torch.dtype) -> None:
    z = torch.randint(-2, 3, (9, K), generator=torch.Generator().manual_seed(0)).to(dtype).to(DEVICE)
    label = torch.randint(K, (9,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    value, place, ties = row_kernels.best(z, label)
    false = z.double().scatter(1, label.unsqueeze(1), float("-inf"))
    assert torch.equal(value.double(), false.amax(1))
    assert torch.equal(place, false.argmax(1))
    assert torch.equal(ties, (false == false.amax(1, keepdim=True)).sum(1))


@pytest.mark.parametrize("limit", [0, 2**39], ids=["single entries", "in place"])
@pytest.mark.parametrize("size", [4, N], ids=["chunks", "one chunk"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("options", [{}, {"sample_term": False}, {"margin": 7.5}], ids=str)
def test_batch_max_margin(options: dict[str, Any], ties: bool, size: int, limit: int, monkeypatch: Any) -> None:
    """If the largest false logits tie, in a row or over rows, they share the gradient. A second call gives the same."""
    monkeypatch.setitem(plan.__globals__, "SPARSE_PAYS", limit)
    exact = layer(N, D, K)
    if ties:
        exact = [p.detach().round().requires_grad_() for p in exact]
    labels, module = target("index", N, K), losses.BatchMaxMarginLoss(**options)
    expected = dense(module, exact, labels)
    wanted = gradients(expected, exact)
    parts = single(exact)
    value = linear_loss(*parts[:2], labels.to(DEVICE), module, parts[2], plan=Plan("rows", "test", rows=size))
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    upstream = torch.tensor(1.7, device=DEVICE)
    for retain in (True, False):
        found = torch.autograd.grad(value, parts, upstream, retain_graph=retain)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("plan", [Plan("dense", "test"), Plan("rows", "test", rows=1), Plan("rows", "test", rows=2)])
@pytest.mark.parametrize("name", ["max-margin", "batch-max-margin"])
def test_a_lead_of_the_margin_exactly_is_enough(name: str, plan: Plan) -> None:
    """The loss is 0, and so is its gradient, whatever torch's clamp does at the kink."""
    h = torch.eye(2, device=DEVICE).requires_grad_()
    w = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], device=DEVICE, requires_grad=True)
    value = linear_loss(h, w, torch.tensor([0, 1], device=DEVICE), name, plan=plan)
    assert value == 0.0
    assert all(not found.any() for found in torch.autograd.grad(value, [h, w]))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", ["batch-ce", "batch-max-margin"])
def test_batch_losses_of_one_chunk_go_over_the_rows_in_blocks(name: str, ties: bool, monkeypatch: Any) -> None:
    """The last block is longer than the rows that are left."""
    monkeypatch.setattr(coupled, "BLOCK", 4)
    exact = layer(N, D, K)
    if ties:
        exact = [p.detach().round().requires_grad_() for p in exact]
    labels = target("index", N, K)
    expected = dense(make(name, K), exact, labels)
    parts = single(exact)
    assert takes(labels.to(DEVICE), make(name, K), parts[0], K, N)
    value = linear_loss(*parts[:2], labels.to(DEVICE), name, parts[2], plan=Plan("rows", "test", rows=N))
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients_on(value, parts), gradients(expected, exact), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("size", [1, 2], ids=["chunks", "one chunk"])
def test_batch_max_margin_sees_what_is_no_number(size: int) -> None:
    """NaN in any class. A maximum would pass over it."""
    for place in range(3):
        h = torch.ones(2, 2, device=DEVICE, requires_grad=True)
        bias = torch.tensor([0.5, -0.5, 0.0], device=DEVICE)
        bias[place] = float("nan")
        labels = torch.zeros(2, dtype=torch.long, device=DEVICE)
        w = torch.zeros(3, 2, device=DEVICE)
        assert linear_loss(h, w, labels, "batch-max-margin", bias, plan=Plan("rows", "test", rows=size)).isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_sum_lies_in_the_memory_of_the_gradient(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of dz^T h in float32, in blocks of two rows of the result, against float64; an odd number of classes."""
    monkeypatch.setattr(products, "BLOCK", 2 * D)
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(K, D, dtype=dtype, device=DEVICE)
    chunks = [(torch.randn(4, K, generator=generator), torch.randn(4, D, generator=generator)) for _ in range(3)]
    chunks = [(dz.to(dtype).to(DEVICE), h.to(dtype).to(DEVICE)) for dz, h in chunks]
    total = products.WeightSum(weight)
    for dz, h in chunks:
        total.add(dz, h)
    found = total.finish(torch.tensor(0.3, device=DEVICE))
    assert found.dtype is dtype
    wanted = 0.3 * sum(dz.double().T @ h.double() for dz, h in chunks)
    torch.testing.assert_close(found.double(), wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("size", [4, N], ids=["chunks", "one chunk"])
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "max-margin", "batch-ce", "batch-max-margin"])
def test_bfloat16(name: str, size: int) -> None:
    exact = [p.detach().bfloat16().double().requires_grad_() for p in layer(N, D, K)]
    labels, module = target("index", N, K), make(name, K)
    expected = dense(module, exact, labels)
    parts = [p.detach().bfloat16().to(DEVICE).requires_grad_() for p in exact]
    plan = Plan("rows", "test", rows=size)
    value = linear_loss(*parts[:2], labels.to(DEVICE), module.to(DEVICE), parts[2], plan=plan)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-2, atol=1e-2)
    for a, b in zip(gradients_on(value, parts), gradients(expected, exact), strict=True):
        assert a.dtype is torch.bfloat16
        assert (a.double().cpu() - b).norm() < 1.5e-2 * b.norm()


def test_float16_gradients_that_overflow_are_infinite() -> None:
    """A class weight of 1e6 takes the gradient of a logit, one half here, past what float16 holds."""
    features = torch.zeros(1, 2, dtype=torch.float16, device=DEVICE, requires_grad=True)
    bias = torch.zeros(2, dtype=torch.float16, device=DEVICE, requires_grad=True)
    weight = torch.eye(2, dtype=torch.float16, device=DEVICE)
    module = losses.CrossEntropyLoss(2, weight=torch.tensor([1e6, 1.0]), reduction="sum").to(DEVICE)
    value = linear_loss(features, weight, torch.tensor([0], device=DEVICE), module, bias, plan=ROWS)
    found, added = torch.autograd.grad(value, [features, bias])
    assert not found.isfinite().any()
    assert added.tolist() == [-torch.inf, torch.inf]


@pytest.mark.usefixtures("compiles")
def test_where_triton_fails_the_compiler_takes_over_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("no such GPU")

    monkeypatch.setattr(row_kernels, "times", failing)
    kernels._row_kernels_on.cache_clear()
    parts, labels = single(layer(N, D, K)), target("index", N, K).to(DEVICE)
    with pytest.warns(UserWarning, match="no such GPU"):
        value = linear_loss(*parts[:2], labels, "ce", plan=ROWS)
    kernels._row_kernels_on.cache_clear()
    torch.testing.assert_close(value, losses.cross_entropy(parts[0] @ parts[1].T, labels))


def test_a_graph_that_is_kept_is_asked_twice() -> None:
    parts, labels = single(layer(N, D, K)), target("index", N, K).to(DEVICE)
    for name, size in (("ce", 4), ("ce", N), ("batch-ce", 4)):
        value = linear_loss(*parts[:2], labels, name, plan=Plan("rows", "test", rows=size))
        first = torch.autograd.grad(value, parts[:2], retain_graph=True)
        again = torch.autograd.grad(value, parts[:2], 2 * torch.ones_like(value))
        for a, b in zip(first, again, strict=True):
            torch.testing.assert_close(2 * a, b)


def test_sln_of_a_zero_row() -> None:
    parts, labels = single(layer(N, D, K)), target("index", N, K).to(DEVICE)
    with torch.no_grad():
        parts[0][2] = 0
    module = losses.SoftLogitNormLoss(reduction="none")
    value = linear_loss(*parts[:2], labels, module, plan=ROWS)
    torch.testing.assert_close(value[2].cpu(), torch.tensor(float(K)).log())
    assert_same(value.cpu(), dense(module, [*parts[:2], None], labels).cpu(), [*parts[:2], None], rtol=1e-4, atol=1e-5)
