"""Brute force in Python floats: every threshold, every pair. Nothing here is shared with the library."""

import math

import torch
from torch import Tensor


def threshold_curve(scores: list[float], positive: list[bool]) -> list[tuple[float, float]]:
    """(recall, precision) at every distinct score as threshold, from the highest down."""
    total = sum(positive)
    curve = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        curve.append((sum(chosen) / total, sum(chosen) / len(chosen)))
    return curve


def average_precision(scores: list[float], positive: list[bool]) -> float:
    area = previous = 0.0
    for recall, precision in threshold_curve(scores, positive):
        area += (recall - previous) * precision
        previous = recall
    return area


def precision_at_recall(scores: list[float], positive: list[bool], numerator: int, denominator: int) -> float:
    """The recall as a fraction, so that the comparison is one of integers."""
    total = sum(positive)
    best = 0.0
    for threshold in set(scores):
        chosen = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        if sum(chosen) * denominator >= numerator * total:
            best = max(best, sum(chosen) / len(chosen))
    return best


def single_logit(logits: Tensor, target: Tensor) -> tuple[list[float], float]:
    """Average precision of every class, NaN without positives, and the mean precision at recall 0.9."""
    areas, precisions = [], []
    for k in range(logits.shape[1]):
        scores, positive = logits[:, k].double().tolist(), (target == k).tolist()
        if not any(positive):
            areas.append(math.nan)
            continue
        areas.append(average_precision(scores, positive))
        precisions.append(precision_at_recall(scores, positive, 9, 10))
    return areas, sum(precisions) / len(precisions)


def pairs_won(scores: list[float], others: list[float]) -> float:
    return sum((s > u) + 0.5 * (s == u) for s in scores for u in others)


def open_set(known: Tensor, target: Tensor, unknown: Tensor) -> tuple[float, float]:
    scores, others = known.double().max(1).values.tolist(), unknown.double().max(1).values.tolist()
    right = [row.index(max(row)) == y for row, y in zip(known.double().tolist(), target.tolist(), strict=True)]
    pairs = len(scores) * len(others)
    correct_scores = [s for s, r in zip(scores, right, strict=True) if r]
    return pairs_won(scores, others) / pairs, pairs_won(correct_scores, others) / pairs


def violations(logits: Tensor, target: Tensor) -> tuple[int, int]:
    """(violated, all) pairs of a true logit and a false logit, of any two samples."""
    rows, labels = logits.double().tolist(), target.tolist()
    true = [row[y] for row, y in zip(rows, labels, strict=True)]
    false = [value for row, y in zip(rows, labels, strict=True) for j, value in enumerate(row) if j != y]
    return sum(f >= t for t in true for f in false), len(true) * len(false)


def problem(
    samples: int, classes: int, *, levels: int | None = None, separation: float = 1.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Gaussian logits with the true ones raised; `levels` rounds them to few values, so that ties abound."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples,), generator=generator)
    logits = torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(samples), target] += separation
    if levels is not None:
        logits = (logits * levels / 4).round() * 4 / levels
    return logits, target
