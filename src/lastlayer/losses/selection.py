"""Evaluates L_k, the loss of a sample with label k: at the label of each sample, or at every class.

A per-sample loss is written once, as a function of a selection of classes. With index targets the selection is the
label, and the result has shape (N, 1, ...). With probability targets it is every class, and the result is (N, K, ...).
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.losses.target import Problem


class Selection(Protocol):
    """The classes k at which L_k is computed."""

    def __call__(self, values: Tensor) -> Tensor:
        """The entries of values (N, K, ...) at the selected classes."""

    def sum_others(self, terms: Tensor) -> Tensor:
        """Sum of non-negative terms over all classes but the selected one."""

    def max_others(self, scores: Tensor) -> Tensor:
        """Largest score among all classes but the selected one; -inf if there is no other class."""

    def cross_entropy(self, logits: Tensor, replaced: Tensor) -> Tensor:
        """Cross-entropy at the selected class, with its logit replaced by the one given. Exact for small losses too."""


class AtLabel:
    """Selects the label of each sample.

    Eager code gathers and scatters. The compiler cannot fuse a scatter, and the gradient of a gather is a scatter, so
    it would hold two more buffers of N x K. It can fuse a comparison of every class with the label.
    """

    def __init__(self, index: Tensor) -> None:
        self.index = index  # (N, 1, ...)

    def __call__(self, values: Tensor) -> Tensor:
        values = values.expand(self.index.shape[0], -1, *self.index.shape[2:])
        if torch.compiler.is_compiling() and values.is_floating_point():
            return torch.where(self.mask(values), values, 0.0).sum(1, keepdim=True)
        return values.gather(1, self.index)

    def mask(self, like: Tensor) -> Tensor:
        """A mask of shape (N, K, ...) that is True at the labels."""
        classes = torch.arange(like.shape[1], device=like.device)
        return classes.reshape(1, -1, *[1] * (like.dim() - 2)) == self.index

    def fill(self, values: Tensor, number: float) -> Tensor:
        """The values, with those at the labels replaced by a number."""
        if torch.compiler.is_compiling():
            return values.masked_fill(self.mask(values), number)
        return values.scatter(1, self.index, number)

    def sum_others(self, terms: Tensor) -> Tensor:
        return self.fill(terms, 0.0).sum(1, keepdim=True)

    def max_others(self, scores: Tensor) -> Tensor:
        return self.fill(scores, float("-inf")).amax(1, keepdim=True)

    def cross_entropy(self, logits: Tensor, replaced: Tensor) -> Tensor:
        # log_softmax would not do: for a confident sample it rounds away the probability of the other classes.
        others = self.fill(logits, float("-inf"))
        largest = others.detach().amax(1, keepdim=True).clamp(min=torch.finfo(logits.dtype).min)  # one class: -inf
        # exp keeps only its result for the backward pass. logsumexp would keep its input and make two more tensors.
        total = (others - largest).exp().sum(1, keepdim=True)
        # If there is no other class, or all others are masked by -inf, the logarithm would have the gradient 0 x inf.
        alone = total == 0
        return torch.where(alone, 0.0, softplus(torch.where(alone, 1.0, total).log() - (replaced - largest)))


class AtEveryClass:
    """Selects all K classes.

    The sum over the other classes is the whole sum minus one term. If that term is the largest, the difference loses
    digits. So for the largest term the others are summed directly.
    """

    def __call__(self, values: Tensor) -> Tensor:
        return values

    def sum_others(self, terms: Tensor) -> Tensor:
        top = AtLabel(terms.argmax(1, keepdim=True))
        return torch.where(top.mask(terms), top.sum_others(terms), terms.sum(1, keepdim=True) - terms)

    def max_others(self, scores: Tensor) -> Tensor:
        top = AtLabel(scores.argmax(1, keepdim=True))
        largest = scores.amax(1, keepdim=True)
        tied = scores == largest
        ties = tied.sum(1, keepdim=True)
        # amax shares its gradient among tied scores. If the selected class is one of them, the others get its share.
        without_own = largest + (largest - scores) / (ties - 1).clamp(min=1)
        unique = torch.where(top.mask(scores), top.max_others(scores), largest)
        return torch.where(tied & (ties > 1), without_own, unique)

    def cross_entropy(self, logits: Tensor, replaced: Tensor) -> Tensor:
        largest = logits.detach().amax(1, keepdim=True)
        logits, replaced = logits - largest, replaced - largest
        top = AtLabel(logits.argmax(1, keepdim=True))
        is_top = top.mask(logits)
        exponentials = logits.exp()
        # At all classes but the largest one, the rest of the sum is at least 1, so its logarithm is safe.
        rest = torch.where(is_top, 1.0, exponentials.sum(1, keepdim=True) - exponentials)
        # Not -inf: if all others are masked by -inf, or there are none, the second derivative would be NaN.
        without_top = top.fill(logits, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)
        return softplus(torch.where(is_top, without_top, rest.log()) - replaced)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x). torch's default turns linear at 20, an error of 1e-10. At 40 the two agree to the last bit."""
    return F.softplus(x, threshold=40.0)


def evaluate(problem: Problem, loss: Callable[[Selection], Tensor], label_smoothing: float = 0.0) -> Tensor:
    """Reduce sum_k t_k w_k L_k over the samples. `loss` computes L_k at a selection of classes.

    Label smoothing replaces t by (1 - a) t + a / K. `normaliser` says by what the mean divides, as in torch.
    """
    weight = None if problem.weight is None else problem.row_of_classes(problem.weight)

    def weighted(at: Selection, values: Tensor) -> Tensor:
        return values if weight is None else values * at(weight)

    if problem.probabilities is not None:
        shares = problem.probabilities
        if label_smoothing:
            shares = (1 - label_smoothing) * shares + label_smoothing / problem.logits.shape[1]
        every = AtEveryClass()
        per_sample = (shares * weighted(every, loss(every))).sum(1)
        return problem.reduce(per_sample, normaliser(problem))

    per_class = loss(AtEveryClass()) if label_smoothing else None
    parts = []
    for labels in problem.labels:
        at_label = AtLabel(labels.index)
        value = weighted(at_label, loss(at_label) if per_class is None else at_label(per_class)).squeeze(1)
        if per_class is not None:
            uniform = weighted(AtEveryClass(), per_class).mean(1)
            value = (1 - label_smoothing) * value + label_smoothing * uniform
        parts.append(torch.where(labels.valid, labels.share * value, 0.0))
    return problem.reduce(sum(parts[1:], parts[0]), normaliser(problem))


def normaliser(problem: Problem) -> Tensor | int:
    """The divisor of the mean: the sum of the labels' weights if each sample has one label, else the number of samples.

    An ignored label does not count. In a mixed pair it takes away only its own share of the sample.
    """
    if problem.probabilities is not None:
        return problem.probabilities.shape[0] * math.prod(problem.probabilities.shape[2:])
    counts = []
    for labels in problem.labels:
        share = labels.share
        if problem.weight is not None and len(problem.labels) == 1:
            share = AtLabel(labels.index)(problem.row_of_classes(problem.weight)).squeeze(1)
        counts.append((labels.valid.to(problem.logits.dtype) * share).sum())
    return sum(counts[1:], counts[0])
