"""Theorem 1 of the SLN paper against autograd, and Proposition 2 with the conditions it needs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.theory import gradients


def sln(f: torch.Tensor, y: torch.Tensor, gamma: float, tau: float) -> torch.Tensor:
    s = f / (tau * f.norm(dim=1, keepdim=True) ** gamma)
    behind = s - s.gather(1, y.unsqueeze(1))
    # log(1 + sum over the others): softmax minus one-hot would lose the digits that are compared here
    others = behind.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return torch.logaddexp(others, torch.zeros_like(others))


@pytest.mark.parametrize("K", [2, 3, 10])
def test_decomposition_of_ten_thousand_gradients(K: int) -> None:
    generator = torch.Generator().manual_seed(K)
    N = 3400
    sizes = 10 ** (2 * torch.rand(N, 1, generator=generator, dtype=torch.float64) - 1)
    logits = sizes * torch.randn(N, K, generator=generator, dtype=torch.float64)
    y = torch.randint(K, (N,), generator=generator)
    for gamma, tau in ((0.7, 0.2), (0.3, 1.0), (0.95, 0.05)):
        parts = gradients.decompose(logits, y, gamma, tau)
        f = logits.clone().requires_grad_(True)
        (expected,) = torch.autograd.grad(sln(f, y, gamma, tau).sum(), f)
        for got in (parts.gradient, parts.combination):
            error = (got - expected).norm(dim=1) / expected.norm(dim=1)
            assert error.max() < 1e-10
        false = torch.ones_like(logits, dtype=torch.bool)
        false[torch.arange(N), y] = False
        assert (parts.c1[false] > 0).all()
        assert (parts.c2[false] > 0).all()
        assert (parts.c1[~false] == 0).all()
        assert (parts.c2[~false] == 0).all()


def test_pieces_are_the_gradients_of_ln_and_ce() -> None:
    torch.manual_seed(0)
    logits, y = 3 * torch.randn(50, 6, dtype=torch.float64), torch.randint(6, (50,))
    parts = gradients.decompose(logits, y, 0.7, 0.3)
    f = logits.clone().requires_grad_(True)
    (ln,) = torch.autograd.grad(sln(f, y, 1.0, 0.3).sum(), f)
    torch.testing.assert_close(parts.ln.sum(1), ln, rtol=1e-10, atol=1e-13)
    (ce,) = torch.autograd.grad((torch.logsumexp(f, 1) - f[torch.arange(50), y]).sum(), f)
    torch.testing.assert_close(parts.ce.sum(1), ce, rtol=1e-10, atol=1e-13)


def test_binary_case_is_one_term_with_the_printed_derivatives() -> None:
    f1, f2, tau = 1.3, -0.4, 0.5
    parts = gradients.decompose(torch.tensor([[f1, f2]], dtype=torch.float64), torch.tensor([0]), 0.7, tau)
    cube = tau * (f1**2 + f2**2) ** 1.5
    p = torch.softmax(torch.tensor([f1, f2], dtype=torch.float64) / (tau * (f1**2 + f2**2) ** 0.5), 0)[1]
    expected = -p * torch.tensor([(f2**2 + f1 * f2) / cube, -(f1**2 + f1 * f2) / cube], dtype=torch.float64)
    torch.testing.assert_close(parts.ln[0, 1], expected, rtol=1e-12, atol=0)
    assert (parts.ln[0, 0] == 0).all()


def test_every_ln_piece_is_orthogonal_to_the_way_from_zero_logits() -> None:
    torch.manual_seed(1)
    for K, d in ((2, 2), (3, 5), (10, 12)):
        W, b = torch.randn(K, d, dtype=torch.float64), torch.randn(K, dtype=torch.float64)
        x = torch.randn(200, d, dtype=torch.float64)
        origin = gradients.zero_logits_point(W, b)
        torch.testing.assert_close(W @ origin + b, torch.zeros_like(b), rtol=0, atol=1e-10)
        ln, _ = gradients.decompose(x @ W.T + b, torch.randint(K, (200,)), 0.7, 0.2).on_features(W)
        way = (x - origin).unsqueeze(1)
        product = (ln * way).sum(2).abs()
        assert (product <= 1e-12 * ln.norm(dim=2) * way.norm(dim=2) + 1e-13).all()


def test_discrete_paths_of_ln_are_not_circles() -> None:
    """Gradient descent adds eta^2 |g|^2 to the squared distance, so radii grow where the paper draws circles."""
    W = torch.tensor([[1.0, 0.2], [-0.3, 1.0]], dtype=torch.float64)
    x = torch.tensor([0.5, -0.2], dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad(sln((W @ x).unsqueeze(0), torch.tensor([1]), 1.0, 0.5).sum(), x)
    after = (x - 0.1 * g).square().sum() - x.square().sum()
    assert after.item() == pytest.approx(0.01 * g.square().sum().item(), rel=1e-10)
    assert after > 0


def test_stationary_points_of_binary_ln_hold_both_extremes() -> None:
    f = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    values = sln(f, torch.tensor([0, 0]), 1.0, 0.5)
    (g,) = torch.autograd.grad(values.sum(), f)
    assert g.abs().max() < 1e-12  # f1 + f2 = 0 is stationary in both cases
    assert values[0] < values[1]  # a minimum and a maximum


def test_different_rows_are_not_enough_for_a_zero() -> None:
    W = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="linearly dependent"):
        gradients.zero_logits_point(W, torch.tensor([0.0, 1.0], dtype=torch.float64))


@settings(max_examples=40, deadline=None)
@given(
    gamma=st.floats(0.0, 1.0),
    tau=st.floats(0.02, 5.0),
    row=st.lists(st.floats(-50, 50), min_size=2, max_size=6).filter(lambda r: max(abs(x) for x in r) > 1e-3),
)
def test_gradient_for_any_row(gamma: float, tau: float, row: list[float]) -> None:
    f = torch.tensor([row], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(sln(f, torch.tensor([0]), gamma, tau).sum(), f)
    got = gradients.decompose(f.detach(), torch.tensor([0]), gamma, tau).gradient
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12 * (1 + expected.abs().max().item()))


def test_zero_row_and_extremes() -> None:
    zero = gradients.decompose(torch.zeros(1, 3, dtype=torch.float64), torch.tensor([1]), 0.7, 0.2)
    assert (zero.gradient == 0).all()
    large = gradients.decompose(torch.tensor([[1e6, 0.0, -1e6]], dtype=torch.float64), torch.tensor([2]), 0.7, 0.2)
    assert torch.isfinite(large.gradient).all()


@pytest.mark.parametrize("size", [1e-30, 1e-16, 1e14, 1e30])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_logits_whose_cubes_leave_the_range_of_float32(size: float, gamma: float) -> None:
    logits = (size * torch.tensor([[2.0, -1.0, 0.5], [-1.0, 1.5, 0.2]])).float()
    y = torch.tensor([0, 2])
    parts = gradients.decompose(logits, y, gamma, 0.5)
    f = logits.double().requires_grad_(True)
    (expected,) = torch.autograd.grad(sln(f, y, gamma, 0.5).sum(), f)
    unit = expected.abs().max()
    torch.testing.assert_close(parts.gradient.double() / unit, expected / unit, rtol=1e-4, atol=1e-5)
    assert parts.ln.isfinite().all()


def test_wrong_arguments() -> None:
    z = torch.zeros(2, 3)
    for kwargs in ({"gamma": 1.5, "tau": 1.0}, {"gamma": 0.5, "tau": 0.0}):
        with pytest.raises(ValueError, match="must"):
            gradients.decompose(z, torch.tensor([0, 1]), **kwargs)
    with pytest.raises(ValueError, match="target"):
        gradients.decompose(z, torch.tensor([0]), 0.5, 1.0)
