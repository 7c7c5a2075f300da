"""Lanczos against dense eigenvalues, the Hessians of 001 against autograd, and its saddles."""

import math

import pytest
import torch

from lastlayer import losses
from lastlayer.theory import contrastive, landscape


def quadratic(eigenvalues: list[float], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    Q, _ = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    A = Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T
    return (A + A.T) / 2, torch.randn(size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        [3.0] * 40,
        [0.0] * 40,
        [-1.0] + [0.0] * 30 + [2.0] * 9,
        [-2.0] * 20 + [5.0] * 20,
        [-1e-5] + [0.0] * 20 + [1.0] * 19,
        torch.linspace(-1, 1, 40).tolist(),
        torch.logspace(-8, 2, 40).tolist(),
        [-1e4, *torch.linspace(0, 1, 39).tolist()],
        [2.0],
    ],
)
def test_against_dense_eigenvalues(eigenvalues: list[float]) -> None:
    A, x = quadratic(eigenvalues, len(set(eigenvalues)))
    found = landscape.smallest_curvature(lambda v: 0.5 * v @ A @ v + v.sum(), x)
    dense = torch.linalg.eigvalsh(A)
    scale = max(1.0, dense.abs().max().item())
    assert found.value == pytest.approx(dense[0].item(), abs=1e-8 * scale)
    direction = found.direction
    assert isinstance(direction, torch.Tensor)
    assert direction.norm().item() == pytest.approx(1.0)
    assert (A @ direction - found.value * direction).norm() <= 1e-7 * scale
    assert found.converged


def test_several_tensors_and_a_network() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    first, second = torch.randn(5, 4, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)

    def objective(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        z = torch.tanh(x @ a.T) @ b.T
        return (torch.logsumexp(z, 1) - z[torch.arange(20), y]).mean()

    flat = torch.cat([first.flatten(), second.flatten()])
    dense = torch.autograd.functional.hessian(lambda v: objective(v[:20].view(5, 4), v[20:].view(3, 5)), flat)
    smallest = torch.linalg.eigvalsh(dense)[0].item()
    found = landscape.smallest_curvature(objective, (first, second))
    assert found.value == pytest.approx(smallest, abs=1e-9)
    assert [part.shape for part in found.direction] == [first.shape, second.shape]


def test_iteration_limit_is_reported_and_never_too_low() -> None:
    A, x = quadratic(torch.linspace(-1, 1, 200).tolist(), 1)
    found = landscape.smallest_curvature(lambda v: 0.5 * v @ A @ v, x, max_iterations=5)
    assert not found.converged
    assert found.iterations == 5
    assert -1.0 - 1e-12 <= found.value <= -0.5


def test_linear_and_infinite_objectives() -> None:
    assert landscape.smallest_curvature(lambda v: v.sum(), torch.zeros(3)).value == 0.0
    with pytest.raises(ValueError, match="inf"):
        landscape.smallest_curvature(lambda v: 1.0 / v.sum(), torch.zeros(3))


def dense_origin(name: str, K: int, n: int, lw: float, lh: float, lb: float) -> float:
    """Smallest eigenvalue of the dense Hessian at W = H = b = 0, the loss written out."""
    d = K
    y = torch.arange(K).repeat_interleave(n)

    def objective(v: torch.Tensor) -> torch.Tensor:
        W, H, b = v[: K * d].view(K, d), v[K * d : K * d + n * K * d].view(n * K, d), v[-K:]
        z = H @ W.T + b
        ce = torch.logsumexp(z, 1) - z[torch.arange(n * K), y]
        loss = (1 - torch.exp(-ce)) ** 3 * ce if name == "focal" else ce
        if name == "ls":
            loss = 0.9 * ce + 0.1 * (torch.logsumexp(z, 1) - z.mean(1))
        return loss.mean() + (lw * W.square().sum() + lh * H.square().sum() + lb * b.square().sum()) / 2

    size = K * d + n * K * d + K
    hessian = torch.autograd.functional.hessian(objective, torch.zeros(size, dtype=torch.float64))
    return torch.linalg.eigvalsh(hessian)[0].item()


@pytest.mark.parametrize("name", ["ce", "ls", "focal"])
@pytest.mark.parametrize(("lw", "lh", "lb"), [(0.01, 0.02, 0.0), (0.3, 0.2, 0.05), (0.001, 0.5, 10.0)])
def test_origin_curvature(name: str, lw: float, lh: float, lb: float) -> None:
    K, n = 3, 2
    found = landscape.origin_curvature(name, K, n, lw, lh, lambda_b=lb)
    assert found == pytest.approx(dense_origin(name, K, n, lw, lh, lb), abs=1e-10)
    saddle = math.sqrt(n * lw * lh) < contrastive.phi(name, K).derivative(0.0)
    assert (landscape.origin_curvature(name, K, n, lw, lh, bias=False) < 0) == saddle


def test_logit_hessians_against_autograd() -> None:
    torch.manual_seed(0)
    z, y = 2 * torch.randn(30, 5, dtype=torch.float64), torch.randint(5, (30,))
    for name, gamma in (("ce", None), ("focal", 1.0), ("focal", 2.0), ("focal", 3.5)):
        loss = losses.FocalLoss(gamma=gamma) if gamma else name
        got = landscape.logit_hessian(loss, z, y)
        for i in range(30):

            def single(v: torch.Tensor, label: int = int(y[i])) -> torch.Tensor:
                ce = torch.logsumexp(v, 0) - v[label]
                return (1 - torch.exp(-ce)) ** gamma * ce if gamma else ce  # noqa: B023

            torch.testing.assert_close(got[i], torch.autograd.functional.hessian(single, z[i]), rtol=1e-7, atol=1e-9)


def test_focal_is_convex_above_its_probability() -> None:
    torch.manual_seed(1)
    for gamma in (1.0, 2.0, 3.0, 5.0):
        z = 4 * torch.randn(20000, 4, dtype=torch.float64)
        p = torch.softmax(z, 1)[:, 0]
        hessian = landscape.logit_hessian(losses.FocalLoss(gamma=gamma), z, torch.zeros(len(z), dtype=torch.long))
        lowest = torch.linalg.eigvalsh(hessian)[:, 0]
        assert lowest[p >= landscape.focal_convexity()].min() >= -1e-12
        assert lowest[p >= landscape.focal_convexity(gamma)].min() >= -1e-12
        assert lowest[p < 0.01].min() < -1e-3  # far below it is not
    assert landscape.focal_convexity() < 0.21
