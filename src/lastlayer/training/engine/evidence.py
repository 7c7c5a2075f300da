"""What a finished run keeps of its test samples, so that reports can say how sure they are: `rows.safetensors`.

Tests: tests/training/engine/test_evidence.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lastlayer import geometry, losses
from lastlayer.tasks.inputs import row_blocks
from lastlayer.tasks.resampling import resample_counts, resampled_auprc, resampled_ece, resampled_open_set
from lastlayer.training.engine.evaluate import HISTOGRAM_BINS, Outputs, even_share

MOST_ROWS = 5000  # rows that are drawn again; the spread is scaled to that of all rows
MANY_DRAWS, FEW_DRAWS = 400, 200
FEW_ROWS = 1000  # up to which MANY_DRAWS are cheap
SHOWN_CLASSES = 12


@torch.no_grad()
def evidence(loss: losses.Loss, made: Outputs) -> dict[str, Tensor]:
    """What is kept of the test samples.

    Args:
        loss: says which probability is judged.
        made: of the test samples, by `evaluate.read_test`.

    Returns:
        target and decision, int32 (N,), of all samples; log_loss, float32 (M,), minus the logarithm of the judged
        probability of the label; `measured`, int64 (M,), which samples these are, if not all; draw.auprc and draw.ece,
        float64 (B,), the measures on resamples of the M samples, equal resamples in all runs on them; logit_classes,
        int32 (C,), logit_range (C, 2), logit_true and logit_false (C, 80), histograms of single logits. With unknown
        samples also draw.auroc and draw.oscr; if these have two classes or more, unknown_right, uint8 (U,), from
        `geometry.nearest_mean_right`, and unknown_target, int32 (U,).
    """
    kept = {
        "target": made.label.int(),
        "decision": made.decision.int(),
        "log_loss": log_loss(loss, made.logits, made.target),
        **_draws(loss, made),
        **logit_histograms(made.logits, made.target),
    }
    if made.rows is not None:
        kept["measured"] = made.rows
    if (unknown := made.unknown) is not None and len(torch.unique(unknown.target)) > 1:
        kept["unknown_right"] = geometry.nearest_mean_right(unknown.features, unknown.target).byte()
        kept["unknown_target"] = unknown.target.int()
    return {name: tensor.cpu() for name, tensor in kept.items()}


def log_loss(loss: losses.Loss, logits: Tensor, target: Tensor) -> Tensor:
    """Minus the logarithm of the judged probability of each label, float32 (N,). It is at most 708."""
    value = torch.empty(len(logits), device=logits.device)
    for rows in row_blocks(logits):
        true = loss.posterior(logits[rows].double()).gather(1, target[rows, None]).squeeze(1)
        value[rows] = -true.clamp(min=torch.finfo(true.dtype).tiny).log().float()
    return value


def _draws(loss: losses.Loss, made: Outputs) -> dict[str, Tensor]:
    """Measures that are no means of rows, on resamples of an even share of the rows.

    If fewer than all rows are drawn, the deviations are those of so few rows. They shrink with the root of the number.
    """
    chosen, scale = _even(made.target)
    thinned = len(chosen) < len(made.target)  # if not, a copy of all logits would only take memory
    logits, target = (made.logits[chosen], made.target[chosen]) if thinned else (made.logits, made.target)
    draws = MANY_DRAWS if len(target) <= FEW_ROWS else FEW_DRAWS
    counts = resample_counts(len(target), draws).to(logits.device)
    found = {
        "auprc": resampled_auprc(logits, target, counts),
        "ece": resampled_ece(loss.posterior(logits), target, counts),
    }
    scales = dict.fromkeys(found, scale)
    if (unknown := made.unknown) is not None:
        others, their_scale = _even(unknown.target)
        drawn = resample_counts(len(others), draws, seed=1).to(logits.device)
        found |= resampled_open_set(logits, target, unknown.logits[others], counts, drawn)
        scales |= dict.fromkeys(("auroc", "oscr"), max(scale, their_scale))
    return {f"draw.{name}": values.mean() + (values - values.mean()) * scales[name] for name, values in found.items()}


def _even(target: Tensor) -> tuple[Tensor, float]:
    """At most MOST_ROWS rows, an even share of each class, and by how much less all rows together vary than these."""
    rows = min(len(target), MOST_ROWS)
    return even_share(target, rows), math.sqrt(rows / len(target))


def logit_histograms(logits: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Histograms of the logit of a class over its own samples and over all others, for up to twelve classes.

    The classes are spread evenly over the labels. So they are the same in all runs on the same data.
    """
    classes = torch.linspace(0, logits.shape[1] - 1, min(logits.shape[1], SHOWN_CLASSES)).round().long()
    ranges, histograms = [], []
    for k in classes.tolist():
        column, own = logits[:, k].float(), target == k
        low, high = float(column.min()), float(column.max())
        high = high if high > low else low + 1.0
        ranges.append([low, high])
        histograms.append([torch.histc(column[part], HISTOGRAM_BINS, low, high) for part in (own, ~own)])
    true, false = (torch.stack(part) for part in zip(*histograms, strict=True))
    made = {"logit_classes": classes.int(), "logit_range": torch.tensor(ranges)}
    return {**made, "logit_true": true, "logit_false": false}
