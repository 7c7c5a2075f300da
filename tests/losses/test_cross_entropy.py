"""Every loss that can be cross-entropy equals torch's in value and gradient, with every option."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer import losses

K = 4
WEIGHT = [0.5, 2.0, 0.0, 3.0]
SHAPES = [(5, K), (K,), (2, K, 3), (2, K, 2, 3), (0, K), (3, 1)]


def equal_counts(logits, target, **common):
    K_ = logits.shape[min(1, logits.dim() - 1)]
    return losses.logit_adjusted(logits, target, counts=[7] * K_, **common)


def own_teacher(logits, target, **common):
    return losses.distillation(logits, torch.ones_like(logits), target, alpha=0.0, **common)


# Each is cross-entropy at these hyperparameters; those that take label smoothing are tested with it.
SMOOTHED = {
    "cross_entropy": losses.cross_entropy,
    "soft_logit_norm": functools.partial(losses.soft_logit_norm, gamma=0.0, tau=1.0),
}
PLAIN = {
    "focal": functools.partial(losses.focal, gamma=0.0),
    "soft_margin": functools.partial(losses.soft_margin, margin=0.0),
    "self_norm": functools.partial(losses.self_norm, alpha=0.0),
    "arc_margin": functools.partial(losses.arc_margin, margin=0.0, scale=1.0),
    "logit_adjusted": equal_counts,
    "distillation": own_teacher,
}
NUM = dict(SMOOTHED, **PLAIN)


def make(shape, kind, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    # Inside (-1, 1), so that they may be cosines too.
    logits = (1.9 * torch.rand(shape, generator=generator, dtype=torch.float64) - 0.95).to(dtype)
    K_ = shape[min(1, len(shape) - 1)]
    positions = shape[:1] + shape[2:] if len(shape) > 1 else ()
    if kind == "probabilities":
        probabilities = torch.rand(shape, generator=generator, dtype=torch.float64).softmax(min(1, len(shape) - 1))
        return logits.requires_grad_(), probabilities.to(dtype)
    return logits.requires_grad_(), torch.randint(K_, positions, generator=generator)


def grid(kind, weight, smoothing):
    ignored = (-100, 1) if kind == "index" else (-100,)
    return itertools.product(weight, ignored, ("none", "mean", "sum"), smoothing)


def compare(function, shape, kind, smoothing, weights, rtol=1e-12):
    logits, target = make(shape, kind)
    K_ = shape[min(1, len(shape) - 1)]
    for weight, ignored, reduction, a in grid(kind, weights, smoothing):
        common = {
            "weight": None if weight is None else torch.tensor(weight[:K_], dtype=logits.dtype),
            "ignore_index": ignored,
            "reduction": reduction,
        }
        found = function(logits, target, **common, **({"label_smoothing": a} if a else {}))
        expected = F.cross_entropy(logits, target, label_smoothing=a, **common)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-14, equal_nan=True)
        if logits.numel():
            slope = torch.linspace(0.5, 1.5, found.numel(), dtype=found.dtype).reshape(found.shape)
            gradients = [torch.autograd.grad(value, logits, slope)[0] for value in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-14, equal_nan=True)


@pytest.mark.parametrize("kind", ["index", "probabilities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SMOOTHED)
def test_with_label_smoothing(name, shape, kind):
    compare(SMOOTHED[name], shape, kind, (0.0, 0.1, 1.0), (None, WEIGHT))


@pytest.mark.parametrize("kind", ["index", "probabilities"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PLAIN)
def test_at_the_hyperparameters_that_make_it_cross_entropy(name, shape, kind):
    compare(PLAIN[name], shape, kind, (0.0,), (None, WEIGHT))


@pytest.mark.parametrize("kind", ["index", "probabilities"])
def test_large_margin_of_one(kind):
    h, target = make((5, K), kind)
    W = torch.randn(K, K, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    for weight, ignored, reduction, _ in grid(kind, (None, WEIGHT), (0.0,)):
        common = {"ignore_index": ignored, "reduction": reduction}
        weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
        found = losses.large_margin(h, W, target, margin=1, class_weight=weight, **common)
        expected = F.cross_entropy(h @ W.T, target, weight=weight, **common)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        for leaf in (h, W):
            gradients = [torch.autograd.grad(v.sum(), leaf, retain_graph=True)[0] for v in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", NUM)
def test_all_ignored(name):
    logits, _ = make((3, K), "index")
    target = torch.full((3,), -100)
    for reduction in ("none", "mean", "sum"):
        found = NUM[name](logits, target, reduction=reduction)
        torch.testing.assert_close(found, F.cross_entropy(logits, target, reduction=reduction), equal_nan=True)


@pytest.mark.parametrize("name", NUM)
def test_weights_that_sum_to_zero_give_torchs_nan(name):
    logits, _ = make((2, K), "index")
    weight, target = torch.tensor(WEIGHT, dtype=torch.float64), torch.tensor([2, 2])
    assert F.cross_entropy(logits, target, weight=weight).isnan()
    assert NUM[name](logits, target, weight=weight).isnan()


@pytest.mark.parametrize("name", NUM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_equals_torch_in_float32(name, dtype):
    """Value and gradient are rounded once, at the end."""
    logits, target = make((5, K), "index", dtype)
    found = NUM[name](logits, target)
    widened = logits.detach().float().requires_grad_()
    expected = F.cross_entropy(widened, target)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    gradient = torch.autograd.grad(found, logits)[0]
    assert gradient.dtype is dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(gradient.float(), torch.autograd.grad(expected, widened)[0], rtol=2 * eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cross_entropy_is_torchs_to_the_last_bit(dtype):
    logits = torch.randn(64, 10, dtype=dtype, generator=torch.Generator().manual_seed(0)) * 5
    target = torch.arange(64) % 10
    for options in ({}, {"label_smoothing": 0.1}, {"weight": torch.rand(10, dtype=dtype)}):
        assert torch.equal(losses.cross_entropy(logits, target, **options), F.cross_entropy(logits, target, **options))


def test_temperature_is_torch_on_divided_logits():
    logits, target = make((5, K), "index")
    torch.testing.assert_close(
        losses.cross_entropy(logits, target, temperature=0.25), F.cross_entropy(4 * logits, target)
    )


class _Operations(TorchDispatchMode):
    """The operations that run, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_costs_a_device_what_torchs_own_does(ignore_index: int, label_smoothing: float) -> None:
    """The meta device stands in for a GPU, where labels are not read."""
    y = torch.zeros(4, dtype=torch.long, device="meta")
    ran = []
    for function in (losses.cross_entropy, F.cross_entropy):
        z = torch.zeros(4, 3, device="meta", requires_grad=True)
        with _Operations() as operations:
            function(z, y, ignore_index=ignore_index, label_smoothing=label_smoothing).backward()
        ran.append(operations.names)
    assert ran[0] == ran[1]
    assert ran[0]
