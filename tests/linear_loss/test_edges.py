"""Batches at the edge: empty, all ignored, one class, ties, zero rows, masked classes; against the whole logits."""

from __future__ import annotations

import itertools

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from lastlayer.linear_loss import plan as choose
from tests.linear_loss.cases import (
    BATCH,
    PER_SAMPLE,
    REDUCTIONS,
    K,
    N,
    assert_same,
    classes,
    dense,
    gradients,
    layer,
    layer_for,
    make,
    plans_for,
    rows,
    target,
)


@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_empty_batch(name: str) -> None:
    parts = [*layer(n=0)[:2], None]
    labels = torch.empty(0, dtype=torch.long)
    for plan, reduction in itertools.product(plans_for(name, 4, 3), [None] if name in BATCH else REDUCTIONS):
        module = make(name) if reduction is None else make(name, reduction=reduction)
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        assert_same(found, dense(module, parts, labels), parts)
        assert not gradients(found, parts)[1].any()


@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_one_class(name: str) -> None:
    parts = [*layer(k=1)[:2], None]
    labels = torch.zeros(N, dtype=torch.long)
    module = make(name, k=1)
    for plan in plans_for(name, 4, 3):
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        assert_same(found, dense(module, parts, labels), parts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("scale", [0.5, 3.0, 64.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_class_of_arc_margin_at_any_scale(scale: float, dtype: torch.dtype) -> None:
    """The number that stands for "no other class" overflows when it is multiplied."""
    parts, labels = layer(k=1, dtype=dtype), torch.zeros(N, dtype=torch.long)
    module = make("arc-margin", k=1, scale=scale)
    for plan in (rows(4), classes(3)):
        found = linear_loss(*parts[:2], labels, module, normalized=True, plan=plan)
        assert found == 0
        for gradient in gradients(found, parts[:2]):
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_sln_of_a_zero_row_is_log_k_without_gradient(plan: Plan) -> None:
    features, weight, _ = layer()
    features = features.detach().clone()
    features[2] = 0
    features.requires_grad_()
    found = linear_loss(features, weight, target("index"), losses.SoftLogitNormLoss(reduction="none"), plan=plan)
    torch.testing.assert_close(found[2], torch.tensor(float(K), dtype=torch.float64).log())
    gradient = torch.autograd.grad(found.sum(), features)[0]
    assert not gradient[2].any()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "name", [*(n for n in PER_SAMPLE if n not in ("mse", "sln", "ln", "ls", "large-margin")), *BATCH]
)
@pytest.mark.parametrize("masked", [[K - 1], [0, 1], [0, 3, 6]])
def test_classes_masked_by_a_bias_of_minus_infinity(name: str, masked: list[int]) -> None:
    """As a padded vocabulary has them; no sample has such a label. The first and the last of a tile, or all of it."""
    parts, labels = layer_for(name), torch.tensor([2, 4, 5])[torch.arange(N) % 3]
    with torch.no_grad():
        parts[2][masked] = float("-inf")
    module = make(name)
    expected = dense(module, parts, labels)
    wanted = gradients(expected, parts[:2])
    assert expected.isfinite()
    for plan in plans_for(name, 4, 1, 2, 3):
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        torch.testing.assert_close(found, expected)
        for a, b in zip(gradients(found, parts[:2]), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_a_layer_without_numbers_has_a_loss_without_any() -> None:
    features, weight = torch.empty(8, 4, device="meta"), torch.empty(6, 4, device="meta")
    labels = torch.empty(8, dtype=torch.long, device="meta")
    assert linear_loss(features, weight, labels, "ce", plan=Plan("dense", "test")).shape == ()


@pytest.mark.parametrize("plan", [rows(2), classes(3), None])
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "batch-ce"])
def test_a_float16_gradient_that_overflows_is_not_finite(name: str, plan: Plan | None) -> None:
    """GradScaler looks for numbers that are not finite. If they became the largest one there is, it would step on."""
    features, weight, _ = (part.detach().half().requires_grad_() for part in layer())
    labels, scale = target("index"), torch.tensor(1e8)
    value = linear_loss(features, weight, labels, make(name), plan=plan)
    assert value.isfinite()
    found = torch.autograd.grad(value * scale, [features, weight])
    assert not any(gradient.isfinite().all() for gradient in found)
    assert not any((gradient.abs() == 65504).any() for gradient in found)


class Mean(losses.Loss):
    """Its mean is over all entries, as in torch's binary cross-entropy with logits."""

    @staticmethod
    def function(logits: torch.Tensor, target: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        wanted = torch.nn.functional.one_hot(target, logits.shape[1]).to(logits.dtype)
        value: torch.Tensor = torch.nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction=reduction)
        return value


class Weighted(losses.Loss):
    """Its mean divides by the number of samples, whatever their weights are."""

    @staticmethod
    def function(
        logits: torch.Tensor, target: torch.Tensor, *, weight: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        value: torch.Tensor = torch.nn.functional.multi_margin_loss(logits, target, weight=weight, reduction=reduction)
        return value


class InPieces(losses.Loss):
    """A loss that says how its parts add up."""

    in_pieces = True

    @staticmethod
    def function(
        logits: torch.Tensor, target: torch.Tensor, *, weight: torch.Tensor | None = None, ignore_index: int = -100,
        reduction: str = "mean",
    ) -> torch.Tensor:  # fmt: skip
        value: torch.Tensor = torch.nn.functional.cross_entropy(
            logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction
        )
        return value


def test_a_mean_of_ones_own_is_not_replaced_by_that_of_cross_entropy() -> None:
    """At sizes for which losses of the library are computed a chunk of samples at a time."""
    generator = torch.Generator().manual_seed(0)
    samples, num_classes = 4100, 4096
    features = torch.randn(samples, 2, generator=generator, requires_grad=True)
    weight = torch.randn(num_classes, 2, generator=generator, requires_grad=True)
    labels = torch.randint(num_classes, (samples,), generator=generator)
    each = torch.rand(num_classes, generator=generator)
    assert choose(samples, 2, num_classes, "ce").path == "rows"
    for module in (Mean(), Weighted(weight=each), torch.nn.MultiMarginLoss(weight=each)):
        found = choose(samples, 2, num_classes, module)
        assert found.path == "dense"
        assert "does not say how the losses of some samples add up" in found.why
        value = linear_loss(features, weight, labels, module)
        torch.testing.assert_close(value, module(features @ weight.T, labels))
        with pytest.raises(ValueError, match="set in_pieces = True in its class"):
            linear_loss(features, weight, labels, module, plan=rows(100))


def test_a_loss_of_ones_own_that_says_how_it_adds_up_is_taken_by_rows() -> None:
    parts = [*layer()[:2], None]
    labels = target("index")
    assert choose(4100, 2, 4096, InPieces()).path == "rows"
    for module in (InPieces(), InPieces(weight=torch.arange(1.0, K + 1).double(), ignore_index=1)):
        assert_same(linear_loss(*parts[:2], labels, module, plan=rows(2)), dense(module, parts, labels), parts)


def test_any_callable_is_a_loss_and_a_module_learns() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.scale * logits, target)

    parts, labels, module = [*layer()[:2], None], target("index"), Scaled()
    for loss in (module, torch.nn.functional.cross_entropy, lambda z, y: z.gather(1, y[:, None]).square().mean()):
        assert_same(linear_loss(*parts[:2], labels, loss), loss(parts[0] @ parts[1].T, labels), parts)
    linear_loss(*parts[:2], labels, module).backward()
    wanted = torch.autograd.grad(module(parts[0] @ parts[1].T, labels), module.scale)[0]
    torch.testing.assert_close(module.scale.grad, wanted)
