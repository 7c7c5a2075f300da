"""LargeMarginHead: L-Softmax in training, plain in evaluation, and its annealing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses
from lastlayer.heads import LargeMarginHead

y = torch.tensor([0, 2, 1, 1])


def make(**options):
    torch.manual_seed(0)
    return LargeMarginHead(5, 3, **options).double(), torch.randn(4, 5, dtype=torch.float64)


def psi(theta, m):
    k = min(int(theta * m / math.pi), m - 1)
    return (-1) ** k * math.cos(m * theta) - 2 * k


@pytest.mark.parametrize("margin", [1, 2, 3, 4])
@pytest.mark.parametrize("lam", [0.0, 1.0, 20.0])
def test_training_logits(margin, lam):
    head, x = make(margin=margin, lam=lam)
    found = head(x, y)
    plain = x @ head.weight.T
    for n in range(4):
        for k in range(3):
            expected = plain[n, k].item()
            if k == y[n]:
                norms = x[n].norm().item() * head.weight[k].norm().item()
                expected = (lam * expected + norms * psi(math.acos(expected / norms), margin)) / (1 + lam)
            assert found[n, k].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("margin", [1, 2, 4])
@pytest.mark.parametrize("lam", [0.0, 3.0])
def test_with_cross_entropy_it_is_the_loss(margin, lam):
    """Value, and gradients to features and weight."""
    head, x = make(margin=margin, lam=lam)
    x.requires_grad_()
    as_head = F.cross_entropy(head(x, y), y)
    as_loss = losses.large_margin(x, head.weight, y, margin=margin, lam=lam)
    torch.testing.assert_close(as_head, as_loss)
    for leaf in (x, head.weight):
        torch.testing.assert_close(*(torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in (as_head, as_loss)))


def test_plain_in_evaluation_and_without_a_target():
    head, x = make(lam=0.0)
    plain = x @ head.weight.T
    torch.testing.assert_close(head(x), plain)
    assert not torch.allclose(head(x, y), plain)
    head.eval()
    torch.testing.assert_close(head(x, y), plain)
    torch.testing.assert_close(head.logit(x, [1]), plain[:, [1]])
    assert head.step.item() == 1


def test_annealing():
    """lam = max(floor, start / (1 + 0.12 step)), one step for each training call with a target."""
    head, x = make()
    for step in range(5):
        assert head.lam.item() == pytest.approx(1000 / (1 + 0.12 * step))
        head(x)
        head(x, y)
    head.eval()(x, y)
    assert head.step.item() == 5
    head.step.fill_(10**7)
    assert head.lam.item() == 5.0
    steady, _ = make(lam=2.5)
    for _ in range(3):
        assert steady.lam.item() == 2.5
        steady(x, y)


def test_the_lambda_of_the_step_is_used():
    head, x = make(lam=(8.0, 1.0))
    for _ in range(3):
        lam = head.lam.item()
        torch.testing.assert_close(F.cross_entropy(head(x, y), y), losses.large_margin(x, head.weight, y, lam=lam))


def test_resuming_goes_on_with_the_step():
    head, x = make()
    for _ in range(7):
        head(x, y)
    other, _ = make()
    other.load_state_dict(head.state_dict())
    assert other.step.item() == 7
    assert torch.equal(other(x, y), head(x, y))


@pytest.mark.parametrize("ignored", [-100, -1])
def test_ignored_labels_leave_their_row_plain(ignored):
    head, x = make(lam=0.0)
    target = torch.tensor([0, ignored, 1, ignored])
    found, plain = head(x, target), x @ head.weight.T
    torch.testing.assert_close(found[[1, 3]], plain[[1, 3]])
    assert not torch.isclose(found[0, 0], plain[0, 0])
    loss = F.cross_entropy(found, target, ignore_index=ignored)
    torch.testing.assert_close(loss, losses.large_margin(x, head.weight, target, ignore_index=ignored))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.uint16])
def test_integer_labels(dtype):
    head, x = make(lam=1.0)
    assert torch.equal(head(x, y.to(dtype)), head(x, y))


def test_zero_features_and_rows():
    head, x = make(lam=0.0)
    with torch.no_grad():
        head.weight[0] = 0.0
    x[1] = 0.0
    x.requires_grad_()
    logits = head(x, y)
    assert torch.equal(logits[1], torch.zeros(3, dtype=torch.float64))
    F.cross_entropy(logits, y).backward()
    assert x.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()


def test_under_autocast_and_in_half_precision():
    head, x = make(lam=1.0)
    exact = head(x, y)
    head, x = head.float(), x.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = head(x, y)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=0.1, atol=0.1)


def test_compile_counts_its_steps():
    torch.compiler.reset()
    head, x = make()
    eager, _ = make()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(x, y), eager(x, y))
    assert head.step.item() == 3


def test_mistakes():
    head, x = make()
    with pytest.raises(ValueError, match=r"target must have shape \(4,\), one label per row, got \(3,\)"):
        head(x, y[:3])
    with pytest.raises(ValueError, match=r"x must have shape \(N, 5\)"):
        head(x.reshape(2, 2, 5), y[:2])
    with pytest.raises(TypeError, match=r"integer dtype, got torch.float64"):
        head(x, y.double())
    with pytest.raises(TypeError, match="got tuple"):
        head(x, (y, y, 0.5))
    with pytest.raises(ValueError, match="target has the label 3, but there are 3 classes"):
        head(x, torch.tensor([0, 3, 1, 1]))
    for margin in (0, 2.5):
        with pytest.raises(ValueError, match="margin must be an integer >= 1"):
            LargeMarginHead(5, 3, margin=margin)
    for lam in (-1.0, (1.0, 5.0), (5.0, -1.0)):
        with pytest.raises(ValueError, match="lam must be"):
            LargeMarginHead(5, 3, lam=lam)


def test_a_float64_head_keeps_its_digits():
    head = LargeMarginHead(5, 3, lam=0.1).double()
    x = torch.randn(4, 5, dtype=torch.float64)
    assert head.lam.item() == 0.1
    found = losses.cross_entropy(head(x, y), y)
    torch.testing.assert_close(found, losses.large_margin(x, head.weight, y, lam=0.1), rtol=1e-12, atol=0.0)
