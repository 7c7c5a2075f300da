"""Lower precision and the digits that survive it, against float64 on the whole logits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.linear_loss.cases import (
    BATCH,
    PER_SAMPLE,
    WHOLE,
    K,
    classes,
    dense,
    gradients,
    layer,
    make,
    plans_for,
    rows,
    target,
)


@pytest.mark.parametrize("name", [*(n for n in PER_SAMPLE if n != "arc-margin"), *BATCH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    exact = [(p.detach() / 2).to(dtype).double().requires_grad_() for p in layer(64, 16, 33)]
    if name == "large-margin":
        exact = [*exact[:2], None]
    parts = [None if p is None else p.detach().to(dtype).requires_grad_() for p in exact]
    labels, module = target("index", 64, 33), make(name, 33)
    expected = dense(module, exact, labels)
    wanted = gradients(expected, exact)
    # The dense form in the same dtype says how far rounding the logits takes any form from the exact one.
    sizes = [w.abs().max().item() for w in wanted]
    close = 2e-5 if dtype is torch.float32 else 2e-2
    margins = "margin" in name and dtype is not torch.float32  # which logit is the largest may change by rounding
    for plan in plans_for(name, 24, 10):
        value = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=plan)
        assert value.dtype is torch.float32
        torch.testing.assert_close(value.double(), expected, rtol=close, atol=close)
        for found, want, size in zip(gradients(value, parts), wanted, sizes, strict=True):
            assert found.dtype is dtype
            off = (found.double() - want).abs()
            assert (off.mean() if margins else off.max()) <= 2 * close * size


@pytest.fixture
def memory_of_nan() -> Iterator[None]:
    """What torch.empty returns is filled with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("memory_of_nan")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*PER_SAMPLE, *BATCH])
def test_memory_that_was_never_written_is_not_read(name: str, dtype: torch.dtype) -> None:
    """The products of some processors read the padding behind a row of half precision."""
    parts = [(p.detach() / 2).to(dtype).requires_grad_() for p in layer(64, 16, 33)]
    bias = None if name == "large-margin" else parts[2]
    wanted = parts if bias is not None else parts[:2]
    for plan in plans_for(name, 24, 10):
        value = linear_loss(*parts[:2], target("index", 64, 33), make(name, 33), bias, plan=plan)
        assert value.isfinite()
        assert all(found.isfinite().all() for found in torch.autograd.grad(value, wanted))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*(n for n in PER_SAMPLE if n != "large-margin"), *BATCH])
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    parts = [(p.detach() / 8).to(dtype).cuda().requires_grad_() for p in layer(64, 16, 33)]
    exact = [p.detach().double().requires_grad_() for p in parts]
    labels, module = target("index", 64, 33).cuda(), make(name, 33).cuda()
    wanted = torch.autograd.grad(dense(module, exact, labels), exact)
    close = 1e-4 if dtype is torch.float32 else 3e-2
    for plan in plans_for(name, 24, 10):
        value = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        for found, want in zip(torch.autograd.grad(value, parts), wanted, strict=True):
            assert (found.double() - want).abs().mean() <= close * want.abs().max()


def test_weight_gradient_is_summed_in_float32() -> None:
    """In bfloat16, 1 + 1/256 is 1. So a sum over many chunks would stop growing."""
    n = 1024
    features = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    module = losses.CrossEntropyLoss(reduction="sum")
    for plan in (rows(1), classes(1)):
        value = linear_loss(features, weight, torch.zeros(n, dtype=torch.long), module, plan=plan)
        gradient = torch.autograd.grad(value, weight)[0]
        torch.testing.assert_close(gradient.float(), torch.tensor([[-n / 2.0], [n / 2.0]]))


