"""The simplex frame and the head fixed to it."""

from __future__ import annotations

import pytest
import torch

from lastlayer.heads import SimplexHead, simplex_etf


@pytest.mark.parametrize(
    ("K", "d"), [(2, 1), (2, 2), (2, 9), (3, 2), (3, 3), (5, 4), (10, 9), (10, 10), (10, 64), (101, 100), (200, 512)]
)
def test_gram_matrix(K, d):
    M = simplex_etf(K, d, torch.Generator().manual_seed(0)).double()
    assert M.shape == (K, d)
    expected = K / (K - 1) * (torch.eye(K) - 1 / K)
    torch.testing.assert_close(M @ M.T, expected.double(), atol=2e-6, rtol=0.0)
    torch.testing.assert_close(M.norm(dim=1), torch.ones(K, dtype=torch.float64), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(M.sum(0), torch.zeros(d, dtype=torch.float64), atol=1e-5, rtol=0.0)


def test_float64_where_asked():
    torch.set_default_dtype(torch.float64)
    try:
        M = simplex_etf(7, 6)
    finally:
        torch.set_default_dtype(torch.float32)
    assert M.dtype is torch.float64
    torch.testing.assert_close(M @ M.T, 7 / 6 * (torch.eye(7, dtype=torch.float64) - 1 / 7), atol=1e-14, rtol=0.0)


def test_orientation_comes_from_the_generator():
    a, b, c = (simplex_etf(4, 5, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    torch.manual_seed(3)
    first = simplex_etf(4, 5)
    torch.manual_seed(3)
    assert torch.equal(first, simplex_etf(4, 5))


def test_orientation_is_uniform():
    """All directions of the first row are equally likely: over draws its mean is 0 and its second moment I / d."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([simplex_etf(3, 2, generator)[0] for _ in range(3000)])
    assert rows.mean(0).abs().max() < 0.05
    torch.testing.assert_close(rows.T @ rows / len(rows), torch.eye(2) / 2, atol=0.03, rtol=0.0)


def test_mistakes():
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        simplex_etf(1, 3)
    with pytest.raises(ValueError, match="10 classes needs dim >= 9, got 8"):
        simplex_etf(10, 8)
    with pytest.raises(ValueError, match="needs dim >= 9"):
        SimplexHead(8, 10)
    for scale in (0.0, -1.0):
        with pytest.raises(ValueError, match="scale must be positive or None"):
            SimplexHead(4, 3, scale=scale)


def test_nothing_to_learn():
    head = SimplexHead(4, 3, scale=2.0)
    assert list(head.parameters()) == []
    assert head.bias is None
    x = torch.randn(5, 4, requires_grad=True)
    head(x).sum().backward()
    assert head.weight.grad is None
    assert x.grad is not None
    assert list(head.state_dict()) == ["weight"]
    torch.testing.assert_close(head.weight.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(head.linear()[0], 2 * head.weight)


def test_seeded():
    heads = [SimplexHead(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)
