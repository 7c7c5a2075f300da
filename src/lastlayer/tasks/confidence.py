"""Calibration: whether predicted probabilities agree with how often they are right."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.tasks.accuracies import correct
from lastlayer.tasks.inputs import check_pair, check_probabilities, row_blocks


@dataclass(frozen=True)
class Calibration:
    """Calibration of predicted probabilities. For all three values, lower is better."""

    ece: Tensor  # expected calibration error of the top probability, in [0, 1]
    nll: Tensor  # mean of minus the logarithm of the label's probability
    brier: Tensor  # squared error, summed over the classes, mean over the samples


def calibration(probabilities: Tensor, target: Tensor, *, bins: int = 15) -> Calibration:
    """The expected calibration error, the negative log-likelihood and the Brier score.

        ECE   = sum_b (n_b / N) |accuracy_b - mean top probability_b|  over bins of the top probability
        NLL   = -(1/N) sum_n log p_n[y_n]
        Brier = (1/N) sum_n sum_j (p_n[j] - [j = y_n])^2

    The bins have equal width. Bin b holds top probabilities in (b / bins, (b + 1) / bins]. The first bin also holds 0.

    Args:
        probabilities: (N, K) in [0, 1], from `loss.probabilities(logits)`. Other values, such as logits, raise
            ValueError. The rows are not rescaled. They need not sum to 1, for example for sigmoids.
        target: (N,) labels of any integer dtype.
        bins: number of bins, 1 or more.

    Degenerate cases: if a label has probability 0, `nll` is infinite.

    Paper: Guo et al. 2017, ECE and NLL; Brier 1950, Brier score.
    Tests: tests/tasks/test_confidence.py::test_equals_peers_on_softmax

    Example:
        >>> result = calibration(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> [round(v.item(), 4) for v in (result.ece, result.nll, result.brier)]
        [0.4, 0.5697, 0.4]
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    probabilities, target = check_pair(probabilities, target, "probabilities")
    check_probabilities(probabilities, "probabilities")
    samples = probabilities.shape[0]
    top = probabilities.amax(dim=1).double()  # (N,)
    true = probabilities.gather(1, target[:, None]).squeeze(1).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=top.device)
    bin_ = torch.bucketize(top, edges[1:-1])
    # |number correct - sum of top probabilities| / N: the count of the bin cancels, and empty bins give 0.
    excess = torch.zeros(bins, dtype=torch.float64, device=top.device)
    excess.index_add_(0, bin_, correct(probabilities, target).double() - top)
    # The term of the label is computed on its own: p^2 - 2p + 1 would lose digits for p near 1.
    squares = (1 - true).square().sum()
    for rows in row_blocks(probabilities):
        squares += probabilities[rows].double().scatter(1, target[rows, None], 0.0).square().sum()
    return Calibration(
        ece=excess.abs().sum() / samples,
        nll=-true.log().mean(),
        brier=squares / samples,
    )


def single_calibration(probabilities: Tensor, target: Tensor, *, bins: int = 15) -> Tensor:
    """The expected calibration error of single probabilities: how often is a sample of class k if p_k says so?

        E = sum_b (m_b / (N K)) |share of pairs in b with y_n = k - mean p_n[k] in b|

    The sum is over bins of all pairs (n, k) of a sample and a class. The bins are those of `calibration`.

    Args:
        probabilities: (N, K) in [0, 1], each by itself, from `loss.single(logits)`. Their sum may be any number.
        target: (N,) labels of any integer dtype.
        bins: number of bins, 1 or more.

    Paper: Guo et al. 2017, for ECE; here for each class by itself.
    Tests: tests/tasks/test_confidence.py::test_single_calibration_equals_the_loop_over_pairs

    Example:
        >>> single_calibration(torch.tensor([[0.9, 0.5], [0.9, 0.5]]), torch.tensor([0, 0]))
        tensor(0.3000, dtype=torch.float64)
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    probabilities, target = check_pair(probabilities, target, "probabilities")
    check_probabilities(probabilities, "probabilities")

    def place(p: Tensor) -> Tensor:
        """The bin of each p. All pairs are too many to search for the edges around each."""
        return (p * bins).ceil_().sub_(1).clamp_(min=0).long()

    true = probabilities.gather(1, target[:, None]).squeeze(1).double()
    excess = place(true).bincount(minlength=bins).double()
    for rows in row_blocks(probabilities):
        p = probabilities[rows].double().flatten()
        excess.index_add_(0, place(p), -p)
    return excess.abs().sum() / probabilities.numel()
