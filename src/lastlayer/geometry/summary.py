"""Computes every measure of geometry at once, in two passes over the features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry._inputs import prepare, select_classifier
from lastlayer.geometry._passes import Means, Spread, first_pass, second_pass
from lastlayer.geometry.collapse import centre_rows, nc1_of, row_cosines, simplex_distance, whitening
from lastlayer.geometry.cosine import compactness_of, cosines_of, separability_of
from lastlayer.geometry.spread import pair_distances, ratio_of, variance_of


@dataclass(frozen=True)
class Geometry:
    """All measures of one set of features. A measure is None if it was not asked for or cannot be known yet.

    Scalars are float64. Vectors and matrices have one row per class present; `classes` holds the label of each row.
    Cosines without a prefix are of centred features, and those with `uncentered_` are of the features as they are.
    """

    classes: Tensor  # (K,)
    count: Tensor  # (K,)
    nc1: Tensor | None = None
    nc2: Tensor | None = None
    nc3: Tensor | None = None
    nc4: Tensor | None = None
    self_duality: Tensor | None = None  # (K,)
    intra: Tensor | None = None  # (K,)
    inter: Tensor | None = None  # (K, K)
    intra_mean: Tensor | None = None
    intra_min: Tensor | None = None
    inter_mean: Tensor | None = None
    inter_max: Tensor | None = None
    uncentered_intra: Tensor | None = None  # (K,)
    uncentered_inter: Tensor | None = None  # (K, K)
    uncentered_intra_mean: Tensor | None = None
    uncentered_intra_min: Tensor | None = None
    uncentered_inter_mean: Tensor | None = None
    uncentered_inter_max: Tensor | None = None
    compactness: Tensor | None = None
    separability: Tensor | None = None
    intra_inter_ratio: Tensor | None = None
    class_distance_variance: Tensor | None = None


def measure(
    features: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    center_weight: bool = False,
    global_mean: str = "samples",
    self_pairs: bool = True,
) -> Geometry:
    """Compute every measure of this package at once, reading the features twice.

    The values are those of `neural_collapse`, `self_duality`, `cosine_collapse` (centred and not), `compactness`,
    `separability`, `intra_inter_ratio` and `class_distance_variance`. These functions have the formulas. All together
    take as long as the slowest of them. Memory holds a few chunks of rows, and a few K x d and K x K matrices.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype. Classes without a sample are left out.
        weight: (C, d) classifier with a row for every label. Without it nc2, nc3, nc4 and self_duality are None.
        bias: (C,) bias of the classifier. Only nc4 uses it.
        center_weight, global_mean: as in `neural_collapse`. global_mean applies to nc1, nc3 and self_duality. The
            cosines are always centred by the mean over samples.
        self_pairs: as in `cosine_collapse`.

    Gradients and degenerate cases are those of the functions named above.

    Example:
        >>> target = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> geometry = measure(torch.eye(3)[target], target)
        >>> round(float(geometry.compactness), 6), round(float(geometry.separability), 6), geometry.nc2
        (1.0, 0.5, None)
    """
    with full_precision(features):
        samples = prepare(features, target)
        classifier = None if weight is None else select_classifier(weight, bias, samples)
        means = first_pass(samples, units=True)
        whitener = whitening(means.mean - means.center(global_mean))
        spread = second_pass(samples, means, whitener=whitener, units=True, classifier=classifier)
        del whitener
        rows = None if classifier is None else classifier[0]
        return summarise(samples.classes, means, spread, rows, center_weight, global_mean, self_pairs)


def summarise(
    classes: Tensor,
    means: Means,
    spread: Spread,
    weight: Tensor | None,
    center_weight: bool,
    global_mean: str,
    self_pairs: bool,
) -> Geometry:
    """The measures from sums per class. `weight` holds the rows of `classes`. A measure without its sums stays None."""
    count, total = means.count, means.count.sum()
    centred = means.mean - means.center(global_mean)
    pair_distance = pair_distances(means.mean)
    values: dict[str, Tensor | None] = {"class_distance_variance": variance_of(spread.square, count, pair_distance)}
    if spread.energy is not None:
        values["nc1"] = nc1_of(spread.energy, centred, spread.square, total)
    if weight is not None:
        rows = centre_rows(weight) if center_weight else weight
        values["nc2"] = simplex_distance(rows @ rows.T)
        values["nc3"] = simplex_distance(rows @ centred.T)
        values["self_duality"] = row_cosines(centre_rows(weight), centred)
    if spread.disagreements is not None:
        values["nc4"] = spread.disagreements / total
    if spread.distance is not None:
        values["intra_inter_ratio"] = ratio_of(spread.distance, count, pair_distance)
    if means.unit_sum is not None and means.nonzero is not None:
        values["separability"] = separability_of(means.unit_sum, count)
        cosines = cosines_of(means.unit_sum, means.nonzero, count, classes, self_pairs)
        values |= {f"uncentered_{name}": getattr(cosines, name) for name in _COSINES}
    if spread.unit_sum is not None and spread.nonzero is not None:
        values["compactness"] = compactness_of(spread.unit_sum, count)
        cosines = cosines_of(spread.unit_sum, spread.nonzero, count, classes, self_pairs)
        values |= {name: getattr(cosines, name) for name in _COSINES}
    return Geometry(classes, count.to(torch.int64), **values)


_COSINES = ("intra", "inter", "intra_mean", "intra_min", "inter_mean", "inter_max")
