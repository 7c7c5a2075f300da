"""Cosines within and between classes, and two scores computed from them: compactness and separability."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry._inputs import Samples, prepare
from lastlayer.geometry._passes import first_pass, second_pass


@dataclass(frozen=True)
class CosineCollapse:
    """Average cosines within and between classes. All but `classes` are float64 and differentiable."""

    intra: Tensor  # (K,)
    inter: Tensor  # (K, K), intra on the diagonal
    intra_mean: Tensor
    intra_min: Tensor
    inter_mean: Tensor  # off the diagonal
    inter_max: Tensor  # off the diagonal
    classes: Tensor  # (K,) the label of each row


def cosine_collapse(
    features: Tensor, target: Tensor, *, center: bool = True, self_pairs: bool = True
) -> CosineCollapse:
    r"""Average cosines of features within each class and between each two classes.

        inter[k, j] = 1/(n_k n_j) \sum_{x in k, x' in j} cos(h(x) - h_G, h(x') - h_G),   intra[k] = inter[k, k]

    h_G is the mean over all samples. At neural collapse, intra is 1 and inter is -1/(K-1). A sum over pairs is a
    product of sums of unit features, so the cost is O(N d + K^2 d).

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.
        center: whether to subtract the global mean first, as in the experiments of Pan and Cao. Their theory, with
            batch normalisation and no bias, does not need it.
        self_pairs: whether intra includes the pairs of a sample with itself, as in Pan and Cao. False takes the mean
            over i != j: (n |u|^2 - 1)/(n - 1), u the mean unit feature. That is an unbiased estimate for small classes.

    Degenerate cases: a feature that is zero after centring has no direction. Its cosine with every feature, itself
    included, counts as 0. Without self pairs, a class with one sample has intra NaN, and then intra_mean and intra_min
    are NaN too. With one class, inter_mean and inter_max are NaN.

    Paper: Pan and Cao 2023, section 2.2.
    Tests: tests/geometry/test_cosine.py::test_agrees_with_all_pairs

    Example:
        >>> target = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> result = cosine_collapse(torch.eye(3)[target], target)
        >>> round(float(result.intra_min), 6), round(float(result.inter_max), 6)
        (1.0, -0.5)
    """
    with full_precision(features):
        samples, unit_sum, nonzero = _unit_sums(features, target, center)
        return cosines_of(unit_sum, nonzero, samples.count, samples.classes, self_pairs)


def compactness(features: Tensor, target: Tensor) -> Tensor:
    r"""E_com: how closely the features of a class agree in direction. It is 1 at neural collapse and at least 1/2.

        E_com = 1/2 [1 + mean_k | mean_{x in k} u(x) |^2],   u = (h - h_G) / |h - h_G|

    h_G is the mean over all samples. Pairs of a sample with itself are included, as in the paper.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Degenerate cases: a feature equal to h_G has u = 0, so constant features give 1/2. A class with one sample counts as
    compact, unless that sample is h_G.

    Paper: Normalized Spaces 2025, equation 23.
    Tests: tests/geometry/test_cosine.py::test_scores_agree_with_all_pairs

    Example:
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> float(compactness(torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), target))
        1.0
    """
    with full_precision(features):
        samples, unit_sum, _ = _unit_sums(features, target, center=True)
        return compactness_of(unit_sum, samples.count)


def separability(features: Tensor, target: Tensor) -> Tensor:
    r"""E_sep: how far the features of different classes are apart in direction.

        E_sep = 1/2 [1 - mean_{k != j} v_k . v_j],   v_k = mean_{x in k} h / |h|

    Unlike compactness it is not centred, as in the paper. Its maximum is 1/2 + 1/(2(K-1)). Every collapsed
    configuration whose directions sum to zero reaches it, for example the simplex.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Degenerate cases: zero features have no direction and count as 0 in v_k. With one class the result is NaN.

    Paper: Normalized Spaces 2025, equation 24.
    Tests: tests/geometry/test_cosine.py::test_scores_agree_with_all_pairs

    Example:
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> float(separability(torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), target))
        1.0
    """
    with full_precision(features):
        samples, unit_sum, _ = _unit_sums(features, target, center=False)
        return separability_of(unit_sum, samples.count)


def _unit_sums(features: Tensor, target: Tensor, center: bool) -> tuple[Samples, Tensor, Tensor]:
    """Class sums of unit features, (K, d), and the number of features in each class that are not zero, (K,)."""
    samples = prepare(features, target)
    means = first_pass(samples, units=not center)
    sums = second_pass(samples, means, units=True) if center else means
    assert sums.unit_sum is not None
    assert sums.nonzero is not None
    return samples, sums.unit_sum, sums.nonzero


def cosines_of(unit_sum: Tensor, nonzero: Tensor, count: Tensor, classes: Tensor, self_pairs: bool) -> CosineCollapse:
    """Average cosines from sums of unit features. The mean over all n_k n_j pairs is u_k . u_j, u the class means."""
    mean = unit_sum / count[:, None]
    inter = mean @ mean.T  # (K, K)
    intra = inter.diagonal().clone()
    if not self_pairs:
        # A class with one sample has no pairs.
        pairs = torch.where(count > 1, count * (count - 1), torch.nan)
        intra = (unit_sum.square().sum(dim=1) - nonzero) / pairs
    # In place if there are no gradients, because with many classes the K x K matrices take most of the memory.
    between = inter.clone() if inter.requires_grad else inter
    inter_max = between.fill_diagonal_(-torch.inf).amax() if len(count) > 1 else intra.new_tensor(torch.nan)
    if inter.requires_grad:
        inter = inter.diagonal_scatter(intra)
    else:
        inter.diagonal().copy_(intra)
    inter_mean = off_diagonal_mean(mean)
    return CosineCollapse(intra, inter, intra.mean(), intra.amin(), inter_mean, inter_max, classes)


def off_diagonal_mean(mean: Tensor) -> Tensor:
    """The mean over k != j of u_k . u_j, in O(K d) steps."""
    size = len(mean)
    if size < 2:
        return mean.new_tensor(torch.nan)
    return (mean.sum(dim=0).square().sum() - mean.square().sum()) / (size * (size - 1))


def compactness_of(unit_sum: Tensor, count: Tensor) -> Tensor:
    return (1 + (unit_sum / count[:, None]).square().sum(dim=1).mean()) / 2


def separability_of(unit_sum: Tensor, count: Tensor) -> Tensor:
    return (1 - off_diagonal_mean(unit_sum / count[:, None])) / 2
