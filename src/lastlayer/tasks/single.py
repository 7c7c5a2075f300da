"""How well a single logit answers by itself: is this class k?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.tasks._ranking import (
    average_precision,
    check_recalls,
    narrow_blocks,
    precision_at_recall,
    rank_positives,
)
from lastlayer.tasks.inputs import Logits, check_labelled, column_blocks, read_target


@dataclass(frozen=True)
class SingleLogit:
    """How well single logits rank the samples of their class. In float64 on the logits' device."""

    auprc: Tensor  # mean of `auprc_per_class` over the classes with positives
    precision_at: dict[float, Tensor]  # by recall: the mean over classes of the best precision at that recall or more
    auprc_per_class: Tensor  # (K,) average precision; NaN for a class without positives


def single_logit(logits: Logits, target: Tensor, recalls: Sequence[float] = (0.9, 0.99)) -> SingleLogit:
    """Average precision, and precision at a recall, of every logit used alone as a detector of its class.

        AP_k = sum_t (recall_t - recall_{t-1}) precision_t,    P@r_k = max {precision_t : recall_t >= r}

    For class k, the samples with target k are the positives, all others are negatives, and logit k is the score.
    precision_t and recall_t are those of the rule "z_k >= t", and the sum is over all thresholds t. Equal scores are
    taken together, as in `sklearn.metrics.average_precision_score`. Nothing is interpolated or transformed. So every
    increasing function of the logits gives the same result.

    Args:
        logits: (N, K) scores, larger for more likely. If they do not fit in memory, give a function without arguments
            that yields column blocks (N, b) in the order of classes. Infinite scores are ranked like any others.
        target: (N,) labels of any integer dtype.
        recalls: the recalls at which to report the precision, in (0, 1].

    Degenerate cases: a class without positives has NaN and is left out of the means. If every sample belongs to one
    class, that class has 1. NaN in the column of a class with positives raises ValueError.

    Paper: Keren et al. 2018, section 6, which reports one minus each value.
    Tests: tests/tasks/test_single.py::test_equals_all_thresholds

    Example:
        >>> logits = torch.tensor([[3.0, -1.0], [1.0, 0.0], [2.0, 4.0]])
        >>> result = single_logit(logits, torch.tensor([0, 0, 1]))
        >>> result.auprc_per_class
        tensor([0.8333, 1.0000], dtype=torch.float64)
        >>> result.precision_at[0.9].item()
        0.8333333333333333
        >>> blocks = lambda: (logits[:, k : k + 1] for k in range(2))
        >>> torch.equal(single_logit(blocks, torch.tensor([0, 0, 1])).auprc, result.auprc)
        True
    """
    recalls = check_recalls(recalls)
    precisions: list[Tensor] = []
    best: dict[float, list[Tensor]] = {recall: [] for recall in recalls}
    num_classes = 0
    for block in column_blocks(logits):
        labels = read_target(target, block.shape[0], block.device)
        for columns in narrow_blocks(block):
            ranks, width = rank_positives(columns, labels - num_classes), columns.shape[1]
            precisions.append(average_precision(ranks, width))
            for recall in recalls:
                best[recall].append(precision_at_recall(ranks, width, recall))
            num_classes += width
    check_labelled(labels, num_classes)
    per_class = torch.cat(precisions)  # (K,)
    return SingleLogit(
        auprc=per_class.nanmean(),
        precision_at={recall: torch.cat(best[recall]).nanmean() for recall in recalls},
        auprc_per_class=per_class,
    )
