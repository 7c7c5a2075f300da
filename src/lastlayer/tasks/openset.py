"""Open-set recognition: does a sample belong to a known class? The largest logit decides."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lastlayer.tasks._ranking import pairs_won
from lastlayer.tasks.accuracies import correct
from lastlayer.tasks.inputs import check_matrix, check_pair, refuse_nan


@dataclass(frozen=True)
class OpenSet:
    """Results of open-set recognition, each in [0, 1]. `known` is the positive class. oscr <= min(auroc, accuracy)."""

    auroc: Tensor  # the chance that a known sample scores above an unknown one; a tie counts half by default
    oscr: Tensor  # the same, but a known sample that is classified wrongly counts as below every unknown one
    accuracy: Tensor  # on the known samples


def open_set(
    known_logits: Tensor, known_target: Tensor, unknown_logits: Tensor, *, ties: Literal["half", "against"] = "half"
) -> OpenSet:
    """AUROC, OSCR and accuracy. The score that a sample is known is its largest logit.

        AUROC = (1 / (Nk Nu)) sum_{i, j} ([s_i > u_j] + [s_i = u_j] / 2),
        OSCR  = the same sum, only over correctly classified i

    where s are the scores of the known samples and u those of the unknown ones. OSCR is the area under a curve: the
    rate of correctly classified known samples over the rate of accepted unknown ones, with straight lines over ties.
    Scores are compared as they are, without sigmoid or softmax. To use the largest softmax probability as the score,
    give `log_softmax(1)` of both logits. That score does not change if all logits of a sample are shifted.

    Args:
        known_logits: (Nk, K) of samples from the K known classes.
        known_target: (Nk,) their labels, of any integer dtype.
        unknown_logits: (Nu, K) of samples from other classes.
        ties: what a tie s_i = u_j counts. `"half"` counts 1/2, which is the definition of both areas and that of
            scikit-learn. `"against"` counts 0, as in the AUROC of the public code of Chen et al. (ARPL). The OSCR of
            that code goes through a sorted list, so it depends on the order of equal scores. The two options differ
            only if scores are equal, for example after saturation or in half precision.

    Degenerate cases: infinite logits are ranked like any others. NaN raises ValueError.

    Paper: Dhamija et al. 2018, OSCR; Chen et al. 2021, whose public code uses the largest logit as the score for its
    own loss and the largest softmax probability for cross-entropy; Normalized Spaces 2025, table 3, which does not name
    its score.
    Tests: tests/tasks/test_openset.py::test_equals_all_pairs

    Example:
        >>> known, unknown = torch.tensor([[4.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0, 2.0]])
        >>> result = open_set(known, torch.tensor([0, 0]), unknown)
        >>> result.auroc.item(), result.oscr.item(), result.accuracy.item()
        (0.75, 0.5, 0.5)
    """
    if ties not in ("half", "against"):
        raise ValueError(f'ties must be "half" or "against", got {ties!r}')
    known, target = check_pair(known_logits, known_target, "known_logits")
    unknown = check_matrix(unknown_logits, "unknown_logits")
    if unknown.shape[1] != known.shape[1]:
        raise ValueError(
            f"unknown_logits must have the {known.shape[1]} columns of known_logits, got {unknown.shape[1]}"
        )
    refuse_nan(known, "known_logits")
    refuse_nan(unknown, "unknown_logits")
    right = correct(known, target)
    score, other = known.amax(dim=1), unknown.amax(dim=1).to(known.device)
    half_pairs = 2 * score.numel() * other.numel()
    values = [pairs_won(chosen, other, half=ties == "half") / half_pairs for chosen in (score, score[right])]
    auroc, oscr = torch.tensor(values, dtype=torch.float64, device=known.device)
    return OpenSet(auroc=auroc, oscr=oscr, accuracy=right.double().mean())
