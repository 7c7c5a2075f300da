"""Telling known classes from unknown ones by the largest logit. Tests: tests/tasks/test_openset.py."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lastlayer.tasks._inputs import check_matrix, check_pair, refuse_nan
from lastlayer.tasks._ranking import pairs_won
from lastlayer.tasks.accuracies import correct


@dataclass(frozen=True)
class OpenSet:
    """Open-set recognition, each in [0, 1]; `known` is the positive class. oscr <= min(auroc, accuracy)."""

    auroc: Tensor
    """Chance that a known sample scores above an unknown one, ties counting half unless asked otherwise."""
    oscr: Tensor
    """The same with wrongly classified known samples counted as losses."""
    accuracy: Tensor
    """Closed-set accuracy on the known samples."""


def open_set(
    known_logits: Tensor, known_target: Tensor, unknown_logits: Tensor, *, ties: Literal["half", "against"] = "half"
) -> OpenSet:
    """AUROC, OSCR and accuracy with the largest logit as the score of being known.

    With s the scores of the known samples and u those of the unknown ones,

        AUROC = (1 / (Nk Nu)) sum_{i, j} ([s_i > u_j] + [s_i = u_j] / 2),
        OSCR  = the same sum over correctly classified i alone.

    OSCR is the area under the rate of correctly classified known samples against the rate of accepted unknown
    ones, joined by straight lines over ties. Scores are compared as they are: no sigmoid, no softmax. For the largest
    softmax probability as score, which a common shift of a sample's logits does not change, give `log_softmax(1)` of
    both logits.

    Args:
        known_logits: (Nk, K) of samples from the K known classes.
        known_target: (Nk,) their labels, of any integer dtype.
        unknown_logits: (Nu, K) of samples from other classes.
        ties: what s_i = u_j counts. `"half"`: 1/2, the definition of both areas, and scikit-learn's. `"against"`: 0,
            as in the AUROC of the public code of Chen et al. (ARPL); its OSCR walks through a sorted list and so
            depends on the order of equal scores. They differ where scores are equal, as after saturation or in
            half precision.

    Returns:
        OpenSet with `auroc`, `oscr`, `accuracy`; float64, on the logits' device. Infinite logits rank like
        any other.

    Raises:
        ValueError: for empty input, NaN, labels out of range, shapes that disagree, unknown `ties`.
        TypeError: for labels that are not integers or logits that are not floating point.

    Paper: Dhamija et al., "Reducing Network Agnostophobia", 2018 (OSCR); Chen et al., "Adversarial Reciprocal
    Points Learning", 2021, whose public code takes the largest logit as score for its own loss and the largest
    softmax probability for cross-entropy; "Classification vs. Deep Feature Learning in Normalized Spaces", Table 3,
    which names no score.

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
