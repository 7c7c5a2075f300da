"""Noise-contrastive estimation: each logit learns by itself to tell its class from noise."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer._core.labels import INTEGERS
from lastlayer._core.precision import at_least_float32
from lastlayer.losses.forms import DrawnForm, Kind, Options, RowForm
from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import Selection, evaluate, softplus
from lastlayer.losses.target import (
    Problem,
    Target,
    check_label_range,
    check_range,
    is_violated,
    read,
    read_class_vector,
)


def nce(
    logits: Tensor,
    target: Target,
    *,
    num_noise: int = 25,
    noise: Tensor | None = None,
    samples: Tensor | None = None,
    include_target: bool = True,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Noise-contrastive estimation: is this label data, or one of t labels drawn from a noise distribution q?

        g_j = sigmoid(z_j - log(t q_j))
        L_k = -log g_k - t sum_j q_j log(1 - g_j)                      in expectation over the noise
        L_k = -log g_k - sum_{j among the t labels drawn} log(1 - g_j)     with samples

    Args:
        logits: (N, K), (N, K, ...) or (K,).
        num_noise: t, the number of noise labels per sample, unless `samples` are given.
        noise: q, the probabilities of the classes under the noise, (K,). None is uniform. A class with q = 0 is never
            drawn as noise, and its loss as a label is 0.
        samples: the drawn labels, (t,) for the whole batch or (N, t). None takes the exact expectation.
        include_target: whether the noise sum includes the label, as printed in the paper. Then the loss cannot reach
            0: with a = t q_y its infimum is (1 + a) log(1 + a) - a log a, at z_y = 0.
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`.

    Paper: Gutmann and Hyvärinen 2010; as in Keren et al. 2018, equation 3.
    Tests: tests/losses/test_nce.py::test_the_exact_loss_is_the_mean_over_all_draws

    Example:
        >>> import torch
        >>> nce(torch.tensor([[0.0, -9.0, -9.0]]), torch.tensor([0]), num_noise=3)
        tensor(1.3865)
    """
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    if samples is not None:
        samples = read_samples(samples, problem)
        num_noise = samples.shape[1]
    if not isinstance(num_noise, int):
        raise TypeError(f"num_noise must be an integer, got {type(num_noise).__name__}")
    check_range("num_noise", num_noise, 1)
    expected = problem.row_of_classes(expected_noise(num_noise, noise, problem.logits))
    possible = expected > 0
    # If q = 0, the score is +inf. As a label the class costs 0. As noise it costs 0 times infinity, whose limit is 0.
    scores = problem.logits - torch.where(possible, expected, 1.0).log()
    if samples is None:
        terms = expected * softplus(scores)  # (N, K, ...)
    else:
        drawn = softplus(scores.gather(1, samples))  # (N, t, ...)
        terms = torch.zeros_like(scores).scatter_add(1, samples, drawn)
    every = terms.sum(1, keepdim=True) if include_target else None

    def loss(at: Selection) -> Tensor:
        positive = torch.where(at(possible), softplus(-at(scores)), 0.0)
        return positive + (at.sum_others(terms) if every is None else every)

    return evaluate(problem, loss)


def expected_noise(num_noise: int, noise: Tensor | None, logits: Tensor) -> Tensor:
    """The expected number t q of noise labels of each class, (K,)."""
    if noise is None:
        return torch.full(logits.shape[1:2], num_noise / logits.shape[1], dtype=logits.dtype, device=logits.device)
    q = read_class_vector(noise, "noise", logits)
    # The tolerance is wide because a model in bfloat16 rounds its buffers.
    if is_violated(lambda q: (q >= 0).all() & ((q.sum() - 1).abs() < 0.01), q):
        raise ValueError(
            "noise must be probabilities: none negative, with sum 1 (divide counts by their sum); got smallest "
            f"{q.min():.6g} and sum {q.sum():.6g}"
        )
    return num_noise * q


def read_samples(samples: Tensor, problem: Problem) -> Tensor:
    """Check drawn labels and bring them to shape (N, t, ...)."""
    if not isinstance(samples, Tensor) or samples.dtype not in INTEGERS:
        raise TypeError("samples must be a tensor of class indices in an integer dtype")
    rows, extra = problem.logits.shape[0], problem.logits.shape[2:]
    check_label_range("samples", samples.long(), problem.logits.shape[1])
    if samples.dim() not in (1, 2) or (samples.dim() == 2 and samples.shape[0] != rows):
        raise ValueError(f"samples must have shape (t,) or ({rows}, t), got {tuple(samples.shape)}")
    samples = samples.long().reshape(-1, samples.shape[-1], *[1] * len(extra))  # (1, t, ...) or (N, t, ...)
    return samples.expand(rows, -1, *extra)


def _drawn(options: Options, problem: Problem) -> tuple[Tensor, Tensor]:
    drawn = read_samples(options["samples"], problem)
    return drawn, expected_noise(drawn.shape[1], options["noise"], problem.logits)


def _numbers(options: Options, K: int) -> tuple[float, ...]:
    expected = options["num_noise"] / K
    return 1.0, -math.log(expected), expected, options["include_target"]


@register("nce")
class NceLoss(Loss):
    """`nce` as a Module; `nce` by name. Its probabilities are g, one per class: is this data of the class, or noise?"""

    function = staticmethod(nce)
    row_form = RowForm(Kind.BINARY, _numbers)
    class_form = DrawnForm(read=_drawn)
    aligned = True
    sums_to_one = False
    include_target: bool
    num_noise: int
    noise: Tensor | None
    samples: Tensor | None

    def probabilities(self, logits: Tensor) -> Tensor:
        """g_j = sigmoid(z_j - log(t q_j)): K independent answers that need not sum to 1."""
        z = at_least_float32(logits)
        batched = z.unsqueeze(0) if z.dim() == 1 else z
        offset = expected_noise(self._draws(), self.noise, batched).log()
        g = torch.sigmoid(batched - offset.reshape(1, -1, *[1] * (batched.dim() - 2)))
        return g.squeeze(0) if z.dim() == 1 else g

    def log_single(self, logits: Tensor) -> Tensor:
        """The logit itself, whatever the noise is: the loss is smallest at z_j = log p_j.

        Without the label in the noise sum it is smallest at the log-odds z_j = log(p_j / (1 - p_j)).
        """
        z = at_least_float32(logits)
        return z if self.include_target else F.logsigmoid(z)

    def probability_formula(self) -> str:
        noise = "1 / K" if self.noise is None else "the noise distribution"
        return f"sigmoid(z - log({self._draws()} q)), q = {noise}"

    def _draws(self) -> int:
        return self.num_noise if self.samples is None else self.samples.shape[-1]
