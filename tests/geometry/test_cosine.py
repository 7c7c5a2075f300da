"""Cosines, compactness and separability against sums over all pairs of samples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.geometry import compactness, cosine_collapse, separability

from . import reference
from .reference import clusters


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("self_pairs", [True, False])
@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (3, 5), (6, 3)])
def test_agrees_with_all_pairs(center, self_pairs, classes, dim):
    features, target = clusters(30, classes, dim, offset=1.0)
    # Every class needs a pair.
    features, target = torch.cat([features, features[:classes] + 1]), torch.cat([target, target[:classes]])
    table = reference.cosine_table(features, target, center, self_pairs)
    got = cosine_collapse(features, target, center=center, self_pairs=self_pairs)
    close = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(got.inter, table, **close)
    torch.testing.assert_close(got.intra, table.diagonal(), **close)
    torch.testing.assert_close(got.intra_mean, table.diagonal().mean(), **close)
    torch.testing.assert_close(got.intra_min, table.diagonal().min(), **close)
    torch.testing.assert_close(got.inter_mean, reference.off_diagonal(table).mean(), **close)
    torch.testing.assert_close(got.inter_max, reference.off_diagonal(table).max(), **close)
    assert got.classes.tolist() == list(range(classes))


def test_scores_agree_with_all_pairs():
    features, target = clusters(40, 4, 3)
    torch.testing.assert_close(
        compactness(features, target), reference.compactness(features, target), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        separability(features, target), reference.separability(features, target), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("within", [0.5, 1e-2, 1e-5])
def test_exact_under_an_offset_a_thousand_times_the_spread(within):
    """All cosines are then 1 to six digits, and separability is what is left."""
    features, target = clusters(40, 4, 8, within=within, offset=1000.0)
    expected = reference.separability(features, target)
    assert expected < 1e-5
    torch.testing.assert_close(separability(features, target), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        compactness(features, target), reference.compactness(features, target), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        cosine_collapse(features, target).inter, reference.cosine_table(features, target), rtol=1e-6, atol=1e-6
    )


def test_simplex_reaches_the_extremes():
    classes = 10
    target = torch.arange(50) % classes
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    got = cosine_collapse(simplex[target] * (1 + torch.arange(50.0)[:, None]), target, center=False)
    assert got.intra.tolist() == pytest.approx([1] * classes, abs=1e-12)
    assert reference.off_diagonal(got.inter).tolist() == pytest.approx([-1 / 9] * 90, abs=1e-12)
    assert float(separability(simplex[target], target)) == pytest.approx(5 / 9, abs=1e-12)
    assert float(compactness(simplex[target] + 4, target)) == pytest.approx(1, abs=1e-12)


def test_zero_features_have_cosine_zero():
    features = torch.tensor([[1.0, 0], [0, 0], [0, 1], [0, 1]])
    target = torch.tensor([0, 0, 1, 1])
    for self_pairs, intra in ((True, [0.25, 1.0]), (False, [0.0, 1.0])):
        got = cosine_collapse(features, target, center=False, self_pairs=self_pairs)
        assert got.intra.tolist() == intra
        torch.testing.assert_close(got.inter, reference.cosine_table(features, target, False, self_pairs))
    constant = torch.ones(4, 2)
    assert compactness(constant, target) == 0.5
    assert cosine_collapse(constant, target).intra.tolist() == [0, 0]


def test_one_sample_and_one_class():
    features = torch.randn(3, 2)
    alone = cosine_collapse(features, torch.tensor([0, 0, 1]), self_pairs=False)
    assert alone.intra[1].isnan()
    assert alone.intra_mean.isnan()
    single = cosine_collapse(features, torch.zeros(3, dtype=torch.long))
    assert single.inter_mean.isnan()
    assert single.inter_max.isnan()
    assert separability(features, torch.zeros(3, dtype=torch.long)).isnan()


def test_labels_may_have_gaps():
    features, target = clusters(30, 3, 4)
    labels = torch.tensor([2, 2**40, 9])
    got = cosine_collapse(features, labels[target])
    assert got.classes.tolist() == [2, 9, 2**40]
    expected = cosine_collapse(features, target).intra[[0, 2, 1]]
    torch.testing.assert_close(got.intra, expected)


def test_gradients():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    target = torch.arange(12) % 3

    def values(features):
        centred = cosine_collapse(features, target, self_pairs=False)
        plain = cosine_collapse(features, target, center=False)
        return (
            centred.intra,
            centred.inter,
            centred.inter_mean,
            centred.inter_max,
            plain.intra_min,
            plain.inter_mean,
            compactness(features, target),
            separability(features, target),
        )

    assert torch.autograd.gradcheck(values, (features,))


def test_gradient_at_a_zero_feature_is_zero():
    features = torch.tensor([[1.0, 2], [0, 0], [3, 1]], requires_grad=True)
    separability(features, torch.tensor([0, 0, 1])).backward()
    assert features.grad is not None
    assert features.grad[1].tolist() == [0, 0]
    assert features.grad.isfinite().all()


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 7), st.integers(0, 10_000))
def test_invariances(classes, dim, seed):
    features, target = clusters(classes * 4, classes, dim, seed=seed)
    features = features.double()
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q
    order = torch.randperm(len(features), generator=generator)
    moved = (5 * features @ rotation)[order]
    for center in (True, False):
        base = cosine_collapse(features, target, center=center)
        other = cosine_collapse(moved + (9 if center else 0), target[order], center=center)
        torch.testing.assert_close(other.inter, base.inter, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(compactness(moved + 9, target[order]), compactness(features, target))
    torch.testing.assert_close(separability(moved, target[order]), separability(features, target))
    assert 0.5 - 1e-12 <= float(compactness(features, target)) <= 1 + 1e-12
