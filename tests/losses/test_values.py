"""Every per-sample loss against its formula: all forms of target, weights, ignored labels, reductions and shapes."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
import torch

from lastlayer import losses

from . import reference
from .cases import BCE, CASES, PER_SAMPLE, Case, K, identity

N = 6
WEIGHT = [0.5, 2.0, 1.0, 0.1, 3.0]
LABELS = [0, 4, 2, 2, 1, 3]
SECOND = [1, 4, 0, 3, 1, 2]
LAMS = [0.0, 0.3, 0.5, 1.0, 0.9, 0.25]
INTEGERS = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip

every_case = pytest.mark.parametrize("case", CASES, ids=identity)
every_loss = pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)


@functools.cache
def matrix(case: Case) -> np.ndarray:
    return reference.per_class_matrix(case.logits(N, K).numpy(), case.formula)


def tensor(values, dtype=torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def labels(values=LABELS, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def probabilities(rows=N) -> torch.Tensor:
    return torch.rand(rows, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(1)


def assert_equal(found: torch.Tensor, expected, rtol=1e-12) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=rtol, atol=1e-15)


def smoothings(case: Case) -> tuple[float, ...]:
    return (0.0, 0.3) if case.smoothing else (0.0,)


def smoothing_option(case: Case, smoothing: float) -> dict:
    return {"label_smoothing": smoothing} if smoothing else {}


@every_loss
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_index_targets(case, reduction):
    for weight, ignored in itertools.product((None, WEIGHT), (-100, 2)):
        found = case.call(
            case.logits(N, K),
            labels(),
            weight=None if weight is None else tensor(weight),
            ignore_index=ignored,
            reduction=reduction,
        )
        expected = reference.reduce(matrix(case), LABELS, weight=weight, ignore_index=ignored, reduction=reduction)
        assert found.dtype is torch.float64
        assert_equal(found, expected)


@every_case
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_probability_targets(case, reduction):
    t = probabilities()
    for weight, smoothing in itertools.product((None, WEIGHT), smoothings(case)):
        found = case.call(
            case.logits(N, K),
            t,
            weight=None if weight is None else tensor(weight),
            reduction=reduction,
            **smoothing_option(case, smoothing),
        )
        expected = reference.reduce(matrix(case), t.numpy(), weight=weight, smoothing=smoothing, reduction=reduction)
        assert_equal(found, expected)


@every_case
@pytest.mark.parametrize("lam", [0.3, tensor(0.3), tensor(LAMS)], ids=["number", "scalar tensor", "per sample"])
def test_a_mixed_pair_is_its_probability_target(case, lam):
    t = reference.mixed(LABELS, SECOND, np.asarray(lam), K)
    for weight, smoothing, reduction in itertools.product((None, WEIGHT), smoothings(case), ("none", "mean", "sum")):
        found = case.call(
            case.logits(N, K),
            (labels(), labels(SECOND), lam),
            weight=None if weight is None else tensor(weight),
            reduction=reduction,
            **smoothing_option(case, smoothing),
        )
        expected = reference.reduce(matrix(case), t, weight=weight, smoothing=smoothing, reduction=reduction)
        assert_equal(found, expected)


@pytest.mark.parametrize("case", [c for c in CASES if c.smoothing], ids=identity)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_smoothed_index_targets(case, reduction):
    for weight, ignored in itertools.product((None, WEIGHT), (-100, 2)):
        found = case.call(
            case.logits(N, K),
            labels(),
            label_smoothing=0.3,
            weight=None if weight is None else tensor(weight),
            ignore_index=ignored,
            reduction=reduction,
        )
        expected = reference.reduce(
            matrix(case), LABELS, weight=weight, smoothing=0.3, ignore_index=ignored, reduction=reduction
        )
        assert_equal(found, expected)


@pytest.mark.parametrize("case", BCE, ids=identity)
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["index", "probabilities", "pair", "multi-label"])
def test_binary_cross_entropy_weighs_the_row(case, smoothing, kind):
    """w_row sum_j [...] with w_row = sum_k t_k w_k, t the smoothed target."""
    rows = case.logits(N, K)
    pos_weight = case.options.get("pos_weight")
    multi = (torch.rand(N, K, generator=torch.Generator().manual_seed(5)) > 0.5).double()
    target, dense = {
        "index": (labels(), np.eye(K)[LABELS]),
        "probabilities": (probabilities(), probabilities().numpy()),
        "pair": ((labels(), labels(SECOND), tensor(LAMS)), reference.mixed(LABELS, SECOND, LAMS, K)),
        "multi-label": (multi, multi.numpy()),
    }[kind]
    t = (1 - smoothing) * dense + smoothing / K
    for weight in (None, WEIGHT):
        w_row = [1.0 if weight is None else sum(t[n, k] * weight[k] for k in range(K)) for n in range(N)]
        per_sample = [w_row[n] * reference.binary_cross_entropy(rows[n], t[n], pos_weight) for n in range(N)]
        common = {"weight": None if weight is None else tensor(weight), "label_smoothing": smoothing}
        divisor = sum(weight[y] for y in LABELS) if weight is not None and kind == "index" else N
        assert_equal(case.call(rows, target, reduction="none", **common), per_sample)
        assert_equal(case.call(rows, target, reduction="sum", **common), sum(per_sample))
        assert_equal(case.call(rows, target, reduction="mean", **common), sum(per_sample) / divisor)


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.dense], ids=identity)
def test_extra_dimensions_are_more_samples(case):
    dense = case.logits(2, K, 3, 2, seed=3)
    flat = dense.permute(0, 2, 3, 1).reshape(-1, K)
    y = torch.randint(K, (2, 3, 2), generator=torch.Generator().manual_seed(2))
    y[0, 1, 1] = -100
    t = probabilities(12)
    dense_t = t.reshape(2, 3, 2, K).permute(0, 3, 1, 2)
    y_b = (y.clamp(min=0) + 1) % K
    lam = tensor([0.2, 0.9])
    loss_matrix = reference.per_class_matrix(flat.numpy(), case.formula)
    if not case.name.startswith("bce"):
        mixed_t = reference.mixed(y.clamp(min=0).flatten(), y_b.flatten(), lam.repeat_interleave(6), K)
        pair = (y.clamp(min=0), y_b, lam)
        for reduction in ("none", "mean", "sum"):
            for target, flat_target in ((y, y.flatten()), (dense_t, t), (pair, mixed_t)):
                found = case.call(dense, target, weight=tensor(WEIGHT), reduction=reduction)
                expected = reference.reduce(loss_matrix, flat_target, weight=WEIGHT, reduction=reduction)
                assert found.shape == (y.shape if reduction == "none" else ())
                assert_equal(found.flatten() if reduction == "none" else found, expected)
    found = case.call(dense, y, weight=tensor(WEIGHT))
    assert_equal(found, reference.reduce(loss_matrix, y.flatten(), weight=WEIGHT))


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.dense], ids=identity)
def test_a_single_sample_without_batch_dimension(case):
    z = case.logits(K)
    expected = [case.formula(z, k) for k in range(K)]
    t = probabilities(1)[0]
    for reduction in ("none", "mean", "sum"):
        found = case.call(z, torch.tensor(2), reduction=reduction)
        assert found.shape == ()
        assert_equal(found, expected[2])
        assert_equal(case.call(z, t, reduction=reduction), float(np.dot(t.numpy(), expected)))
        pair = (torch.tensor(1), torch.tensor(4), tensor(0.25))
        assert_equal(case.call(z, pair, reduction=reduction), 0.25 * expected[1] + 0.75 * expected[4])


@every_loss
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_integer_dtype_of_labels(case, dtype):
    assert_equal(case.call(case.logits(N, K), labels(dtype=dtype)), reference.reduce(matrix(case), LABELS))


@every_loss
def test_unsigned_labels_with_an_unsigned_ignored_one(case):
    y = labels([0, 255, 2, 255, 1, 3], torch.uint8)
    found = case.call(case.logits(N, K), y, ignore_index=255)
    assert_equal(found, reference.reduce(matrix(case), y.numpy().astype(int), ignore_index=255))


@every_loss
def test_empty_batch(case):
    z = case.logits(0, K).requires_grad_()
    y, t = torch.zeros(0, dtype=torch.int64), torch.zeros(0, K, dtype=torch.float64)
    for target in (y, t, (y, y, 0.5)):
        assert case.call(z, target, reduction="none").shape == (0,)
        assert case.call(z, target, reduction="sum").item() == 0.0
        assert case.call(z, target).isnan()


@every_loss
def test_wholly_ignored_batch(case):
    z = case.logits(3, K).requires_grad_()
    y = labels([-100] * 3)
    for target in (y, (y, y, 0.5)):
        assert case.call(z, target).isnan()
        assert torch.equal(case.call(z, target, reduction="none"), torch.zeros(3, dtype=torch.float64))
        total = case.call(z, target, reduction="sum")
        assert total.item() == 0.0
        assert torch.equal(torch.autograd.grad(total, z)[0], torch.zeros_like(z))


@every_loss
def test_an_ignored_label_of_a_pair_takes_its_share_out(case):
    rows = case.logits(2, K)
    pair = (labels([1, 2]), labels([-100, 3]), 0.25)
    L = reference.per_class_matrix(rows.numpy(), case.formula)
    expected = [0.25 * L[0, 1], 0.25 * L[1, 2] + 0.75 * L[1, 3]]
    assert_equal(case.call(rows, pair, reduction="none"), expected)
    assert_equal(case.call(rows, pair), sum(expected) / 1.25)


@every_loss
def test_one_class_costs_nothing_to_tell_apart(case):
    """With K = 1 there is no other class. Value and gradient stay finite for every form of target."""
    if case.create_name == "large-margin":
        function = functools.partial(losses.large_margin, weight=tensor([[2.0]]))
    elif case.options.keys() & {"noise", "counts", "pos_weight"} or "kd" in case.create_name:
        return
    else:
        function = functools.partial(case.function, **case.options)
    z = tensor([[0.5], [-0.7]]).requires_grad_()
    y = labels([0, 0])
    values = []
    for target in (y, torch.ones(2, 1, dtype=torch.float64), (y, y, 0.5)):
        value = function(z, target=target)
        (gradient,) = torch.autograd.grad(value, z, allow_unused=True)
        assert value.isfinite()
        assert gradient is None or gradient.isfinite().all()
        values.append(value)
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(values[0], values[2])
    if case.shift:
        assert values[0].item() == 0.0


@pytest.mark.parametrize("K_", [2, 3, 40])
def test_default_temperature_follows_the_number_of_classes(K_):
    z = torch.randn(3, K_, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for function, gamma in ((losses.soft_logit_norm, 0.7), (losses.logit_norm, 1.0)):
        formula = reference.soft_logit_norm(gamma, 0.2 * (K_ / 10) ** (-gamma / 2))
        found = function(z, torch.tensor([0, 1, 1]))
        assert_equal(found, np.mean([formula(row, y) for row, y in zip(z, (0, 1, 1), strict=True)]))
