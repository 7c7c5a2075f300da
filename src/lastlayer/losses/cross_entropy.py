"""Cross-entropy, the loss every other one here is compared with."""

from __future__ import annotations

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
        label_smoothing: a in [0, 1]; the target becomes (1 - a) t + a / K.
        weight: one number a class, (K,).
        ignore_index: a label that counts for nothing.
        reduction: "none", "mean" or "sum".

    Returns:
        The loss, in float32 or better: a scalar, or one value a sample for "none". The value is that of
        `torch.nn.functional.cross_entropy` for every combination of arguments the two share.

    Class weights: a sample counts sum_k t_k w_k L_k. With index targets the mean divides by the sum of the labels'
    weights, sum_n w_{y_n}; with probabilities and mixed pairs by the number of samples. Together with smoothing the
    smoothed part a/K sum_k w_k L_k carries the weight of every class, while the divisor is still sum_n w_{y_n}: a rare
    label with a large weight then takes part in every sample's loss. That is torch's definition, kept to the digit.

    Degenerate cases: the mean over an empty or wholly ignored batch is NaN, the sum 0; with one class the loss is 0.

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
    """Cross-entropy of scores made from the problem's logits; of one label a sample by torch's own kernels.

    Torch's loss of class probabilities is no kernel but a sum of products, and torch 2.11 fails to compile it.
    """
    if len(problem.labels) != 1:  # class probabilities or a mixed pair
        log_p = F.log_softmax(scores, dim=1)
        return evaluate(problem, lambda at: -at(log_p), label_smoothing)
    (labels,) = problem.labels
    # torch's own weighted mean of a smoothed loss selects the valid labels, which makes the host wait for the device.
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
    row_form = RowForm(Kind.SOFTMAX, lambda o, K: (1 / o["temperature"], 0.0, o["label_smoothing"]), smooths=True)
    class_form = SoftmaxForm(temperature="temperature", learnable=("temperature",))
    temperature: float

    def scores(self, logits: Tensor) -> Tensor:
        return at_least_float32(logits) / self.temperature

    def probability_formula(self) -> str:
        return "softmax(z)" if self.temperature == 1 else f"softmax(z / {self.temperature:g})"
