"""NC1 to NC4 and self-duality against plain float64 references, and the defects of other implementations."""

from fractions import Fraction
from operator import mul

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.geometry import neural_collapse, self_duality

from . import reference
from .reference import clusters


def classifier(classes, dim, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(classes, dim, generator=generator), torch.randn(classes, generator=generator)


@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (2, 6), (5, 12), (12, 5), (7, 6)])
@pytest.mark.parametrize("global_mean", ["samples", "classes"])
@pytest.mark.parametrize("center_weight", [False, True])
def test_agrees_with_reference(classes, dim, global_mean, center_weight):
    features, target = clusters(60, classes, dim)
    weight, bias = classifier(classes, dim)
    got = neural_collapse(features, target, weight, bias, center_weight=center_weight, global_mean=global_mean)
    torch.testing.assert_close(got.nc1, reference.nc1(features, target, global_mean), rtol=1e-6, atol=0)
    torch.testing.assert_close(got.nc2, reference.nc2(features, target, weight, center_weight), rtol=1e-10, atol=0)
    torch.testing.assert_close(
        got.nc3, reference.nc3(features, target, weight, center_weight, global_mean), rtol=1e-10, atol=0
    )
    assert float(got.nc4) == reference.nc4(features, target, weight, bias)
    torch.testing.assert_close(
        self_duality(features, target, weight, global_mean=global_mean),
        reference.self_duality(features, target, weight, global_mean),
        rtol=1e-10,
        atol=1e-14,
    )


@pytest.mark.parametrize("within", [1.0, 1e-2, 1e-5])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1000.0])
def test_nc1_is_exact_at_any_collapse_and_offset(within, offset):
    features, target = clusters(300, 6, 24, within=within, offset=offset)
    expected = reference.nc1(features, target)
    if within == 1e-5:
        assert expected < 5e-10
    torch.testing.assert_close(neural_collapse(features, target).nc1, expected, rtol=1e-5, atol=0)


