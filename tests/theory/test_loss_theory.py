"""How the theory of a loss is registered and found: by the loss's class, from outside too."""

import math

import pytest
import torch
from torch import Tensor

from lastlayer import losses, theory
from lastlayer.theory import contrastive, loss_theory, minima
from lastlayer.theory.loss_theory import read, theory_of


def sharper(logits: Tensor, target: Tensor, *, factor: float = 2.0) -> Tensor:
    """Cross-entropy of logits times a factor."""
    return torch.nn.functional.cross_entropy(factor * logits, target)


@pytest.fixture
def mine(monkeypatch):
    """A loss of the user's own whose theory is registered, for one test."""
    monkeypatch.setattr(loss_theory, "_THEORIES", dict(loss_theory._THEORIES))  # the register must not keep it

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
        (lambda: nothing.residual(logits, logits), "ce, ls, bce"),
        (lambda: nothing.decay_rate(logits, logits), "ce, ls, bce"),
        (lambda: nothing.collapse_exponent(3, None), "ce, ls, bce"),
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


def test_the_loss_of_features_under_a_given_classifier() -> None:
    torch.manual_seed(0)
    h, W, b = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
    y = torch.tensor([0, 1, 2, 3, 0])
    z = 2.0 * h @ W.T + b
    expected = (torch.logsumexp(z, 1) - z[torch.arange(5), y]).mean().item()
    for loss in (losses.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy):
        assert loss_theory.loss_of_features(loss, h, y, W, b, 2.0).item() == pytest.approx(expected, rel=1e-6)
    large = loss_theory.loss_of_features(losses.LargeMarginLoss(margin=2), h, y, W, None)
    assert large.item() == pytest.approx(losses.large_margin(h, W, y, margin=2).item())
    assert math.isfinite(large.item())
