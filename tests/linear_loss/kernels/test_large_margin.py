"""large-margin of labels by kernels; by Triton's interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from lastlayer.linear_loss import layer as layers
from lastlayer.linear_loss.kernels import large_margin
from tests.linear_loss.cases import BY_KERNELS, DEVICE, PLANS, every_plan, gradients, is_dense, layer, on_device, target

N, D, K = 6, 5, 7
pytestmark = BY_KERNELS


@pytest.mark.parametrize("size", [4, 100], ids=["chunks", "one chunk"])
@pytest.mark.parametrize("kind", ["index", "pair", "pairs"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "options", [{"margin": 1}, {"margin": 4, "lam": 0.5}, {"margin": 2, "weighted": True}], ids=str
)
def test_values_and_gradients(options: dict[str, Any], reduction: str, kind: str, size: int) -> None:
    """Against float64 on all logits, with a zero feature and a zero class. A second call gives the same."""
    weight = {"class_weight": torch.linspace(0.5, 2.0, K)} if options.get("weighted") else {}
    plain = {name: value for name, value in options.items() if name != "weighted"}
    module = losses.LargeMarginLoss(**plain, **weight, reduction=reduction)
    exact = [p.detach() for p in layer(N, D, K)[:2]]
    exact[0][1], exact[1][2] = 0.0, 0.0
    parts = [p.float().to(DEVICE).requires_grad_() for p in exact]
    exact = [p.requires_grad_() for p in exact]
    labels = target(kind, N, K, ignore=True)
    there = labels.to(DEVICE) if kind == "index" else tuple(p.to(DEVICE) if torch.is_tensor(p) else p for p in labels)
    expected = module(*exact, labels)
    assert large_margin.takes_angles(there, module.to(DEVICE), parts[0], K)
    value = linear_loss(*parts, there, module, plan=Plan("rows", "test", rows=size))
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    wanted = gradients(expected, exact)
    upstream = torch.linspace(-1.0, 2.0, N) if reduction == "none" else torch.tensor(1.7)
    for retain in (True, False):
        found = torch.autograd.grad(value, parts, upstream.to(DEVICE), retain_graph=retain)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [4, 100], ids=["chunks", "one chunk"])
def test_one_class_of_no_samples_and_of_a_learnable_number(size: int) -> None:
    plan = Plan("rows", "test", rows=size)
    (*parts, _), labels = on_device()
    lam = torch.tensor(0.5, requires_grad=True, device=DEVICE)
    module = losses.LargeMarginLoss(lam=lam)
    wanted = torch.autograd.grad(module(*parts[:2], labels), lam)
    torch.testing.assert_close(torch.autograd.grad(linear_loss(*parts[:2], labels, module, plan=plan), lam), wanted)
    h, w = parts[0], parts[1][:1].detach().requires_grad_()
    value = linear_loss(h, w, torch.zeros_like(labels), "large-margin", plan=plan)
    assert value.item() == 0
    assert all(g.count_nonzero() == 0 for g in torch.autograd.grad(value, [h, w]))
    assert linear_loss(h[:0], w, labels[:0], "large-margin", plan=plan).isnan()


@pytest.mark.parametrize("size", [4, 100], ids=["chunks", "one chunk"])
def test_half_precision_multiplies_as_a_layer_does(size: int) -> None:
    (*parts, _), labels = on_device()
    half = [p.detach().bfloat16().requires_grad_() for p in parts[:2]]
    exact = [p.detach().double().requires_grad_() for p in half]
    module = losses.LargeMarginLoss(margin=2, lam=1.0)
    expected = module(*exact, labels)
    value = linear_loss(*half, labels, module, plan=Plan("rows", "test", rows=size))
    assert value.dtype is torch.float32
    torch.testing.assert_close(value, module(*half, labels), rtol=1e-5, atol=1e-5)
    for a, b in zip(torch.autograd.grad(value, half), torch.autograd.grad(expected, exact), strict=True):
        assert a.dtype is torch.bfloat16
        assert (a.double() - b).norm() < 1.5e-2 * b.norm()


@every_plan
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_of_aligned_features(dtype: torch.dtype, plan: Plan) -> None:
    """Then the gradients by the logit and by the norms are 16 and 15 times as large as their sum."""
    generator = torch.Generator().manual_seed(0)
    n, d, k = 64, 32, 40
    weight, labels = torch.randn(k, d, generator=generator), torch.randint(k, (n,), generator=generator)
    features = 0.3 * (3 * weight[labels] + torch.randn(n, d, generator=generator))
    half = [p.to(DEVICE, dtype).requires_grad_() for p in (features, weight)]
    exact = [p.detach().double().requires_grad_() for p in half]
    module, labels = losses.LargeMarginLoss(margin=4), labels.to(DEVICE)
    value = linear_loss(*half, labels, module, plan=plan)
    wanted = torch.autograd.grad(module(*exact, labels), exact)
    for a, b in zip(torch.autograd.grad(value, half), wanted, strict=True):
        assert (a.double() - b).norm() < torch.finfo(dtype).eps * b.norm()


@every_plan
def test_large_logits_keep_their_differences(plan: Plan) -> None:
    common = 2.0**22  # all below is exact in float32, whose numbers are half of one apart there
    features = torch.tensor([[common, 1.0]]).repeat(N, 1).to(DEVICE)
    weight = torch.stack([torch.ones(K), torch.arange(K) % 3], 1).to(DEVICE)
    labels = torch.arange(N, device=DEVICE)
    module = losses.LargeMarginLoss(margin=1, lam=1e9, reduction="none")  # the plain logit
    expected = losses.cross_entropy((features @ weight.T).double(), labels, reduction="none")
    value = linear_loss(features, weight, labels, module, plan=plan)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)


@every_plan
def test_a_mixed_pair_shares_its_logits(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    (h, w, _), _ = on_device()
    pair = tuple(part.to(DEVICE) for part in target("pairs", N, K))
    products = []
    put = large_margin.put_product
    monkeypatch.setattr(large_margin, "put_product", lambda *given: (products.append(given), put(*given))[1])
    linear_loss(h, w, pair, "large-margin", plan=plan).backward()
    assert len(products) == (1 if plan.rows >= N else 4)  # of two chunks, twice


@every_plan
def test_rows_of_a_half_precision_gradient_begin_a_width(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    (*parts, _), labels = on_device()
    h, w = (p.detach().bfloat16().requires_grad_() for p in parts)
    strides = []
    product = layers.input_gradient
    monkeypatch.setattr(layers, "input_gradient", lambda dz, w: (strides.append(dz.stride()), product(dz, w))[1])
    linear_loss(h, w, labels, "large-margin", plan=plan).backward()
    assert set(strides) == {(8, 1)}


def test_few_logits_follow_the_plan_but_where_a_gradient_would_be_lacking(planned: Callable[[Plan], Any]) -> None:
    planned(PLANS[0])
    (h, w, _), labels = on_device()
    class_weight = torch.nn.Parameter(torch.linspace(0.5, 2.0, K, device=DEVICE))
    share = torch.full((N,), 0.3, device=DEVICE, requires_grad=True)
    for weight, given, taken in (
        (None, labels, True),
        (None, (labels, labels.flip(0), share.detach()), True),
        (class_weight.detach(), labels, True),
        (class_weight, labels, False),
        (None, (labels, labels.flip(0), share), False),
        (None, torch.eye(K, device=DEVICE)[labels], False),
    ):
        loss = losses.LargeMarginLoss(class_weight=weight)
        value = linear_loss(h, w, given, loss)
        torch.testing.assert_close(value, loss(h, w, given))
        assert is_dense(value, h) is not taken
    with pytest.raises(TypeError, match="target"):
        linear_loss(h, w, labels.tolist(), "large-margin")
