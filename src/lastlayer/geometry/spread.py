"""Spread within classes against distance between class means: the intra-inter ratio and CDNV."""

from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry import _formulas
from lastlayer.geometry._inputs import prepare
from lastlayer.geometry._passes import first_pass, second_pass


def intra_inter_ratio(features: Tensor, target: Tensor) -> Tensor:
    r"""Mean distance of the features to their class mean over mean distance between class means.

        mean_n |h_n - h_{y_n}|  /  mean_{i != j} |h_i - h_j|

    Norms, not squares; 0 at neural collapse.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 tensor without dimensions; differentiable (with gradient 0 where a feature equals its class mean).

    Degenerate cases: one sample in every class gives 0. With one class the result is NaN. If all class means coincide
    it is infinite, or NaN if all samples coincide too.

    Raises:
        ValueError: for empty input, negative labels, NaN or infinite values, wrong shapes.
        TypeError: for features that are not floating point or labels that are not integers.

    References:
        Soft logit normalization, Section 5.2.

    Example:
        >>> import torch
        >>> from lastlayer.geometry import intra_inter_ratio
        >>> features = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> float(intra_inter_ratio(features, torch.tensor([0, 0, 1, 1])))
        0.1
    """
    with full_precision(features):
        samples = prepare(features, target)
        means = first_pass(samples)
        spread = second_pass(samples, means)
        assert spread.distance is not None
        return _formulas.intra_inter_ratio(spread.distance, means.count, _formulas.pair_distances(means.mean))


def class_distance_variance(features: Tensor, target: Tensor) -> Tensor:
    r"""CDNV, the class-distance normalised variance: variance within two classes over their squared distance.

        mean_{i < j} (v_i + v_j) / (2 |h_i - h_j|^2),   v_k = mean_{x in k} |h - h_k|^2

    0 at neural collapse. The class means enter by their differences, so that two close classes lose no digit.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 tensor without dimensions; differentiable.

    Degenerate cases: one sample in every class gives 0. With one class the result is NaN. Two classes with the same
    mean make it infinite, or NaN if neither has any spread.

    Raises:
        ValueError, TypeError: as `intra_inter_ratio`.

    References:
        Galanti, György, Hutter (2022), On the role of neural collapse in transfer learning.

    Example:
        >>> import torch
        >>> from lastlayer.geometry import class_distance_variance
        >>> features = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> float(class_distance_variance(features, torch.tensor([0, 0, 1, 1])))
        0.01
    """
    with full_precision(features):
        samples = prepare(features, target)
        means = first_pass(samples)
        spread = second_pass(samples, means)
        return _formulas.class_distance_variance(spread.square, means.count, _formulas.pair_distances(means.mean))
