"""Measures on resampled rows: how far a measure varies with the test set, if it is no mean of rows.

Rows are drawn again with replacement. A resample counts how often each row was drawn, so every measure compares its
scores once and then weights them, for all resamples together.
"""

import torch
from torch import Tensor

from lastlayer.tasks.accuracies import correct
from lastlayer.tasks.inputs import check_pair

WORK = 10_000_000_000  # pairs of rows over all resamples, which bounds the time to a few seconds on a CPU
_BLOCK = 1 << 22  # pairs of rows at once


def resample_counts(rows: int, draws: int, seed: int = 0) -> Tensor:
    """How often each row is drawn in each resample, (draws, rows).

    The same numbers give the same counts. So models that were tested on the same rows have the same resamples.

    Example:
        >>> counts = resample_counts(5, 3)
        >>> counts.sum(1)
        tensor([5, 5, 5])
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [torch.randint(rows, (rows,), generator=generator).bincount(minlength=rows) for _ in range(draws)]
    return torch.stack(counts)


def resampled_auprc(logits: Tensor, target: Tensor, counts: Tensor) -> Tensor:
    """The mean average precision of `single_logit` on each resample.

    Classes are taken evenly spaced if all of them would take more than `WORK`. Fewer classes vary more, so the noise
    that follows is rather too large than too small. A class without positives in a resample is left out of its mean.

    Args:
        logits: (N, K).
        target: (N,) labels.
        counts: (B, N) from `resample_counts`.

    Returns:
        (B,) in float64.

    Paper: Keren et al. 2018, section 6.
    Tests: tests/tasks/test_resampling.py::test_equals_the_measure_on_the_drawn_rows

    Example:
        >>> logits = torch.tensor([[3.0, -1.0], [1.0, 0.0], [2.0, 4.0]])
        >>> resampled_auprc(logits, torch.tensor([0, 0, 1]), torch.ones(1, 3, dtype=torch.int64))
        tensor([0.9167], dtype=torch.float64)
    """
    logits, target = check_pair(logits, target, "logits")
    counts = counts.to(logits.device, torch.float32)  # sums of them are exact up to 2^24 rows
    present = torch.unique(target)
    most = max(1, WORK * len(present) // (counts.numel() * len(target)))
    chosen = present[torch.linspace(0, len(present) - 1, min(len(present), most), device=present.device).long()]
    order = target.argsort(stable=True)
    order = order[torch.isin(target[order], chosen)]  # the positives, class by class
    label = target[order]
    gained = torch.zeros(len(counts), len(chosen), dtype=torch.float64, device=logits.device)
    positives = torch.zeros_like(gained)
    for own, k in zip(*(torch.split(part, max(1, _BLOCK // len(target))) for part in (order, label)), strict=True):
        reached = logits[:, k] >= logits[own, k]  # (N, P) which rows score no less than each positive
        alike = order[torch.searchsorted(label, k[:1]) : torch.searchsorted(label, k[-1:], right=True)]
        true = counts[:, alike] @ (reached[alike] & (target[alike, None] == k)).float()  # (B, P)
        precision = true.double() / (counts @ reached.float()).clamp(min=1)
        place = torch.searchsorted(chosen, k)
        gained.index_add_(1, place, precision * counts[:, own])
        positives.index_add_(1, place, counts[:, own].double())
    return (gained / positives).nanmean(1)  # 0 / 0 is NaN, which the mean skips


def resampled_ece(probabilities: Tensor, target: Tensor, counts: Tensor, *, bins: int = 15) -> Tensor:
    """The expected calibration error of `calibration` on each resample.

    Args:
        probabilities: (N, K).
        target: (N,) labels.
        counts: (B, N) from `resample_counts`.
        bins: number of bins.

    Returns:
        (B,) in float64.

    Paper: Guo et al. 2017.
    Tests: tests/tasks/test_resampling.py::test_equals_the_measure_on_the_drawn_rows
    """
    probabilities, target = check_pair(probabilities, target, "probabilities")
    top = probabilities.amax(1).double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=top.device)
    excess = correct(probabilities, target).double() - top
    by_bin = torch.zeros(len(top), bins, dtype=torch.float64, device=top.device)
    by_bin.scatter_(1, torch.bucketize(top, edges[1:-1])[:, None], excess[:, None])
    return (counts.to(top.device, torch.float64) @ by_bin).abs().sum(1) / len(top)


def resampled_open_set(
    known_logits: Tensor, known_target: Tensor, unknown_logits: Tensor, known: Tensor, unknown: Tensor
) -> dict[str, Tensor]:
    """AUROC and OSCR of `open_set` on each resample.

    Args:
        known_logits: (Nk, K) scores of samples of known classes.
        known_target: (Nk,) their labels.
        unknown_logits: (Nu, K) scores of samples of unknown classes.
        known, unknown: (B, Nk) and (B, Nu) from `resample_counts`.

    Returns:
        "auroc" and "oscr", (B,) in float64.

    Paper: Dhamija et al. 2018.
    Tests: tests/tasks/test_resampling.py::test_equals_the_measure_on_the_drawn_rows
    """
    known_logits, known_target = check_pair(known_logits, known_target, "known_logits")
    score = known_logits.amax(1)
    other, order = unknown_logits.amax(1).to(score.device).sort()
    score, other = score.double(), other.double()
    below, reached = torch.searchsorted(other, score), torch.searchsorted(other, score, right=True)
    right = correct(known_logits, known_target).double()
    auroc, oscr = [], []
    for drawn, drawn_unknown in zip(known.to(score.device), unknown.to(score.device), strict=True):
        passed = torch.cat([other.new_zeros(1), drawn_unknown[order].double().cumsum(0)])
        won = (passed[below] + passed[reached]) / 2 * drawn
        pairs = drawn.sum() * drawn_unknown.sum()
        auroc.append(won.sum() / pairs)
        oscr.append((won * right).sum() / pairs)
    return {"auroc": torch.stack(auroc), "oscr": torch.stack(oscr)}
