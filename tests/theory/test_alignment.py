"""Thresholds of logit separation: adversarial search finds no violation below them and one just above."""

import math

import pytest
import torch

from lastlayer import losses
from lastlayer.theory import LossTheory, alignment, names_with

K, M = 4, 3  # classes, and samples of a batch


def reference(name: str, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Loss of every set (sets, samples, K) in float64: the sum over samples above the infimum, or the batch loss."""
    true = z.gather(2, y.expand(len(z), -1).unsqueeze(2)).squeeze(2)
    mask = torch.nn.functional.one_hot(y, z.shape[2]).bool()
    sp = lambda x: torch.logaddexp(x, torch.zeros_like(x))  # noqa: E731
    lse = torch.logsumexp(z, 2)
    if name == "bce":
        return (sp(-true) + sp(z).masked_fill(mask, 0.0).sum(2)).sum(1)
    if name == "mse":
        return ((true - 15.0) ** 2 + z.square().masked_fill(mask, 0.0).sum(2)).sum(1)
    if name == "self-norm":
        return (lse - true + 0.1 * lse**2).sum(1)
    if name.startswith("nce"):
        a = 25.0 / z.shape[2]
        noise = a * sp(z - math.log(a))
        if name == "nce-excluded":
            return (sp(math.log(a) - true) + noise.masked_fill(mask, 0.0).sum(2)).sum(1)
        infimum = (1 + a) * math.log1p(a) - a * math.log(a)
        return (sp(math.log(a) - true) + noise.sum(2) - infimum).sum(1)
    if name == "ln":
        tau = 0.2 * (z.shape[2] / 10) ** -0.5
        s = z / (tau * z.norm(dim=2, keepdim=True))
        infimum = math.log1p((z.shape[2] - 1) * math.exp(-math.sqrt(z.shape[2] / (z.shape[2] - 1)) / tau))
        return (torch.logsumexp(s, 2) - s.gather(2, y.expand(len(z), -1).unsqueeze(2)).squeeze(2) - infimum).sum(1)
    m = z.shape[1]
    if name == "batch-ce":
        return -math.log(m) + torch.logsumexp(z.flatten(1), 1) - true.mean(1)
    false = z.masked_fill(mask, -torch.inf)
    each = (1.0 - true + false.amax(2)).clamp(min=0)
    return ((1.0 - true.amin(1) + false.amax((1, 2))).clamp(min=0) + each.sum(1)) / m


def module(name: str) -> str | losses.Loss:
    return losses.NceLoss(include_target=False) if name == "nce-excluded" else name


ALIGNED = ["bce", "mse", "self-norm", "nce", "nce-excluded", "ln", "batch-ce", "batch-max-margin"]


@pytest.mark.parametrize("name", ALIGNED)
def test_threshold_is_sharp(name: str) -> None:
    """Minimise the loss under a violation: a true logit stays below a false logit of another sample or of its own."""
    limit = alignment.threshold(module(name), num_classes=K, batch_size=M)
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(M) % K
    sets = 150
    z = 2 * torch.randn(sets, M, K, generator=generator, dtype=torch.float64)
    z[:, torch.arange(M), y] += 3.0
    if name == "mse":
        z[:, torch.arange(M), y] += 9.0
    i, j = torch.randint(M, (2, sets), generator=generator)
    wrong = (y[j] + 1 + torch.randint(K - 1, (sets,), generator=generator)) % K
    z.requires_grad_(True)
    mean, square = torch.zeros_like(z), torch.zeros_like(z)  # of Adam, written out: torch.optim takes seconds to import
    best = torch.full((sets,), torch.inf, dtype=torch.float64)
    for step in range(1, 501):
        lr = 0.2 if step <= 300 else 0.02 if step <= 400 else 0.002
        with torch.no_grad():  # project back: the true logit of sample i may not exceed the false logit of sample j
            rows = torch.arange(sets)
            low, high = z[rows, i, y[i]].clone(), z[rows, j, wrong].clone()
            middle = torch.where(low > high, (low + high) / 2, torch.nan)
            move = ~middle.isnan()
            z[rows[move], i[move], y[i][move]] = middle[move]
            z[rows[move], j[move], wrong[move]] = middle[move]
        value = reference(name, z, y)
        best = torch.minimum(best, value.detach())
        (gradient,) = torch.autograd.grad(value.sum(), z)
        mean, square = mean.lerp(gradient, 0.1), square.lerp(gradient.square(), 0.001)
        with torch.no_grad():
            z -= lr * (mean / (1 - 0.9**step)) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    assert best.min().item() >= limit.value * (1 - 1e-9)  # no violation below the threshold
    assert best.min().item() <= limit.value * 1.03 + 1e-6  # and one just above
    if limit.sufficient is not None:
        assert limit.sufficient <= limit.value * (1 + 1e-12)


def test_known_constants() -> None:
    assert alignment.threshold("bce").value == pytest.approx(2 * math.log(2))
    assert alignment.threshold("bce").sufficient == pytest.approx(math.log(2))
    assert float(alignment.threshold("batch-ce", batch_size=8)) == pytest.approx(math.log(2) / 8)
    assert float(alignment.threshold(losses.BatchMaxMarginLoss(margin=2.0), batch_size=8)) == pytest.approx(0.25)
    expected = min(math.log1p(math.exp(-2)), 0.1 * (1 - math.log(2)) ** 2)
    assert alignment.threshold("self-norm").sufficient == pytest.approx(expected)
    excluded = alignment.threshold(losses.NceLoss(num_noise=5, include_target=False), num_classes=10)
    a = 0.5
    assert excluded.sufficient == pytest.approx(min(math.log1p(a), a * math.log1p(1 / a)))
    assert excluded.infimum == 0.0


def test_nce_with_uneven_noise_has_an_infimum_for_every_label() -> None:
    noise = torch.tensor([0.5, 0.3, 0.2])
    found = alignment.threshold(losses.NceLoss(num_noise=4, noise=noise), num_classes=3)
    assert isinstance(found.infimum, tuple)
    for label, q in enumerate((0.5, 0.3, 0.2)):
        z = torch.full((1, 3), -60.0, dtype=torch.float64)
        z[0, label] = 0.0
        a = 4 * q
        rates = [4 * r for r in (0.5, 0.3, 0.2)]
        pairs = zip(rates, z[0].tolist(), strict=True)
        terms = sum(rate * math.log1p(math.exp(v - math.log(rate))) for rate, v in pairs)
        assert found.infimum[label] == pytest.approx(math.log1p(a) + terms, rel=1e-6)


def test_missing_alpha_in_appendix_a1() -> None:
    """eps = min(eps0, eps1) without alpha: alpha = 0.005 has a loss below it and no separation."""
    alpha = 0.005
    z, y = torch.tensor([[[2.0, -1.0], [-8.0, -2.0]]], dtype=torch.float64), torch.tensor([0, 1])
    lse = torch.logsumexp(z, 2)
    value = (lse - z.gather(2, y.view(1, 2, 1)).squeeze(2) + alpha * lse**2).sum().item()
    printed = min(math.log1p(math.exp(-2)), (1 - math.log(2)) ** 2)
    assert value <= printed
    assert z[0, 1, 1] < z[0, 0, 1]  # a true logit below a false one
    corrected = alignment.threshold(losses.SelfNormLoss(alpha=alpha))
    assert corrected.sufficient is not None
    assert corrected.sufficient < corrected.value < value


def test_printed_binary_loss_is_unbounded_below() -> None:
    """With '+ sum log(1 - sigmoid)' in place of '-' false logits want to grow without end."""
    z = torch.tensor([5.0, 100.0], dtype=torch.float64)
    printed = torch.nn.functional.softplus(-z[0]) - torch.nn.functional.softplus(z[1])
    assert printed < -90


def test_nce_optimum_is_at_zero_not_infinity() -> None:
    a = 2.5
    part = lambda z: math.log1p(math.exp(math.log(a) - z)) + a * math.log1p(math.exp(z - math.log(a)))  # noqa: E731
    grid = [i / 100 for i in range(-500, 501)]
    assert min(grid, key=part) == 0.0
    assert part(0.0) == pytest.approx((1 + a) * math.log1p(a) - a * math.log(a))


@pytest.mark.parametrize("name", names_with(LossTheory.counterexample))
@pytest.mark.parametrize("epsilon", [10.0**-k for k in range(1, 9)])
def test_counterexamples(name: str, epsilon: float) -> None:
    found = alignment.counterexample(name, epsilon)
    z, y = found.logits, found.target
    assert z[0, 1] >= z[1, 1]  # the false logit of the first is at least the true logit of the second
    true, false = z[[0, 1], y], z[[0, 1], 1 - y]
    gap = false - true
    if name == "focal":
        ce = torch.nn.functional.softplus(gap)
        value = ((1 - torch.exp(-ce)) ** 3 * ce).sum()
    elif name == "ls":
        value = (torch.nn.functional.softplus(gap) - 0.05 * gap).sum()
    elif name == "sln":
        tau = 0.2 * (2 / 10) ** -0.35
        value = torch.log1p(torch.exp(gap / (tau * z.norm(dim=1) ** 0.7))).sum()
    elif name == "max-margin":
        value = (1.0 + gap).clamp(min=0).sum()
    else:
        value = torch.log1p(torch.exp(gap + (0.5 if name == "soft-margin" else 0.0))).sum()
    assert value.item() - 2 * found.infimum <= epsilon
    assert value.item() - 2 * found.infimum == pytest.approx(found.excess, rel=1e-6, abs=1e-12)


def test_lemma_a1() -> None:
    """If the mean over all batches is below eps/C(n, m), no batch reaches eps."""
    assert alignment.expected_threshold(0.5, 5, 2) == pytest.approx(0.05)
    one_bad_batch = torch.zeros(math.comb(5, 2), dtype=torch.float64)
    one_bad_batch[0] = 0.5
    assert one_bad_batch.mean().item() == pytest.approx(alignment.expected_threshold(0.5, 5, 2))


def test_errors_name_the_way_out() -> None:
    with pytest.raises(ValueError, match="counterexample"):
        alignment.threshold("ce")
    with pytest.raises(ValueError, match="aligned"):
        alignment.counterexample("bce")
    with pytest.raises(ValueError, match="batch_size"):
        alignment.threshold("batch-ce")
    with pytest.raises(ValueError, match="alpha"):
        alignment.threshold(losses.SelfNormLoss(alpha=0.0))
    with pytest.raises(ValueError, match="beta > 0"):
        alignment.threshold(losses.MseLoss(beta=-1.0))  # logits (-1, 0) with the label 0 have loss 0
    with pytest.raises(ValueError, match="gamma < 1"):
        alignment.counterexample(losses.SoftLogitNormLoss(gamma=1.0))


def test_the_losses_say_the_same_of_themselves() -> None:
    aligned, others = names_with(LossTheory.threshold), names_with(LossTheory.counterexample)
    assert all(losses.entry(name).module.aligned for name in aligned)
    assert not any(losses.entry(name).module.aligned for name in others)
    assert not set(aligned) & set(others)
