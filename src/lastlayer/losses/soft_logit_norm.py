"""Soft logit normalization (SLN), and logit normalization (LN), which is SLN with gamma = 1."""

from typing import Any

import torch
from torch import Tensor

from lastlayer._core.unit import soft_normalize
from lastlayer.losses.cross_entropy import softmax_cross_entropy
from lastlayer.losses.forms import Kind, RowForm, SoftmaxForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Problem, Target, check_range, read

LONGEST_FUSED_ROW = 1024  # up to this many classes, compiled code reads a row from memory only once


def default_tau(num_classes: int, gamma: float = 0.7) -> float:
    """The default temperature of SLN for a number of classes.

        tau(K) = 0.2 (K / 10)^(-gamma / 2)

    The norm of K logits grows like sqrt(K). The temperature shrinks like its gamma-th power, so that the normalised
    logits stay in range.

    Paper: SLN 2025, appendix A, with the exponent corrected.
    Tests: tests/losses/test_loss.py::test_default_tau

    Example:
        >>> [round(default_tau(K), 4) for K in (10, 100, 1000)]
        [0.2, 0.0893, 0.0399]
    """
    if num_classes < 1:
        raise ValueError(f"num_classes must be at least 1, got {num_classes}")
    tau: float = 0.2 * (num_classes / 10) ** (-gamma / 2)
    return tau


def resolve_tau(tau: float | None, num_classes: int, gamma: float) -> float:
    """The given temperature, or `default_tau` if it is None. ValueError if it is not positive."""
    if tau is None:
        tau = default_tau(num_classes, gamma)
    check_range("tau", tau, 0.0, open_low=True)
    return tau


def soft_logit_norm(
    logits: Tensor,
    target: Target,
    *,
    gamma: float = 0.7,
    tau: float | None = None,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Soft logit normalization (SLN): cross-entropy of logits divided by a power of their norm.

        s = z / (tau ||z||_2^gamma),    L_k = log sum_j exp(s_j) - s_k

    gamma = 0 is cross-entropy at temperature tau, and gamma = 1 is `logit_norm`. No epsilon is added to the norm.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        gamma: exponent of the norm, in [0, 1].
        tau: temperature > 0. None takes `default_tau(K, gamma)`.
        label_smoothing: a in [0, 1]. The target becomes (1 - a) t + a / K.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Degenerate cases: if all logits of a sample are exactly zero, the loss is log K and its gradient is 0. Near zero the
    gradient grows like ||z||^-gamma, as the formula says. If it is too large for float16, it is infinite, so that
    `torch.amp.GradScaler` sees it and skips the step.

    Paper: SLN 2025, equation 2.
    Tests: tests/losses/test_numerics.py::TestSoftLogitNorm::test_exact_at_every_size_in_float32

    Example:
        >>> import torch
        >>> soft_logit_norm(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), tau=0.5)
        tensor(0.1574)
    """
    check_range("gamma", gamma, 0.0, 1.0)
    check_range("label_smoothing", label_smoothing, 0.0, 1.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    raw = problem.logits
    long = raw.shape[1] > LONGEST_FUSED_ROW and raw.dtype is torch.float32
    learnable = any(isinstance(number, Tensor) for number in (gamma, tau))
    if torch.compiler.is_compiling() and long and not learnable:
        return _in_fewer_passes(problem, raw, gamma, tau, label_smoothing)
    return softmax_cross_entropy(problem, soft_normalized(raw, gamma, tau), label_smoothing)


def logit_norm(
    logits: Tensor,
    target: Target,
    *,
    tau: float | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Logit normalization (LN): cross-entropy of logits divided by their norm. It is `soft_logit_norm` with gamma = 1.

        s = z / (tau ||z||_2),    L_k = log sum_j exp(s_j) - s_k

    The loss does not change when the logits are multiplied by a positive number.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        tau: temperature > 0. None takes `default_tau(K, 1.0)`.
        target, weight, ignore_index, reduction: as in `cross_entropy`.

    Returns:
        The loss, as in `cross_entropy`. Its infimum is log(1 + (K - 1) exp(-sqrt(K / (K - 1)) / tau)), not 0.

    Degenerate cases: as in `soft_logit_norm`.

    Paper: Wei et al. 2022.
    Tests: tests/losses/test_properties.py::test_logit_norm_never_goes_below_its_infimum

    Example:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.0, 0.0]])
        >>> logit_norm(z, torch.tensor([0]), tau=0.5), logit_norm(100 * z, torch.tensor([0]), tau=0.5)
        (tensor(0.2395), tensor(0.2395))
    """
    return soft_logit_norm(
        logits, target, gamma=1.0, tau=tau, weight=weight, ignore_index=ignore_index, reduction=reduction
    )


