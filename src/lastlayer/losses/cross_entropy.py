"""Cross-entropy, the loss that all others here are compared with."""

import torch.nn.functional as F
from torch import Tensor

from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import Kind, RowForm, SoftmaxForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate, normaliser
from lastlayer.losses.target import Problem, Target, check_range, read


def cross_entropy(
    logits: Tensor,
    target: Target,
    *,
    temperature: float = 1.0,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of softmax(z / T).

        L_k = log sum_j exp(z_j / T) - z_k / T

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        target: class indices (N, ...), class probabilities (N, K, ...), or a mixed pair (y_a, y_b, lam).
        temperature: T > 0.
        label_smoothing: a in [0, 1]. The target becomes (1 - a) t + a / K.
        weight: one number per class, (K,).
        ignore_index: samples with this label do not count.
        reduction: "none", "mean" or "sum".

    Returns:
        The loss in float32 or better: a scalar, or one value per sample with reduction="none". It equals
        `torch.nn.functional.cross_entropy` for every combination of arguments that both have.

    Class weights: the loss of a sample is sum_k t_k w_k L_k. With index targets the mean divides by the sum of the
    labels' weights, sum_n w_{y_n}, as in torch. With probabilities and mixed pairs it divides by the number of samples.
    Label smoothing does not change the divisor, so a rare class with a large weight adds to the loss of every sample.

    Degenerate cases: if the batch is empty or all labels are ignored, the mean is NaN and the sum is 0. With one class
    the loss is 0.

    Paper: none, the standard definition; label smoothing: Szegedy et al. 2016.
    Tests: tests/losses/test_cross_entropy.py::test_with_label_smoothing

    Example:
        >>> import torch
        >>> cross_entropy(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor(0.2395)
        >>> y_a, y_b = torch.tensor([0]), torch.tensor([2])
        >>> cross_entropy(torch.tensor([[2.0, 0.0, 0.0]]), (y_a, y_b, 0.75))
        tensor(0.7395)
    """
    check_range("temperature", temperature, 0.0, open_low=True)
    check_range("label_smoothing", label_smoothing, 0.0, 1.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    scores = problem.logits if _is_one(temperature) else problem.logits / temperature
    return softmax_cross_entropy(problem, scores, label_smoothing)


def softmax_cross_entropy(problem: Problem, scores: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of scores that were made from the problem's logits.

    With one label per sample torch's own kernels compute it. For class probabilities torch has no kernel: it sums
    products, and torch 2.11 fails to compile that.
    """
    if len(problem.labels) != 1:  # class probabilities or a mixed pair
        log_p = F.log_softmax(scores, dim=1)
        return evaluate(problem, lambda at: -at(log_p), label_smoothing)
    (labels,) = problem.labels
    # torch's weighted mean of a smoothed loss selects the valid labels, which makes the CPU wait for the GPU.
    divide = label_smoothing and problem.weight is not None and problem.reduction == "mean"
    loss = F.cross_entropy(
        scores,
        labels.given,
        weight=problem.weight,
        ignore_index=-100 if labels.ignored is None else labels.ignored,
        reduction="sum" if divide else problem.reduction,
        label_smoothing=label_smoothing,
    )
    if divide:
        return loss / normaliser(problem)
    return loss.squeeze(0) if problem.unbatched and problem.reduction == "none" else loss


def _is_one(temperature: Tensor | float) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 1.0


@register("ls", label_smoothing=0.1)
@register("ce")
class CrossEntropyLoss(Loss):
    """`cross_entropy` as a Module; `ce` by name, `ls` with label_smoothing=0.1."""

    function = staticmethod(cross_entropy)
    complexity = 0
    row_form = RowForm(Kind.SOFTMAX, lambda o, K: (1 / o["temperature"], 0.0, o["label_smoothing"]), smooths=True)
    class_form = SoftmaxForm(temperature="temperature", learnable=("temperature",))
    temperature: float

    def scores(self, logits: Tensor) -> Tensor:
        return at_least_float32(logits) / self.temperature

    def probability_formula(self) -> str:
        return "softmax(z)" if self.temperature == 1 else f"softmax(z / {self.temperature:g})"
