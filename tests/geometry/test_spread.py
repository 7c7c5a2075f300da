"""Intra-inter ratio and class-distance variance against loops over samples and pairs of classes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.geometry import class_distance_variance, intra_inter_ratio

from . import reference
from .reference import clusters


@pytest.mark.parametrize("measure", [intra_inter_ratio, class_distance_variance])
@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (4, 7), (9, 3)])
@pytest.mark.parametrize("within", [1.0, 1e-5])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_agrees_with_reference(measure, classes, dim, within, offset):
    features, target = clusters(50, classes, dim, within=within, offset=offset)
    expected = getattr(reference, measure.__name__)(features, target)
    assert float(measure(features, target)) == pytest.approx(expected, rel=1e-6)


def test_two_close_classes_lose_no_digit():
    """Products of class means would leave nothing of a distance of 1e-9."""
    features = torch.tensor([[1e3, 0.0], [1e3, 2e-9], [1e3, 1e-8], [1e3, 1.2e-8], [-1e3, 0], [-1e3, 1]]).double()
    target = torch.tensor([0, 0, 1, 1, 2, 2])
    expected = reference.class_distance_variance(features, target)
    assert float(class_distance_variance(features, target)) == pytest.approx(expected, rel=1e-9)


def test_degenerate_cases():
    one_each = torch.randn(4, 3), torch.arange(4)
    one_class = torch.randn(4, 3), torch.zeros(4, dtype=torch.long)
    same_mean = torch.tensor([[1.0], [-1.0], [2.0], [-2.0]]), torch.tensor([0, 0, 1, 1])
    constant = torch.ones(4, 2), torch.tensor([0, 0, 1, 1])
    for measure in (intra_inter_ratio, class_distance_variance):
        assert measure(*one_each) == 0
        assert measure(*one_class).isnan()
        assert measure(*same_mean).isinf()
        assert measure(*constant).isnan()


@pytest.mark.parametrize("measure", [intra_inter_ratio, class_distance_variance])
def test_gradients(measure):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: measure(x, torch.arange(12) % 4), (features,))


@pytest.mark.parametrize("measure", [intra_inter_ratio, class_distance_variance])
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(1, 7), st.integers(0, 10_000))
def test_invariances(measure, classes, dim, seed):
    features, target = clusters(classes * 4, classes, dim, seed=seed)
    features = features.double()
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    order = torch.randperm(len(features), generator=generator)
    names = torch.randperm(classes, generator=generator)
    moved = (7 * features @ rotation - 3)[order]
    torch.testing.assert_close(measure(moved, names[target][order]), measure(features, target), rtol=1e-8, atol=0)
