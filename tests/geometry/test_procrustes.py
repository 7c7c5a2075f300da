"""Equivalence of two models against a direct search over rotations, and where it must be 0 or 1."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.geometry import classifier_equivalence, equivalence

from .reference import class_means, clusters, global_mean


def centred_means(features, target):
    return class_means(features, target)[1] - global_mean(features, target)


def test_agrees_with_a_search_over_the_plane():
    """Rotations and reflections of the plane, 20,000 angles, each with its best scale."""
    a, target = clusters(40, 5, 2)
    b, _ = clusters(40, 5, 2, seed=3)
    mean_a, mean_b = centred_means(a, target), centred_means(b, target)
    angle = 2 * math.pi * torch.arange(20_000, dtype=torch.float64) / 20_000
    c, s = angle.cos(), angle.sin()
    best = math.inf
    for sign in (1, -1):
        turns = torch.stack([torch.stack([c, -s * sign], dim=1), torch.stack([s, c * sign], dim=1)], dim=1)  # (A, 2, 2)
        turned = mean_b @ turns  # (A, K, 2)
        scale = (turned * mean_a).sum(dim=(1, 2)) / turned.square().sum(dim=(1, 2))
        error = (mean_a - scale[:, None, None] * turned).square().sum(dim=(1, 2)) / mean_a.square().sum()
        best = min(best, float(error.min()))
    assert float(equivalence(a, b, target)) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(("wide", "narrow"), [(9, 2), (3, 2), (12, 4)])
def test_zero_padding_of_the_narrower(wide, narrow):
    a, target = clusters(40, 5, wide)
    b, _ = clusters(40, 5, narrow, seed=1)
    padded = torch.nn.functional.pad(b, (0, wide - narrow))
    assert float(equivalence(a, b, target)) == pytest.approx(float(equivalence(a, padded, target)), abs=1e-12)
    assert float(equivalence(b, a, target)) == pytest.approx(float(equivalence(a, b, target)), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 10_000))
def test_rotated_scaled_moved_copies_are_equivalent(classes, dim, seed):
    features, target = clusters(classes * 3, classes, dim, seed=seed)
    features = features.double()
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim + 2, dim + 2, generator=generator, dtype=torch.float64)).Q[:dim]
    assert float(equivalence(features, 4 * features @ rotation - 1, target)) < 1e-12
    weight = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    assert float(classifier_equivalence(weight, 0.1 * weight @ rotation + 2)) < 1e-12


def test_classifiers_are_compared_like_class_means():
    a, b = torch.randn(6, 4), torch.randn(6, 3)
    target = torch.arange(6)
    assert float(classifier_equivalence(a, b)) == pytest.approx(float(equivalence(a, b, target)), abs=1e-12)


def test_degenerate_cases():
    features, target = clusters(10, 3, 4)
    constant = torch.ones(10, 2)
    assert equivalence(constant, features, target).isnan()
    assert equivalence(features, constant, target) == 1
    assert equivalence(features, features, torch.zeros(10, dtype=torch.long)).isnan()


def test_gradients():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    b = torch.randn(9, 2, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: equivalence(a, b, torch.arange(9) % 3), (a, b))


def test_errors():
    features, target = clusters(10, 3, 4)
    with pytest.raises(ValueError, match="10 rows and features_b 9"):
        equivalence(features, features[:9], target)
    with pytest.raises(ValueError, match="weight_a has 3 rows"):
        classifier_equivalence(torch.randn(3, 2), torch.randn(4, 2))
    with pytest.raises(ValueError, match="NaN or infinite"):
        equivalence(features, features * torch.inf, target)
