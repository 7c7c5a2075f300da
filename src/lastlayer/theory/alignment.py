"""Alignment with logit separation: how small a loss must be to force it, and why some losses never do."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer.losses.soft_logit_norm import resolve_tau
from lastlayer.theory import minima
from lastlayer.theory._losses import Description, describe
from lastlayer.theory._scalar import check_count, minimise, sigmoid, softplus

ALIGNED = ("bce", "self-norm", "nce", "mse", "ln", "batch-ce", "batch-max-margin")
NOT_ALIGNED = ("ce", "ls", "focal", "sln", "max-margin", "soft-margin")


@dataclass(frozen=True)
class Threshold:
    """Below `value` every true logit exceeds every false logit of the sample.

    Attributes:
        value: the largest such number: logits that violate separation come arbitrarily close to it.
        sufficient: the smaller number that the paper's argument gives, or None.
        infimum: the smallest possible loss of one sample, 0 for most losses; subtract it for every sample before
            comparing. A tuple by label for nce with noise that is not uniform.
        level: a logit that separates the true from the false ones when the loss is below `sufficient`, or None.
        couples: what the loss is a value of: "sample" (the sum of the losses of all samples) or "batch" (one batch).
    """

    value: float
    sufficient: float | None
    infimum: float | tuple[float, ...]
    level: float | None
    couples: str

    def __float__(self) -> float:
        return self.value


def threshold(loss: str | nn.Module | Description, *, num_classes: int = 2, batch_size: int | None = None) -> Threshold:
    r"""How small the loss must be for logit separation to be certain.

    A violation needs one sample whose true logit is at most some v and one (perhaps the same) with a false logit of
    at least v. With A(v) and B(v) the smallest losses of such samples above the infimum, the threshold is min_v A(v)
    + B(v):

    - bce: softplus(-v) + softplus(v), so 2 log 2 (the paper's argument gives log 2)
    - mse: kappa (v - beta)^2 + v^2, so kappa beta^2/(1 + kappa)
    - self-norm: alpha v^2 + min_u [log(1 + e^(v-u)) + alpha log(e^v + e^u)^2], and log 2 for one sample that
      violates by itself; sufficient: min(log(1 + e^-2), alpha (1 - log 2)^2)
    - nce: with a = t q_y, F(z) = softplus(log a - z) + a softplus(z - log a) (the second term only if the label is
      in the noise sum) and B(v) = t q_j softplus(v - log(t q_j))
    - ln: the smaller of log(1 + (K-1) e^(-1/(tau sqrt(K-1)))) (true logit 0) and the least loss with a false logit of 0
    - batch-ce: log(2)/m for a batch of m (the paper's argument gives 1/(2 m^2) by Pinsker's inequality)
    - batch-max-margin: margin/m

    Args:
        loss: a create name or a loss Module, whose hyperparameters count.
        num_classes: K; needed by nce with uniform noise and by ln.
        batch_size: m, at least 2; needed by the batch losses.

    Returns:
        Threshold, for the sum over samples or for one batch (`expected_threshold` turns that into one for the mean
        over batches).

    Raises:
        ValueError: for a loss that is not aligned (see `counterexample`) or not analysed.

    Paper: 002, Sections 4 and 5 and Appendix A, with the corrected constants; the exact values are derived.

    Example:
        >>> found = threshold("bce")
        >>> round(found.value, 6), round(found.sufficient, 6)
        (1.386294, 0.693147)
        >>> round(threshold("batch-ce", batch_size=32).value, 6)
        0.021661
    """
    described = describe(loss)
    check_count("num_classes", num_classes)
    match described.name:
        case "bce":
            if described.number("label_smoothing") != 0 or described.options["pos_weight"] is not None:
                raise ValueError("the threshold of bce holds without label_smoothing and pos_weight")
            return Threshold(2.0 * math.log(2.0), math.log(2.0), 0.0, 0.0, "sample")
        case "mse":
            kappa, beta = described.number("kappa"), described.number("beta")
            if beta <= 0:
                raise ValueError(f"mse needs beta > 0 to be aligned, got {beta}")
            value = kappa * beta**2 / (1.0 + kappa)
            return Threshold(value, None, 0.0, kappa * beta / (1.0 + kappa), "sample")
        case "self-norm":
            return _self_norm(described.number("alpha"))
        case "nce":
            return _nce(described, num_classes)
        case "ln":
            return _logit_norm(num_classes, float(resolve_tau(described.options["tau"], num_classes, 1.0)))
        case "batch-ce" | "batch-max-margin":
            if batch_size is None or batch_size < 2:
                raise ValueError(f"{described.name} couples a batch: give batch_size of at least 2, got {batch_size}")
            if described.name == "batch-ce":
                value, sufficient = math.log(2.0) / batch_size, 0.5 / batch_size**2
            else:
                value = sufficient = described.number("margin") / batch_size
            return Threshold(value, sufficient, 0.0, None, "batch")
    if described.name in NOT_ALIGNED:
        raise ValueError(f"{described.name} is not aligned with logit separation; see alignment.counterexample")
    raise ValueError(f"no threshold is known for {described.name!r}; those with one are {', '.join(ALIGNED)}")


def _self_norm(alpha: float) -> Threshold:
    if alpha <= 0:
        raise ValueError(f"self-norm needs alpha > 0 to be aligned, got {alpha}")

    def low_true(v: float) -> float:
        # the partition L >= v is free: L - v + alpha L^2 is least at L = v, or at -1/(2 alpha) if that is larger
        partition = max(v, -0.5 / alpha)
        return partition - v + alpha * partition**2 if v < 0 else 0.0

    def high_false(v: float) -> float:
        def cost(u: float) -> float:
            return softplus(v - u) + alpha * (v + softplus(u - v)) ** 2

        best = minimise(cost, min(v, 0.0) - 40.0, max(v, 0.0) + 40.0, points=200)
        return cost(best)

    # v below -1/(2 alpha) - 1 costs more than log 2 in low_true, v above 0 more than v = 0 in high_false
    low = -min(0.5 / alpha + 1.0, math.sqrt(math.log(2.0) / alpha) + 1.0)
    v = minimise(lambda v: low_true(v) + high_false(v), low, 0.0, points=200)
    value = min(math.log(2.0), low_true(v) + high_false(v))
    sufficient = min(math.log1p(math.exp(-2.0)), alpha * (1.0 - math.log(2.0)) ** 2)
    return Threshold(value, sufficient, 0.0, -1.0, "sample")


def _nce(described: Description, K: int) -> Threshold:
    options = described.options
    if options["samples"] is not None:
        raise ValueError("the threshold of nce is that of its expectation; make the loss with samples=None")
    noise = options["noise"]
    q = [1.0 / K] * K if noise is None else [float(x) for x in noise]
    if min(q) <= 0:
        raise ValueError("nce needs positive noise for every class: a class without noise has no false-logit cost")
    t = float(options["num_noise"])
    rates = sorted({t * x for x in q})
    included = bool(options["include_target"])

    def own(a: float, z: float) -> float:
        return softplus(math.log(a) - z) + (a * softplus(z - math.log(a)) if included else 0.0)

    def low_true(v: float) -> float:
        # with the label in the noise sum the true-class part is least at z = 0
        z = min(v, 0.0) if included else v
        return min(own(a, z) - (own(a, 0.0) if included else 0.0) for a in rates)

    def high_false(v: float) -> float:
        return min(a * softplus(v - math.log(a)) for a in rates)

    reach = 40.0 + max(abs(math.log(a)) for a in rates)
    v = minimise(lambda v: low_true(v) + high_false(v), -reach, 0.0 if included else reach, points=2000)
    value = low_true(v) + high_false(v)
    level = -1.0 if included else 0.0
    infimum: float | tuple[float, ...] = 0.0
    if included:
        by_label = [(1.0 + t * x) * math.log1p(t * x) - t * x * math.log(t * x) for x in q]
        infimum = by_label[0] if len(rates) == 1 else tuple(by_label)
    return Threshold(value, min(low_true(level), high_false(level)), infimum, level, "sample")


def _logit_norm(K: int, tau: float) -> Threshold:
    radius = 1.0 / tau
    low_true = softplus(math.log(K - 1) - radius / math.sqrt(K - 1))

    def high_false(angle: float) -> float:
        true = radius * math.cos(angle)
        if K == 2:
            return softplus(-true)
        rest = math.log(K - 2) - radius * math.sin(angle) / math.sqrt(K - 2)
        return softplus(softplus(rest) - true)

    high = high_false(minimise(high_false, 0.0, math.pi / 2.0))
    infimum = minima.logit_norm(K, tau)
    return Threshold(min(low_true, high) - infimum, None, infimum, 0.0, "sample")


def expected_threshold(batch_threshold: float, samples: int, batch_size: int) -> float:
    r"""Threshold of the mean loss over all batches of a size: the batch's threshold divided by C(samples, batch_size).

    If the mean is below it, no batch can reach its own threshold, and every pair of samples shares a batch.

    Args:
        batch_threshold: threshold of one batch.
        samples: n, the number of samples.
        batch_size: m, at least 2.

    Paper: 002, Lemma A.1.

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
    """Two samples whose loss is almost as small as possible and whose logits are not separated.

    Attributes:
        logits: [2, 2], float64.
        target: [2].
        excess: the sum of the two losses minus twice the infimum, at most the epsilon asked for.
        infimum: infimum of the loss of one sample, 0 except with label smoothing.
    """

    logits: Tensor
    target: Tensor
    excess: float
    infimum: float


def counterexample(loss: str | nn.Module | Description, epsilon: float = 1e-6) -> Counterexample:
    r"""Logits (2a, a) with label 0 and (-2a, -a) with label 1: a tiny loss, and yet no separation.

    The false logit a of the first sample exceeds the true logit -a of the second. a is chosen so that the loss is
    within epsilon of its infimum: cross-entropy's sum is 2 log(1 + e^-a), max-margin's is 0 from a = margin on,
    label smoothing reaches its infimum at a = log((2 - alpha)/alpha), and soft logit normalisation behaves like
    cross-entropy with the margin a^(1-gamma)/(tau 5^(gamma/2)).

    Args:
        loss: ce, ls, focal, sln, max-margin or soft-margin, by create name or Module.
        epsilon: how close to the infimum, above 0.

    Returns:
        Counterexample. `excess` is computed from the formula above, not from the library's loss.

    Raises:
        ValueError: for an aligned loss, which has none (see `threshold`), or one not analysed.

    Paper: 002, Section 3.

    Example:
        >>> found = counterexample("ce", 1e-3)
        >>> bool(found.logits[0, 1] > found.logits[1, 1]), found.excess <= 1e-3
        (True, True)
    """
    described = describe(loss)
    if not epsilon > 0:  # NaN too
        raise ValueError(f"epsilon must be positive, got {epsilon}")
    margin_for = -math.log(math.expm1(min(epsilon / 2.0, 700.0)))  # softplus(-margin_for) = epsilon/2
    infimum = 0.0
    match described.name:
        case "ce" | "ls":
            a, infimum, excess = _smoothed(described, margin_for)
        case "focal":
            a, excess = _grow(lambda a: 2.0 * sigmoid(-a) ** described.number("gamma") * softplus(-a), epsilon)
        case "soft-margin":
            a = max(margin_for, 0.0) + described.number("margin") + 1.0
            excess = 2.0 * softplus(described.number("margin") - a)
        case "max-margin":
            a, excess = described.number("margin"), 0.0
        case "sln":
            a, excess = _soft_logit_norm(described, epsilon)
        case name if name in ALIGNED:
            raise ValueError(f"{name} is aligned with logit separation and has no counter-example")
        case name:
            raise ValueError(f"no counter-example is known for {name!r}; those with one are {', '.join(NOT_ALIGNED)}")
    logits = torch.tensor([[2.0 * a, a], [-2.0 * a, -a]], dtype=torch.float64)
    return Counterexample(logits, torch.tensor([0, 1]), excess, infimum)


def _grow(total: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """Double a until the sum of both losses is at most epsilon."""
    a = 1.0
    while total(a) > epsilon:
        a *= 2.0
    return a, total(a)


def _smoothed(described: Description, margin_for: float) -> tuple[float, float, float]:
    alpha, T = described.number("label_smoothing"), described.number("temperature")
    if alpha == 0:
        a = max(margin_for, 0.0) + 1.0
        return a * T, 0.0, 2.0 * softplus(-a)
    if alpha >= 1:
        raise ValueError(f"label_smoothing = {alpha} has no true class")
    a = math.log((2.0 - alpha) / alpha)
    infimum = softplus(-a) + alpha / 2.0 * a
    return a * T, infimum, 0.0


def _soft_logit_norm(described: Description, epsilon: float) -> tuple[float, float]:
    gamma, smoothing = described.number("gamma"), described.number("label_smoothing")
    if gamma >= 1 or smoothing != 0:
        raise ValueError(
            f"sln has a counter-example for gamma < 1 and no label_smoothing, got gamma = {gamma}, "
            f"label_smoothing = {smoothing}"
        )
    scale = float(resolve_tau(described.options["tau"], 2, gamma)) * 5.0 ** (gamma / 2.0)

    def total(a: float) -> float:
        return 2.0 * softplus(-(a ** (1.0 - gamma)) / scale)

    return _grow(total, epsilon)
