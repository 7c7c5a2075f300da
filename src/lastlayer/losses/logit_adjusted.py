"""Logit adjustment: cross-entropy with the logarithms of the class frequencies added to the logits."""

from collections.abc import Sequence

from torch import Tensor

from lastlayer.losses.cross_entropy import softmax_cross_entropy
from lastlayer.losses.forms import Kind, Options, RowForm, SoftmaxForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.target import Target, check_range, is_violated, read, read_class_vector


def logit_adjusted(
    logits: Tensor,
    target: Target,
    *,
    counts: Tensor | Sequence[int],
    tau: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Logit-adjusted cross-entropy, for training sets in which some classes are rare.

        L_k = cross-entropy of z + tau log(n / sum n)

    Predict with the plain logits. They rank the classes as if all were equally frequent.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        counts: n, the number of training samples of each class, (K,), all positive.
        tau: strength >= 0. With 1 the loss is consistent for the balanced error.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Paper: Menon et al. 2021.
    Tests: tests/losses/test_values.py::test_index_targets

    Example:
        >>> import torch
        >>> logit_adjusted(torch.zeros(1, 2), torch.tensor([1]), counts=[90, 10])
        tensor(2.3026)
    """
    check_range("tau", tau, 0.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    prior = problem.row_of_classes(_log_prior(counts, problem.logits))
    return softmax_cross_entropy(problem, problem.logits + tau * prior)


def _log_prior(counts: Tensor | Sequence[int], logits: Tensor) -> Tensor:
    """log(n / sum n), (K,). Raises ValueError for a class without samples, if the counts may be read."""
    frequencies = read_class_vector(counts, "counts", logits)
    if is_violated(lambda n: (n > 0).all(), frequencies):
        raise ValueError("counts must be positive: a class without training samples has no logarithm to add")
    return (frequencies / frequencies.sum()).log()


def _offset(options: Options, logits: Tensor) -> Tensor:
    offset: Tensor = options["tau"] * _log_prior(options["counts"], logits)
    return offset


@register("logit-adjusted")
class LogitAdjustedLoss(Loss):
    """`logit_adjusted` as a Module; `logit-adjusted` by name."""

    function = staticmethod(logit_adjusted)
    row_form = RowForm(Kind.SOFTMAX, lambda o, K: (1.0,), offset=_offset)
    class_form = SoftmaxForm(offset=_offset)
