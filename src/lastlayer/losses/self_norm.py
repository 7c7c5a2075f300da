"""Cross-entropy that also pulls the log-partition to zero, so that each logit is a log-probability by itself."""

from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import Kind, Options, RowForm, SoftmaxForm, Sums, cross_entropy_of
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Target, check_range, read


def self_norm(
    logits: Tensor,
    target: Target,
    *,
    alpha: float = 0.1,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Self-normalised cross-entropy.

        L_k = lse(z) - z_k + alpha lse(z)^2,    lse(z) = log sum_j exp(z_j)

    The loss is aligned with logit separation: if its sum over the samples is below
    min(log(1 + e^-2), alpha (1 - log 2)^2), every true logit exceeds every false one.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        alpha: strength of the second term, >= 0.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Paper: Devlin et al. 2014; as in Keren et al. 2018, section 4.1, with the threshold corrected.
    Tests: tests/losses/test_self_norm.py::TestSelfNorm::test_threshold

    Example:
        >>> import torch
        >>> self_norm(torch.tensor([[0.0, -8.0, -8.0]]), torch.tensor([0]))
        tensor(0.0007)
    """
    check_range("alpha", alpha, 0.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    # A large number common to all logits would cost digits of lse(z) - z_k. So subtract the largest logit first.
    largest = problem.logits.detach().amax(1, keepdim=True)
    shifted = problem.logits - largest
    partition = shifted.exp().sum(1, keepdim=True).log()
    penalty = alpha * (partition + largest).square()
    return evaluate(problem, lambda at: partition - at(shifted) + penalty)


def _of_sums(sums: Sums, options: Options) -> Tensor:
    strength: Tensor = sums.mass * options["alpha"]
    return cross_entropy_of(sums, options) + strength * (sums.log_sum + sums.largest).square()


@register("self-norm")
class SelfNormLoss(Loss):
    """`self_norm` as a Module; `self-norm` by name."""

    function = staticmethod(self_norm)
    row_form = RowForm(Kind.PARTITION, lambda o, K: (1.0, o["alpha"]))
    class_form = SoftmaxForm(value=_of_sums, learnable=("alpha",))
    aligned = True

    def log_single(self, logits: Tensor) -> Tensor:
        """The logit itself: the loss is smallest at z_j = log p_j."""
        return at_least_float32(logits)
