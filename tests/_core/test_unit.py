"""Rows divided by a power of their norm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from lastlayer._core.unit import soft_normalize, unit


def naive(row, gamma, tau):
    """In float64, for rows whose squares neither overflow nor vanish."""
    row = np.asarray(row, dtype=np.float64)
    norm = math.sqrt(math.fsum(v * v for v in row))
    return row / (tau * norm**gamma) if norm else np.zeros_like(row)


@pytest.mark.parametrize("gamma", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_along_any_axis(gamma, dim):
    x = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = soft_normalize(x, gamma, 0.3, dim=dim).movedim(dim, -1).reshape(-1, x.shape[dim])
    rows = x.movedim(dim, -1).reshape(-1, x.shape[dim])
    np.testing.assert_allclose(found.numpy(), [naive(row, gamma, 0.3) for row in rows], rtol=1e-13)


@given(exponent=st.floats(-44, 37), gamma=st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_float32_at_every_size_it_holds(exponent, gamma):
    row = torch.tensor([[1.0, -0.5, 0.25, 0.0]]) * torch.tensor(10.0, dtype=torch.float64).pow(exponent)
    row = row.float()
    expected = naive(row[0].double(), gamma, 0.5)
    np.testing.assert_allclose(soft_normalize(row, gamma, 0.5)[0].numpy(), expected, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("size", [1e-320, 1e-300, 1e-160, 1e160, 1e307])
def test_float64_beyond_where_squares_fit(size):
    row = torch.tensor([[3.0, -4.0]], dtype=torch.float64) * size
    tolerance = 1e-14 if size > 1e-307 else 1e-3  # denormals have few digits
    np.testing.assert_allclose(unit(row)[0].numpy(), [0.6, -0.8], rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_a_zero_row_stays_zero_without_a_gradient(dtype, gamma):
    x = torch.zeros(2, 3, dtype=dtype, requires_grad=True)
    y = soft_normalize(x, gamma)
    assert torch.equal(y, torch.zeros_like(y))
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_precision_of_the_result(dtype, wide):
    x = torch.randn(4, 3).to(dtype)
    assert unit(x).dtype is wide
    torch.testing.assert_close(unit(x).norm(dim=1), torch.ones(4, dtype=wide))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_derivatives(gamma):
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, tau: soft_normalize(x, gamma, tau), (x, tau))
    assert gradgradcheck(lambda x: soft_normalize(x, gamma, 0.7), (x,))


def test_derivative_with_a_tied_largest_entry():
    """The largest entry only sets a scale, so it must not matter which entry that is."""
    x = torch.tensor([[2.0, -2.0, 2.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: soft_normalize(x, 0.7, 0.5), (x,))
    assert gradgradcheck(lambda x: soft_normalize(x, 0.7, 0.5), (x,))


def test_float16_gradients_that_overflow_are_infinite():
    x = torch.tensor([[6e-8, 0.0]], dtype=torch.float16, requires_grad=True)
    unit(x).backward(torch.tensor([[0.0, -1.0]]))
    assert x.grad.tolist() == [[0.0, -math.inf]]


def test_empty():
    assert unit(torch.zeros(0, 3)).shape == (0, 3)
