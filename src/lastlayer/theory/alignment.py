"""Alignment with logit separation: how small a loss must be to force it, and why some losses never do.

Tests: tests/theory/test_alignment.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer.theory import minima
from lastlayer.theory.loss_theory import LossTheory, NoFormula, read
from lastlayer.theory.numbers import check_count, log1pexp, minimise

__all__ = ["Counterexample", "Threshold", "counterexample", "expected_threshold", "threshold"]


@dataclass(frozen=True)
class Threshold:
    """Below `value`, every true logit exceeds every false logit of all samples."""

    value: float  # the largest such number. Logits that violate separation come arbitrarily close to it.
    sufficient: float | None  # the smaller number that the paper's argument gives
    # the smallest possible loss of one sample. Subtract it for every sample before you compare. A tuple by label for
    # nce with noise that is not uniform.
    infimum: float | tuple[float, ...]
    level: float | None  # a logit that separates the true from the false ones if the loss is below `sufficient`
    couples: str  # what the loss is a value of: "sample" (the sum of the losses of all samples) or "batch" (one batch)

    def __float__(self) -> float:
        return self.value


def threshold(loss: str | nn.Module, *, num_classes: int = 2, batch_size: int | None = None) -> Threshold:
    r"""How small the loss must be so that logits are certainly separated.

    Logits are not separated if, for some v, a true logit is at most v and a false one, maybe of the same sample, is at
    least v. Let A(v) and B(v) be the smallest losses above the infimum of such samples. The threshold is
    min_v A(v) + B(v):

    - bce: softplus(-v) + softplus(v), so 2 log 2. The paper's argument gives log 2.
    - mse: kappa (v - beta)^2 + v^2, so kappa beta^2/(1 + kappa).
    - self-norm: alpha v^2 + min_u [log(1 + e^(v-u)) + alpha log(e^v + e^u)^2] for two samples, and log 2 for one. The
      paper's argument gives min(log(1 + e^-2), alpha (1 - log 2)^2).
    - nce: with a = t q_y, A(v) = F(min(v, 0)) - F(0) for F(z) = softplus(log a - z) + a softplus(z - log a), and
      B(v) = t q_j softplus(v - log(t q_j)). Without the label in the noise sum, A(v) = softplus(log a - v).
    - ln: the smaller of log(1 + (K-1) e^(-1/(tau sqrt(K-1)))), the least loss with a true logit of 0, and the least
      loss with a false logit of 0.
    - batch-ce: log(2)/m for a batch of m. The paper's argument gives 1/(2 m^2) by Pinsker's inequality.
    - batch-max-margin: margin/m.

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        num_classes: K, at least 2; needed by nce with uniform noise and by ln.
        batch_size: m, at least 2; needed by the batch losses.

    Returns:
        Threshold, for the sum over samples or for one batch (`expected_threshold`: for the mean over batches).

    Raises:
        NoFormula: a ValueError, for a loss that is not aligned (see `counterexample`) or not analysed.

    Paper: 002, Sections 4 and 5 and Appendix A, with the corrected constants; the exact values are derived.
    Tests: tests/theory/test_alignment.py::test_threshold_is_sharp

    Example:
        >>> found = threshold("bce")
        >>> round(found.value, 6), round(found.sufficient, 6)
        (1.386294, 0.693147)
        >>> round(threshold("batch-ce", batch_size=32).value, 6)
        0.021661
    """
    theory = read(loss)
    check_count("num_classes", num_classes)
    if theory.answers(LossTheory.counterexample):
        raise NoFormula(f"{theory.name} is not aligned with logit separation; see alignment.counterexample")
    return theory.threshold(num_classes, batch_size)


def check_batch_size(name: str, batch_size: int | None) -> int:
    """The size of a batch; ValueError if it is missing or too small for a loss that couples the batch."""
    if batch_size is None or batch_size < 2:
        raise ValueError(f"{name} couples a batch: give batch_size of at least 2, got {batch_size}")
    return batch_size


def self_norm_threshold(alpha: float) -> Threshold:
    """The threshold of self-normalized cross-entropy."""
    if alpha <= 0:
        raise NoFormula(f"self-norm needs alpha > 0 to be aligned, got {alpha}")

    def low_true(v: float) -> float:
        # The partition L >= v is free. L - v + alpha L^2 is least at L = v, or at -1/(2 alpha) if that is larger.
        partition = max(v, -0.5 / alpha)
        return partition - v + alpha * partition**2 if v < 0 else 0.0

    def high_false(v: float) -> float:
        def cost(u: float) -> float:
            return log1pexp(v - u) + alpha * (v + log1pexp(u - v)) ** 2

        best = minimise(cost, min(v, 0.0) - 40.0, max(v, 0.0) + 40.0, points=200)
        return cost(best)

    # If v is below -1/(2 alpha) - 1, low_true is above log 2. If v is above 0, high_false is above its value at 0.
    low = -min(0.5 / alpha + 1.0, math.sqrt(math.log(2.0) / alpha) + 1.0)
    v = minimise(lambda v: low_true(v) + high_false(v), low, 0.0, points=200)
    value = min(math.log(2.0), low_true(v) + high_false(v))
    sufficient = min(math.log1p(math.exp(-2.0)), alpha * (1.0 - math.log(2.0)) ** 2)
    return Threshold(value, sufficient, 0.0, -1.0, "sample")


def nce_threshold(noise: Sequence[float], num_noise: float, include_target: bool) -> Threshold:
    """The threshold of noise-contrastive estimation, of its expectation over the samples."""
    if min(noise) <= 0:
        raise NoFormula("nce needs positive noise for every class: a class without noise has no false-logit cost")
    rates = sorted({num_noise * x for x in noise})

    def own(a: float, z: float) -> float:
        return log1pexp(math.log(a) - z) + (a * log1pexp(z - math.log(a)) if include_target else 0.0)

    def low_true(v: float) -> float:
        # With the label in the noise sum, the part of the true class is least at z = 0.
        z = min(v, 0.0) if include_target else v
        return min(own(a, z) - (own(a, 0.0) if include_target else 0.0) for a in rates)

    def high_false(v: float) -> float:
        return min(a * log1pexp(v - math.log(a)) for a in rates)

    reach = 40.0 + max(abs(math.log(a)) for a in rates)
    v = minimise(lambda v: low_true(v) + high_false(v), -reach, 0.0 if include_target else reach, points=2000)
    value = low_true(v) + high_false(v)
    level = -1.0 if include_target else 0.0
    infimum: float | tuple[float, ...] = 0.0
    if include_target:
        by_label = [
            (1.0 + num_noise * x) * math.log1p(num_noise * x) - num_noise * x * math.log(num_noise * x) for x in noise
        ]
        infimum = by_label[0] if len(rates) == 1 else tuple(by_label)
    return Threshold(value, min(low_true(level), high_false(level)), infimum, level, "sample")


def logit_norm_threshold(K: int, tau: float) -> Threshold:
    """The threshold of logit normalization."""
    radius = 1.0 / tau
    low_true = log1pexp(math.log(K - 1) - radius / math.sqrt(K - 1))

    def high_false(angle: float) -> float:
        true = radius * math.cos(angle)
        if K == 2:
            return log1pexp(-true)
        rest = math.log(K - 2) - radius * math.sin(angle) / math.sqrt(K - 2)
        return log1pexp(log1pexp(rest) - true)

    high = high_false(minimise(high_false, 0.0, math.pi / 2.0))
    infimum = minima.logit_norm(K, tau)
    return Threshold(min(low_true, high) - infimum, None, infimum, 0.0, "sample")


def expected_threshold(batch_threshold: float, samples: int, batch_size: int) -> float:
    r"""Threshold of the mean loss over all batches of a size: the batch's threshold divided by C(samples, batch_size).

    If the mean is below it, no batch can reach its own threshold. Every pair of samples is in some batch together.

    Args:
        batch_threshold: threshold of one batch.
        samples: n, the number of samples.
        batch_size: m, at least 2.

    Paper: 002, Lemma A.1.
    Tests: tests/theory/test_alignment.py::test_lemma_a1

    Example:
        >>> expected_threshold(0.5, 5, 2)
        0.05
    """
    check_count("batch_size", batch_size)
    if samples < batch_size:
        raise ValueError(f"samples must be at least batch_size = {batch_size}, got {samples}")
    return batch_threshold / math.comb(samples, batch_size)


@dataclass(frozen=True)
class Counterexample:
    """Two samples whose loss is almost as small as possible and whose logits are not separated."""

    logits: Tensor  # [2, 2], float64
    target: Tensor  # [2]
    excess: float  # the sum of the two losses minus twice the infimum, at most the epsilon asked for
    infimum: float  # infimum of the loss of one sample, 0 except with label smoothing


def counterexample(loss: str | nn.Module, epsilon: float = 1e-6) -> Counterexample:
    r"""Logits (2a, a) with label 0 and (-2a, -a) with label 1: a tiny loss, and yet no separation.

    The false logit a of the first sample exceeds the true logit -a of the second. We choose a so that the loss is
    within epsilon of its infimum:

    - ce: the sum of both losses is 2 log(1 + e^-a); with a soft margin m it is 2 log(1 + e^(m - a))
    - max-margin: the loss is 0 from a = margin on
    - ls: the loss reaches its infimum at a = log((2 - alpha)/alpha)
    - sln: as ce, with a^(1-gamma)/(tau 5^(gamma/2)) in place of a

    Args:
        loss: ce, ls, focal, sln, max-margin or soft-margin, by create name or Module.
        epsilon: how close to the infimum, above 0.

    Raises:
        NoFormula: a ValueError, for a loss that is aligned (see `threshold`) or not analysed.

    Paper: 002, Section 3.
    Tests: tests/theory/test_alignment.py::test_counterexamples

    Example:
        >>> found = counterexample("ce", 1e-3)
        >>> bool(found.logits[0, 1] > found.logits[1, 1]), found.excess <= 1e-3
        (True, True)
    """
    theory = read(loss)
    if not epsilon > 0:  # NaN too
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    if theory.answers(LossTheory.threshold):
        raise NoFormula(f"{theory.name} is aligned with logit separation and has no counter-example")
    return theory.counterexample(epsilon)


def unseparated(a: float, excess: float, infimum: float = 0.0) -> Counterexample:
    """The counter-example with false logit a."""
    logits = torch.tensor([[2.0 * a, a], [-2.0 * a, -a]], dtype=torch.float64)
    return Counterexample(logits, torch.tensor([0, 1]), excess, infimum)


def margin_for(epsilon: float) -> float:
    """The margin m with softplus(-m) = epsilon/2, or 0 if that is negative."""
    return max(-math.log(math.expm1(min(epsilon / 2.0, 700.0))), 0.0)


def grown(total: Callable[[float], float], epsilon: float) -> Counterexample:
    """The counter-example whose a was doubled until the sum of both losses is at most epsilon."""
    a = 1.0
    while total(a) > epsilon:
        a *= 2.0
    return unseparated(a, total(a))