def test_nc1_where_float32_pinv_of_between_scatter_fails():
    """Class means that spread 0.3 % as far in the last direction: float32 pinv drops it, and NC1 with it."""
    generator = torch.Generator().manual_seed(0)
    dim, target = 512, torch.arange(400) % 4
    means = torch.zeros(4, dim)
    means[:, :3] = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * torch.tensor([1.0, 1.0, 0.003])
    features = means[target] + 1e-3 * torch.randn(400, dim, generator=generator)
    expected = reference.nc1(features, target)

    own = torch.stack([features[target == k].mean(dim=0) for k in range(4)])
    centred, residual = own - features.mean(dim=0), features - own[target]
    between, within = centred.T @ centred / 4, residual.T @ residual / len(features)
    usual = torch.trace(within @ torch.linalg.pinv(between)) / 4
    assert usual < 0.1 * expected
    torch.testing.assert_close(neural_collapse(features, target).nc1, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("ratio", [1e2, 1e4, 1e6])
def test_nc1_where_residuals_lie_outside_the_span_of_the_means(ratio):
    """A float32 product would drown the small part inside the span in the rounding of the large one outside."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(200) % 3
    means = torch.zeros(3, 40)
    means[:, :2] = torch.tensor([[1.0, 0], [0, 1], [-1, -1]])
    features = means[target] + torch.randn(200, 40, generator=generator) * torch.tensor([1.0, 1.0] + [ratio] * 38)
    # Residuals outside the span must not move the means into it.
    for k in range(3):
        features[target == k, 2:] -= features[target == k, 2:].mean(dim=0)
    expected = reference.nc1(features, target)
    torch.testing.assert_close(neural_collapse(features, target).nc1, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("weak", [1.0, 1e-2, 1e-4, 1e-7, 0.0])
def test_nc1_with_more_classes_than_directions_and_a_weak_one(weak):
    """Down to the cut-off and beyond it, where the direction no longer counts."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(400) % 20
    stretch = torch.tensor([1.0] * 7 + [weak], dtype=torch.float64)
    means = torch.randn(20, 8, generator=generator, dtype=torch.float64)
    noise = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    features = (means[target] + 1e-2 * noise) * stretch
    got = neural_collapse(features, target).nc1
    torch.testing.assert_close(got, reference.nc1(features, target), rtol=1e-5, atol=0)


def test_between_scatter_is_not_total_scatter_and_first_sample_is_not_the_class_mean():
    features, target = clusters(50, 3, 4, within=2.0)
    before = features.clone()
    torch.testing.assert_close(
        neural_collapse(features, target).nc1, reference.nc1(features, target), rtol=1e-6, atol=0
    )
    assert torch.equal(features, before)


def test_nc3_centres_the_class_means():
    means = torch.eye(4) - 1 / 4
    target = torch.arange(8) % 4
    got = neural_collapse(means[target] + 100, target, means)
    assert got.nc3 < 1e-5
    assert got.nc2 < 1e-6


def test_nc4_uses_the_bias():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    target = torch.tensor([0, 1])
    weight = torch.eye(2)
    assert neural_collapse(features, target, weight).nc4 == 0
    assert neural_collapse(features, target, weight, torch.tensor([5.0, 0.0])).nc4 == 0.5


def test_nc4_decides_close_calls_in_float64():
    """Logits that differ by less than float32 resolves at this offset."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(300) % 3
    features = torch.eye(3)[target] * 1e-3 + 1000 + 1e-3 * torch.randn(300, 3, generator=generator)
    weight = torch.eye(3) + 5
    expected = reference.nc4(features, target, weight)
    assert 0 < expected < 1
    assert float(neural_collapse(features, target, weight).nc4) == expected


def exact_nc4(features: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> float:
    """In fractions, so that a tie is a tie; the lower label wins it."""
    rows = [[Fraction(value) for value in row] for row in features.tolist()]
    table = [[Fraction(value) for value in row] for row in weight.tolist()]
    added = [Fraction(0)] * len(table) if bias is None else [Fraction(value) for value in bias.tolist()]
    labels = target.tolist()
    groups = [[row for row, label in zip(rows, labels, strict=True) if label == k] for k in range(len(table))]
    means = [[sum(column, Fraction(0)) / len(group) for column in zip(*group, strict=True)] for group in groups]
    differ = 0
    for row in rows:
        logits = [sum(map(mul, w, row), b) for w, b in zip(table, added, strict=True)]
        near = [sum(((x - m) ** 2 for x, m in zip(row, mean, strict=True)), Fraction(0)) for mean in means]
        differ += logits.index(max(logits)) != near.index(min(near))
    return differ / len(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_in_nc4_the_lower_label_wins_a_tie(dtype, shift):
    """A quarter of the features is zero, some rows of the classifier are equal, and so are some class means."""
    generator = torch.Generator().manual_seed(0)
    for number in range(100):
        count, classes, dim = 24, 2 + number % 4, 1 + number % 5
        features = torch.randint(-3, 4, (count, dim), generator=generator).to(dtype) / 4
        features[torch.rand(count, generator=generator) < 0.25] = 0
        target = torch.arange(count) % classes
        if number % 3 == 0:
            features[target == 1] = features[target == 0][: int((target == 1).sum())]
        weight = torch.randn(classes, dim, generator=generator).to(dtype)
        if number % 2:
            weight[-1] = weight[0]
        bias = torch.randint(-1, 2, (classes,), generator=generator).to(dtype) if number % 4 > 1 else None
        got = float(neural_collapse(features + shift, target, weight, bias).nc4)
        assert got == exact_nc4(features + shift, target, weight, bias)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("width", [-1, 0, 5])
def test_exact_simplex_is_collapsed(classes, width):
    """K points in K - 1, K and more dimensions, away from the origin."""
    dim = classes + width
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    basis = torch.linalg.svd(simplex).U[:, : classes - 1]
    points = torch.nn.functional.pad(simplex @ basis, (0, dim - classes + 1))
    target = torch.arange(3 * classes) % classes
    got = neural_collapse(points[target] + 3, target, 7 * points, -21 * points.sum(dim=1))
    for value in (got.nc1, got.nc2, got.nc3, got.nc4):
        assert float(value) < 1e-12


def test_rows_of_absent_classes_are_dropped_before_centring():
    features, target = clusters(40, 3, 5)
    weight, bias = classifier(9, 5)
    labels = torch.tensor([1, 4, 7])
    sparse = neural_collapse(features, labels[target], weight, bias, center_weight=True)
    dense = neural_collapse(features, target, weight[labels], bias[labels], center_weight=True)
    for name in ("nc1", "nc2", "nc3", "nc4"):
        assert getattr(sparse, name) == getattr(dense, name)
    assert torch.equal(self_duality(features, labels[target], weight), self_duality(features, target, weight[labels]))


def test_without_weight():
    features, target = clusters(20, 3, 4)
    got = neural_collapse(features, target)
    assert got.nc2 is None
    assert got.nc3 is None
    assert got.nc4 is None


def test_degenerate_cases():
    one_each = neural_collapse(torch.randn(4, 3), torch.arange(4))
    assert one_each.nc1 == 0
    assert neural_collapse(torch.randn(5, 3), torch.zeros(5, dtype=torch.long)).nc1.isnan()
    constant = torch.full((6, 3), 0.1)
    target = torch.arange(6) % 2
    assert neural_collapse(constant, target).nc1.isnan()
    coincide = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert neural_collapse(coincide, torch.tensor([0, 0, 1, 1])).nc1.isinf()
    assert neural_collapse(torch.randn(4, 3), torch.arange(4) % 2, torch.zeros(2, 3)).nc2.isnan()
    assert self_duality(torch.randn(5, 3), torch.zeros(5, dtype=torch.long), torch.randn(1, 3)).tolist() == [0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_not_computed_in_half_precision(dtype):
    features, target = clusters(80, 4, 10, offset=2.0)
    weight, bias = classifier(4, 10)
    half = neural_collapse(features.to(dtype), target, weight.to(dtype), bias.to(dtype))
    full = neural_collapse(features.to(dtype).double(), target, weight.to(dtype).double(), bias.to(dtype).double())
    for name in ("nc1", "nc2", "nc3", "nc4"):
        torch.testing.assert_close(getattr(half, name), getattr(full, name), rtol=1e-6, atol=0)
        assert getattr(half, name).dtype == torch.float64


def test_float64_features_keep_float64():
    features, target = clusters(60, 4, 10)
    double = features.double() + 1e-9 * torch.randn(60, 10, dtype=torch.float64)
    torch.testing.assert_close(neural_collapse(double, target).nc1, reference.nc1(double, target), rtol=1e-11, atol=0)


def test_reduced_matmul_precision_and_autocast_do_not_reach_the_measures():
    features, target = clusters(200, 4, 64)
    weight, bias = classifier(4, 64)
    expected = neural_collapse(features, target, weight, bias)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = neural_collapse(features, target, weight, bias)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert got == expected


@pytest.mark.parametrize("classes", [3, 6])
def test_gradients(classes):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(14, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(classes, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    target = torch.arange(14) % classes

    def values(features, weight):
        got = neural_collapse(features, target, weight, global_mean="classes", center_weight=True)
        return got.nc1, got.nc2, got.nc3, self_duality(features, target, weight)

    assert torch.autograd.gradcheck(values, (features, weight))


def test_gradient_of_nc1_is_finite_at_equal_singular_values():
    target = torch.arange(30) % 3
    features = (torch.eye(3)[target] + 0.01 * torch.randn(30, 3)).requires_grad_()
    with torch.no_grad():
        for k in range(3):
            features[target == k] += torch.eye(3)[k] - features[target == k].mean(dim=0)
    neural_collapse(features, target).nc1.backward()
    assert features.grad is not None
    assert features.grad.dtype == torch.float32
    assert features.grad.isfinite().all()
    assert features.grad.abs().sum() > 0


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 7), st.integers(0, 10_000))
def test_invariances(classes, dim, seed):
    """Rotation, common offset, scale, order of samples and names of classes change nothing."""
    features, target = clusters(classes * 5, classes, dim, seed=seed)
    features = features.double()
    weight, _ = classifier(classes, dim, seed)
    weight = weight.double()
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    order = torch.randperm(len(features), generator=generator)
    names = torch.randperm(classes, generator=generator)
    moved = 3 * (features @ rotation) + 2
    base = neural_collapse(features, target, weight)
    renamed = torch.empty_like(weight)
    renamed[names] = weight @ rotation
    bias = torch.empty(classes, dtype=torch.float64)
    bias[names] = -weight @ rotation @ torch.full((dim,), 2.0, dtype=torch.float64)
    other = neural_collapse(moved[order], names[target][order], renamed, bias)
    for name in ("nc1", "nc2", "nc3"):
        torch.testing.assert_close(getattr(other, name), getattr(base, name), rtol=1e-7, atol=1e-9)
    assert other.nc4 == base.nc4


@pytest.mark.parametrize("within", [1e-8, 1e-12])
def test_float64_features_are_exact_far_beyond_float32(within):
    features, target = clusters(300, 6, 24, within=0.0)
    generator = torch.Generator().manual_seed(0)
    features = features.double() + within * torch.randn(300, 24, dtype=torch.float64, generator=generator)
    expected = reference.nc1(features, target)
    torch.testing.assert_close(neural_collapse(features, target).nc1, expected, rtol=1e-5, atol=0)
