"""The path of SLN that only compiled code with long rows takes, against float64 autograd of the formula."""

import pytest
import torch
from torch import Tensor

from lastlayer import losses
from lastlayer.losses.soft_logit_norm import LONGEST_FUSED_ROW


@pytest.fixture(autouse=True)
def _compile_afresh() -> None:
    torch._dynamo.reset()


N, K = 6, LONGEST_FUSED_ROW + 76


def reference(
    z: Tensor, probabilities: Tensor, gamma: float, tau: float, weight: Tensor | None, smoothing: float
) -> Tensor:
    z, t = z.double(), probabilities.double() * (1 - smoothing) + smoothing / K
    s = z / (tau * z.square().sum(1, keepdim=True) ** (gamma / 2))
    rows = t if weight is None else t * weight.double()
    return -(rows * s.log_softmax(1)).sum(1)


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("form", ["index", "probabilities", "pair"])
@pytest.mark.parametrize(("weighted", "smoothing"), [(False, 0.0), (True, 0.2)])
def test_compiled_long_rows_match_the_formula(gamma: float, form: str, weighted: bool, smoothing: float) -> None:
    torch.manual_seed(0)
    z = torch.randn(N, K).mul(3).requires_grad_()
    y, other = torch.randint(K, (N,)), torch.randint(K, (N,))
    one = torch.nn.functional.one_hot(y, K).double()
    target, dense = {
        "index": (y, one),
        "probabilities": (torch.full((N, K), 1 / K), torch.full((N, K), 1 / K)),
        "pair": ((y, other, 0.3), 0.3 * one + 0.7 * torch.nn.functional.one_hot(other, K)),
    }[form]
    weight = torch.rand(K) + 0.5 if weighted else None

    def loss(logits: Tensor) -> Tensor:
        return losses.soft_logit_norm(
            logits, target, gamma=gamma, tau=0.05, weight=weight, label_smoothing=smoothing, reduction="none"
        )

    upstream = torch.rand(N)
    value = torch.compile(loss, fullgraph=True, backend="aot_eager")(z)
    (gradient,) = torch.autograd.grad(value, z, upstream)
    exact = z.detach().double().requires_grad_()
    expected = reference(exact, dense, gamma, 0.05, weight, smoothing)
    (slope,) = torch.autograd.grad(expected, exact, upstream.double())
    assert torch.allclose(value.double(), expected, rtol=2e-6)
    assert torch.allclose(gradient.double(), slope, rtol=1e-4, atol=1e-6 * float(slope.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled_long_rows_are_finite_at_the_extremes(dtype: torch.dtype) -> None:
    compiled = torch.compile(losses.soft_logit_norm, fullgraph=True, backend="aot_eager")
    logits = torch.randn(N, K)
    for size in (0.0, 1e-30, 1e30):
        z = (logits * size).to(dtype).nan_to_num(posinf=6e4, neginf=-6e4).requires_grad_()
        value = compiled(z, torch.arange(N))
        value.backward()
        assert value.isfinite(), size
        assert z.grad is not None
        assert z.grad.isfinite().all(), size
        if size == 0.0:
            assert torch.isclose(value, torch.tensor(float(K)).log())
            assert not z.grad.any()


def test_compiled_and_eager_agree_on_dense_prediction() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(2, K, 3), torch.randint(K, (2, 3))
    compiled = torch.compile(losses.soft_logit_norm, fullgraph=True, backend="aot_eager")
    assert torch.isclose(compiled(z, y), losses.soft_logit_norm(z, y), rtol=1e-5)


@pytest.mark.parametrize("tau", [None, 0.05])
def test_compiled_long_rows_give_a_learnable_gamma_its_gradient(tau: float | None) -> None:
    z, y = torch.randn(N, K, generator=torch.Generator().manual_seed(0)), torch.arange(N)

    def loss(gamma: Tensor) -> Tensor:
        return losses.soft_logit_norm(z, y, gamma=gamma, tau=tau)

    slopes = []
    for function in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss):
        gamma = torch.tensor(0.7, requires_grad=True)
        slopes.append(torch.autograd.grad(function(gamma), gamma)[0])
    step = 1e-6
    low, high = (losses.soft_logit_norm(z.double(), y, gamma=0.7 + s * step, tau=tau).item() for s in (-1, 1))
    for slope in slopes:
        assert slope.item() == pytest.approx((high - low) / (2 * step), rel=1e-4)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_compiled_long_rows_in_float64_are_exact_at_every_size(size: float) -> None:
    torch.manual_seed(0)
    z, y = torch.randn(N, K, dtype=torch.float64), torch.arange(N)
    s = z / (0.05 * z.norm(dim=1, keepdim=True) ** 0.7)  # homogeneity: size^0.3 in tau takes the size away
    compiled = torch.compile(losses.soft_logit_norm, fullgraph=True, backend="aot_eager")
    found = compiled(z * size, y, tau=0.05 * size**0.3)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(s, y), rtol=1e-12, atol=0.0)