def soft_normalized(logits: Tensor, gamma: float, tau: float | None) -> Tensor:
    """The logits as they enter SLN's softmax. The classes are on axis 1, or on axis 0 for a single sample."""
    axis = min(1, logits.dim() - 1)
    return soft_normalize(logits, gamma, resolve_tau(tau, logits.shape[axis], gamma), dim=axis)


def _in_fewer_passes(problem: Problem, z: Tensor, gamma: float, tau: float | None, label_smoothing: float) -> Tensor:
    """The loss for compiled code and long float32 rows, where each pass over the logits reads them from memory again.

    With c the largest logit and a = 1 / (tau ||z||^gamma), L_k = log sum_j exp(a (z_j - c)) - a (z_k - c).
    """
    tau = resolve_tau(tau, z.shape[1], gamma)
    log_sum, factor, largest, *_ = _LogSum.apply(z, gamma, tau)  # type: ignore[no-untyped-call]
    return evaluate(problem, lambda at: log_sum - factor * (at(z) - largest), label_smoothing)


class _LogSum(torch.autograd.Function):
    """log sum_j exp(a (z_j - c)) and a, for compiled code, with a gradient that needs no sum over the row.

    d log_sum / dz = a p - gamma a E_p[z - c] z / ||z||^2. The forward pass computes the expectation while it sums p.
    The norm is summed in float64, which can hold the square of every float32.
    """

    @staticmethod
    def forward(z: Tensor, gamma: float, tau: float) -> tuple[Tensor, ...]:
        norm = z.double().square().sum(1, keepdim=True).sqrt()
        factor = torch.where(norm > 0, norm.pow(-gamma) / tau, 0.0)
        factor = factor.clamp(max=torch.finfo(z.dtype).max).to(z.dtype)
        largest = z.amax(1, keepdim=True)
        shifted = z - largest
        terms = (factor * shifted).exp()
        total = terms.sum(1, keepdim=True)
        mean = (terms * shifted).sum(1, keepdim=True) / total
        return total.log(), factor, largest, mean, torch.where(norm > 0, norm, 1.0).to(z.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: tuple[Tensor, ...]) -> None:
        ctx.gamma = inputs[1]
        ctx.save_for_backward(inputs[0], *output)
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, d_log_sum: Tensor, d_factor: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        z, log_sum, factor, largest, mean, norm = ctx.saved_tensors
        p = (factor * (z - largest) - log_sum).exp()
        along = ctx.gamma * factor * ((d_log_sum * mean + d_factor) / norm)
        return d_log_sum * factor * p - along * (z / norm), None, None


class _Normalized:
    """What both losses share: the logits as they enter the softmax, its formula, and where a search starts."""

    learning_rate = 0.01
    probe_rate = 0.003
    weight_decay = 5e-3
    num_classes: int | None
    gamma: float
    tau: float | None

    def scores(self, logits: Tensor) -> Tensor:
        return soft_normalized(logits, self.gamma, self.tau)

    def probability_formula(self) -> str:
        gamma, tau, K = self.gamma, self.tau, self.num_classes
        if tau is None and K is None:
            return f"softmax(z / (0.2 (K / 10)^{-gamma / 2:g} ||z||^{gamma:g}))"
        return f"softmax(z / ({resolve_tau(tau, K or 0, gamma):.9g} ||z||^{gamma:g}))"


@register("sln")
class SoftLogitNormLoss(_Normalized, Loss):
    """`soft_logit_norm` as a Module; `sln` by name. Its probabilities are the softmax of the normalised logits."""

    function = staticmethod(soft_logit_norm)
    row_form = RowForm(Kind.NORM, lambda o, K: (1 / resolve_tau(o["tau"], K, o["gamma"]), o["gamma"]))
    class_form = SoftmaxForm(
        norm=lambda o, K: (o["gamma"], resolve_tau(o["tau"], K, o["gamma"])), learnable=("gamma", "tau")
    )


@register("ln")
class LogitNormLoss(_Normalized, Loss):
    """`logit_norm` as a Module; `ln` by name. Its probabilities are the softmax of the normalised logits."""

    function = staticmethod(logit_norm)
    row_form = RowForm(Kind.NORM, lambda o, K: (1 / resolve_tau(o["tau"], K, 1.0), 1.0))
    class_form = SoftmaxForm(norm=lambda o, K: (1.0, resolve_tau(o["tau"], K, 1.0)), learnable=("tau",))
    aligned = True
    gamma = 1.0
