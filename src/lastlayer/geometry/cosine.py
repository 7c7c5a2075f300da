"""Cosines within and between classes, and two scores computed from them: compactness and separability."""

from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry import _formulas
from lastlayer.geometry._formulas import CosineCollapse
from lastlayer.geometry._inputs import Samples, prepare
from lastlayer.geometry._passes import first_pass, second_pass


def _unit_sums(samples: Samples, center: bool) -> tuple[Tensor, Tensor]:
    """Class sums of unit features, (K, d), and the number of features in each class that are not zero, (K,)."""
    means = first_pass(samples, units=not center)
    sums = second_pass(samples, means, units=True) if center else means
    assert sums.unit_sum is not None
    assert sums.nonzero is not None
    return sums.unit_sum, sums.nonzero


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

    Returns:
        CosineCollapse with float64 attributes: intra (K,), inter (K, K) with intra on its diagonal, intra_mean,
        intra_min, inter_mean and inter_max (off the diagonal), and classes (K,), the label of each row. All but classes
        are differentiable.

    Degenerate cases: a feature that is zero after centring has no direction. Its cosine with every feature, itself
    included, counts as 0. Without self pairs, a class with one sample has intra NaN, and then intra_mean and intra_min
    are NaN too. With one class, inter_mean and inter_max are NaN.

    Raises:
        ValueError: for empty input, negative labels, NaN or infinite values, wrong shapes.
        TypeError: for features that are not floating point or labels that are not integers.

    Paper: Pan and Cao 2023, section 2.2.
    Tests: tests/geometry/test_cosine.py::test_agrees_with_all_pairs

    Example:
        >>> import torch
        >>> from lastlayer.geometry import cosine_collapse
        >>> target = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> result = cosine_collapse(torch.eye(3)[target], target)
        >>> round(float(result.intra_min), 6), round(float(result.inter_max), 6)
        (1.0, -0.5)
    """
    with full_precision(features):
        samples = prepare(features, target)
        unit_sum, nonzero = _unit_sums(samples, center)
        return _formulas.cosines(unit_sum, nonzero, samples.count, samples.classes, self_pairs)


def compactness(features: Tensor, target: Tensor) -> Tensor:
    r"""E_com: how closely the features of a class agree in direction. It is 1 at neural collapse and at least 1/2.

        E_com = 1/2 [1 + mean_k | mean_{x in k} u(x) |^2],   u = (h - h_G) / |h - h_G|

    h_G is the mean over all samples. Pairs of a sample with itself are included, as in the paper.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 scalar. Differentiable.

    Degenerate cases: a feature equal to h_G has u = 0, so constant features give 1/2. A class with one sample counts as
    compact, unless that sample is h_G.

    Raises:
        ValueError, TypeError: as in `cosine_collapse`.

    Paper: Normalized Spaces 2025, equation 23.
    Tests: tests/geometry/test_cosine.py::test_scores_agree_with_all_pairs

    Example:
        >>> import torch
        >>> from lastlayer.geometry import compactness
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> float(compactness(torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), target))
        1.0
    """
    with full_precision(features):
        samples = prepare(features, target)
        unit_sum, _ = _unit_sums(samples, center=True)
        return _formulas.compactness(unit_sum, samples.count)


def separability(features: Tensor, target: Tensor) -> Tensor:
    r"""E_sep: how far the features of different classes are apart in direction.

        E_sep = 1/2 [1 - mean_{k != j} v_k . v_j],   v_k = mean_{x in k} h / |h|

    Unlike compactness it is not centred, as in the paper. Its maximum is 1/2 + 1/(2(K-1)). Every collapsed
    configuration whose directions sum to zero reaches it, for example the simplex.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 scalar. Differentiable. It is exact even if a common offset makes all cosines nearly 1.

    Degenerate cases: zero features have no direction and count as 0 in v_k. With one class the result is NaN.

    Raises:
        ValueError, TypeError: as in `cosine_collapse`.

    Paper: Normalized Spaces 2025, equation 24.
    Tests: tests/geometry/test_cosine.py::test_scores_agree_with_all_pairs

    Example:
        >>> import torch
        >>> from lastlayer.geometry import separability
        >>> target = torch.tensor([0, 0, 1, 1])
        >>> float(separability(torch.tensor([[1.0], [2.0], [-1.0], [-2.0]]), target))
        1.0
    """
    with full_precision(features):
        samples = prepare(features, target)
        unit_sum, _ = _unit_sums(samples, center=False)
        return _formulas.separability(unit_sum, samples.count)