def test_float16_keeps_small_gradients_under_a_loss_scale() -> None:
    """The mean divides by N before a scaler multiplies by 65536: in float16 the part of one sample would vanish."""
    features, weight, _ = (p.detach().half().requires_grad_() for p in layer(4096, 4, 3))
    labels = target("index", 4096, 3)
    scaler = torch.tensor(65536.0)
    for plan in (rows(1000), classes(2)):
        value = linear_loss(features, weight, labels, "ce", plan=plan)
        found = torch.autograd.grad(value, features, scaler / 64)[0].double()
        h = features.detach().double().requires_grad_()
        wanted = torch.autograd.grad(F.cross_entropy(h @ weight.double().T, labels), h)[0] * 1024
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["ce", "ls", "bce", "self-norm", "batch-ce", "focal", "soft-margin", "large-margin"])
def test_confident_samples_keep_their_digits(name: str) -> None:
    """The true logit is far above the others, in any tile. So the loss is small, and must not consist of rounding."""
    parts = [
        torch.eye(K, dtype=torch.float64).requires_grad_(),
        (18 * torch.eye(K).double() - 9).requires_grad_(),
        None,
    ]
    labels, module = torch.arange(K), make(name)
    expected = dense(module, parts, labels)
    single = [None if p is None else p.detach().float().requires_grad_() for p in parts]
    for plan in (rows(3), classes(2)):
        found = linear_loss(single[0], single[1], labels, module, plan=plan)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=5e-7)
        for a, b in zip(gradients(found, single), gradients(expected, parts), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=2e-6)  # p - 1 holds 6e-8, times the weight


@pytest.mark.parametrize("name", ["ce", "ls", "batch-ce"])
def test_a_part_common_to_all_logits_costs_no_digits(name: str) -> None:
    parts, labels, module = layer(dtype=torch.float32), target("index"), make(name)
    with torch.no_grad():
        parts[2] += 1000.0
    expected = dense(module, [p.detach().double() for p in parts], labels)
    for plan in (rows(3), classes(2)):
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        torch.testing.assert_close(found.double(), expected, rtol=3e-5, atol=1e-4)  # the logits hold 6e-5 themselves


@pytest.mark.parametrize("name", ["ce", "bce", "logit-adjusted", "batch-ce"])
def test_gradients_among_large_logits_keep_their_digits(name: str) -> None:
    """Logits near 5000 are exact to 5e-4 here. If the true logit leads by 8, 1 - p is 0.002."""
    parts = [torch.eye(K).requires_grad_(), (5000 + 8 * torch.eye(K)).requires_grad_(), None]
    exact = [None if p is None else p.detach().double().requires_grad_() for p in parts]
    labels, module = torch.arange(K), make(name)
    wanted = gradients(dense(module, exact, labels), exact)
    for plan in (rows(3), classes(2)):
        found = gradients(linear_loss(*parts[:2], labels, module, plan=plan), parts)
        torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-4, atol=1e-7)


def test_autocast_multiplies_in_the_lower_precision() -> None:
    parts, labels = layer(dtype=torch.float32), target("index")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = losses.cross_entropy(F.linear(*parts), labels)
        for plan in (WHOLE, rows(4), classes(3)):
            found = linear_loss(*parts[:2], labels, "ce", parts[2], plan=plan)
            assert found.dtype is torch.float32
            torch.testing.assert_close(found, expected)
            for a, b in zip(gradients(found, parts), gradients(expected, parts), strict=True):
                assert a.dtype is torch.float32
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["ce", "focal", "soft-margin", "large-margin"])
@pytest.mark.parametrize("plan", [rows(3), classes(4)], ids=str)
def test_large_logits_keep_their_digits(name: str, plan: Plan) -> None:
    """Logits near 5003 are exact in float32. Their log-sum would be wrong by up to 2e-4."""
    exact = [torch.eye(7).double().requires_grad_(), (5003 + 2 * torch.eye(7)).double().requires_grad_(), None]
    parts = [p if p is None else p.detach().float().requires_grad_() for p in exact]
    module = losses.LargeMarginLoss(margin=1) if name == "large-margin" else make(name, 7)
    labels = torch.arange(7)
    expected, value = dense(module, exact, labels), linear_loss(*parts[:2], labels, module, plan=plan)
    torch.testing.assert_close(value.double(), expected, rtol=2e-6, atol=0)
    wanted = torch.autograd.grad(expected, exact[1])[0]
    torch.testing.assert_close(torch.autograd.grad(value, parts[1])[0].double(), wanted, rtol=1e-5, atol=1e-8)
