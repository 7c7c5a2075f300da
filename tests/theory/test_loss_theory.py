"""How the theory of a loss is registered and found, and what it says of each loss: convex, smooth, aligned."""

import pytest
import torch
from torch import Tensor

from lastlayer import losses, theory
from lastlayer.theory import contrastive, minima
from lastlayer.theory.loss_theory import LossTheory, names_with, read, theory_of


def sharper(logits: Tensor, target: Tensor, *, factor: float = 2.0) -> Tensor:
    """Cross-entropy of logits times a factor."""
    return torch.nn.functional.cross_entropy(factor * logits, target)


@pytest.fixture
def mine():
    """A loss of the user's own whose theory is registered."""

    class Sharper(losses.Loss):
        function = staticmethod(sharper)

    @theory.register(Sharper)
    class _SharperTheory(theory.LossTheory):
        convex = True

        def phi(self, K: int) -> contrastive.Phi:
            return contrastive.Phi(K, temperature=1.0 / self.loss.factor)

    return Sharper


def test_a_registered_loss_of_the_user_has_all_that_follows(mine) -> None:
    warm = losses.CrossEntropyLoss(temperature=0.5)
    assert contrastive.phi(mine(), 4) == contrastive.phi(warm, 4)
    assert minima.unconstrained(mine(), 4, 2, 0.01, 0.01) == minima.unconstrained(warm, 4, 2, 0.01, 0.01)
    found = theory.UnconstrainedFeatures(3, 2, 3, mine(), 5e-3, 5e-3).solve(starts=2)
    assert found.certificate.kind == "global minimum"
    assert contrastive.phi(mine(factor=1.0), 4) == contrastive.phi("ce", 4)


def test_a_subclass_that_computes_something_else_is_unknown(mine) -> None:
    class Same(mine):
        pass

    class OtherFunction(mine):
        function = staticmethod(losses.cross_entropy)

    class OtherForward(mine):
        def forward(self, logits: Tensor, target: Tensor) -> Tensor:
            return logits.sum()

    assert theory_of(Same()).convex
    for other in (OtherFunction(), OtherForward(), torch.nn.CrossEntropyLoss()):
        assert type(theory_of(other)) is theory.LossTheory


def test_what_is_unknown_is_said_with_the_losses_of_which_it_is_known() -> None:
    nothing = theory.LossTheory(losses.create("kd"))
    logits, target = torch.zeros(1, 2), torch.tensor([0])
    for question, among in (
        (lambda: nothing.phi(3), "ce, ls, focal, max-margin, soft-margin, batch-ce"),
        (lambda: nothing.frame(3, 0.1, 0.0), "ce, ls, focal, max-margin, soft-margin, batch-ce, bce, mse"),
        (lambda: nothing.sphere_minimum(3, 1.0, free_bias=True), "ce, ls, bce, batch-ce"),
        (lambda: nothing.threshold(3, None), "bce, self-norm, nce, mse, ln, batch-ce, batch-max-margin"),
        (lambda: nothing.counterexample(0.1), "ce, ls, focal, sln, max-margin, soft-margin"),
        (lambda: nothing.logit_hessian(logits, target), "ce, ls, focal"),
        (lambda: nothing.on_spheres(), "ce, ls, bce"),
    ):
        with pytest.raises(theory.NoFormula, match=f"loss 'kd' has no .*: {among}$"):
            question()
    assert not nothing.convex
    assert nothing.smooth
    assert nothing.bias_curvature(2, 0.1) == 1 / 16


def test_reading_a_loss() -> None:
    assert read("ls").loss.label_smoothing == 0.1
    with pytest.raises(ValueError, match="class weights"):
        read(losses.CrossEntropyLoss(weight=torch.ones(3)))
    with pytest.raises(TypeError, match="a loss Module"):
        read(torch.nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="unknown"):
        read("nonsense")


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
