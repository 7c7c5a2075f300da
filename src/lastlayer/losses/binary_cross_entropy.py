"""One-vs-all binary cross-entropy, summed over the classes."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import BinaryForm, Kind, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import Selection, evaluate, normaliser, softplus
from lastlayer.losses.target import Target, check_range, read, read_class_vector


def binary_cross_entropy(
    logits: Tensor,
    target: Target,
    *,
    label_smoothing: float = 0.0,
    pos_weight: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The sum of K logistic losses, one per class.

        L(t) = w sum_j [a_j t_j softplus(-z_j) + (1 - t_j) softplus(z_j)],    w = sum_k t_k w_k, or 1 without weights

    where a is the `pos_weight`. For label k the target is t = e_k, and the loss is
    softplus(-z_k) + sum_{j != k} softplus(z_j). The loss is aligned with logit separation: if its sum over the samples
    is below log 2, every true logit exceeds every false one.

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        target: class indices (N, ...), a mixed pair (y_a, y_b, lam), or any t in [0, 1]^K of shape (N, K, ...), such as
            class probabilities or the zeros and ones of a multi-label problem.
        label_smoothing: a in [0, 1]. The target becomes (1 - a) t + a / K, also in the class weight w.
        pos_weight: factor on the positive term of each class, (K,). Values above 1 raise recall.
        weight, ignore_index, reduction: as in `cross_entropy`.

    Returns:
        The loss, as in `cross_entropy`. The mean is over samples, not over classes, and has the same divisor.

    Paper: Keren et al. 2018, section 4.3, with the sign of the second term corrected.
    Tests: tests/losses/test_values.py::test_binary_cross_entropy_weighs_the_row

    Example:
        >>> import torch
        >>> binary_cross_entropy(torch.tensor([[4.0, -4.0, -4.0]]), torch.tensor([0]))
        tensor(0.0544)
        >>> binary_cross_entropy(torch.tensor([[4.0, 4.0, -4.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
        tensor(0.0544)
    """
    check_range("label_smoothing", label_smoothing, 0.0, 1.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    factor: Tensor | float = 1.0
    if pos_weight is not None:
        factor = problem.row_of_classes(read_class_vector(pos_weight, "pos_weight", problem.logits))
    negative = softplus(problem.logits)

    def loss(at: Selection) -> Tensor:
        positive = softplus(-at(problem.logits))
        return (at(factor) if isinstance(factor, Tensor) else factor) * positive + at.sum_others(negative)

    rows = dataclasses.replace(problem, weight=None, reduction="none", unbatched=False)
    if problem.probabilities is not None:
        t = (1 - label_smoothing) * problem.probabilities + label_smoothing / problem.logits.shape[1]
        per_sample = (t * factor * softplus(-problem.logits) + (1 - t) * negative).sum(1)
    else:
        per_sample = evaluate(rows, loss, label_smoothing)
    if problem.weight is not None:
        class_weight = problem.row_of_classes(problem.weight)
        per_sample = per_sample * evaluate(rows, lambda at: at(class_weight), label_smoothing)
    return problem.reduce(per_sample, normaliser(problem))


@register("bce")
class BinaryCrossEntropyLoss(Loss):
    """`binary_cross_entropy` as a Module; `bce` by name. Its probabilities are sigmoids, one per class."""

    function = staticmethod(binary_cross_entropy)
    complexity = 1
    row_form = RowForm(Kind.BINARY, lambda o, K: (1.0, 0.0, 1.0, 0.0))
    class_form = BinaryForm()
    aligned = True
    sums_to_one = False
    probe_rate = 0.03
    pos_weight: Tensor | None

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sigmoid of each logit: K independent answers that need not sum to 1."""
        return torch.sigmoid(at_least_float32(logits))

    def log_single(self, logits: Tensor) -> Tensor:
        """The logarithm of the sigmoid. A pos_weight a_j shifts the smallest loss to z_j = log(a_j p_j / (1 - p_j))."""
        z = at_least_float32(logits)
        if self.pos_weight is None:
            return F.logsigmoid(z)
        return F.logsigmoid(z - self.pos_weight.to(z).log().reshape(-1, *[1] * max(z.dim() - 2, 0)))

    def probability_formula(self) -> str:
        return "sigmoid(z)"
