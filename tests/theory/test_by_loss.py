"""What is said of each loss as a whole, against the loss itself: convex, smooth, aligned."""

import pytest
import torch

from lastlayer import losses
from lastlayer.theory.loss_theory import LossTheory, names_with, theory_of

K, N = 4, 2
NAMES = [name for name in losses.available() if losses.entry(name).module.takes == ("logits",)]


def made(name: str) -> losses.Loss:
    return losses.create_for(torch.tensor([5, 4, 3, 2]), name)


def values(loss: losses.Loss, z: torch.Tensor) -> torch.Tensor:
    return torch.func.vmap(lambda one: loss(one, torch.arange(N)))(z)


@pytest.mark.parametrize("name", NAMES)
def test_convexity(name: str) -> None:
    """No chord lies below a convex loss; of another loss, some chord does."""
    generator = torch.Generator().manual_seed(0)
    sizes = 10 ** torch.linspace(-1, 1.3, 4000, dtype=torch.float64).view(-1, 1, 1)
    # pairs of points of every size, some of them far below 0, where self-normalized cross-entropy is not convex
    level = -30.0 * torch.rand(4000, 1, 1, generator=generator, dtype=torch.float64)
    a, b = (level + sizes * torch.randn(2, 4000, N, K, generator=generator, dtype=torch.float64)).unbind()
    loss = made(name)
    above = (values(loss, a) + values(loss, b)) / 2 - values(loss, (a + b) / 2)
    assert (above.min().item() >= -1e-9) == theory_of(loss).convex


@pytest.mark.parametrize("name", NAMES)
def test_smoothness(name: str) -> None:
    """Along a line the slope of a piecewise loss jumps, however short the steps are."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, N, K, generator=generator, dtype=torch.float64)
    loss, jumps = made(name), []
    for steps in (1_000, 10_000):
        t = torch.linspace(-3, 3, steps, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(values(loss, a + t.view(-1, 1, 1) * b).sum(), t)
        jumps.append(slope.diff().abs().max().item())
    assert (jumps[1] < 0.2 * jumps[0]) == theory_of(loss).smooth


def test_aligned_losses_have_a_threshold() -> None:
    aligned = {name for name in losses.available() if losses.entry(name).module.aligned}
    assert aligned == set(names_with(LossTheory.threshold))
