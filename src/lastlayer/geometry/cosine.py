"""Cosines within and between classes, and the two scores made of them: compactness and separability."""

from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry import _formulas
from lastlayer.geometry._formulas import CosineCollapse
from lastlayer.geometry._inputs import Samples, prepare
from lastlayer.geometry._passes import first_pass, second_pass


def _unit_sums(samples: Samples, center: bool) -> tuple[Tensor, Tensor]:
    """Class sums of unit features (K, d), and the number of features with a direction (K,)."""
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

    h_G is the mean over all samples. At neural collapse intra is 1 and inter -1/(K-1). The sums over pairs are products
    of sums of unit features, so the cost is O(N d + K^2 d).

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.
        center: subtract the global mean first, as the experiments of Pan and Cao do; their theory, with batch
            normalisation and no bias, does not need it.
        self_pairs: include the pairs of a sample with itself in intra, as Pan and Cao do; False takes the mean over
            i != j: (n |u|^2 - 1)/(n - 1) with u the mean unit feature, an unbiased estimate for small classes.

    Returns:
        CosineCollapse with float64 attributes intra (K,), inter (K, K) with intra on its diagonal, intra_mean,
        intra_min, inter_mean and inter_max (off the diagonal), and classes (K,), the label of each row. All but classes
        are differentiable.

    Degenerate cases: a feature that is zero (after centring) has no direction; its cosine with everything, itself
    included, counts as 0. Without self pairs a class of one sample has intra NaN, and so have mean and minimum. With
    one class inter_mean and inter_max are NaN.

    Raises:
        ValueError: for empty input, negative labels, NaN or infinite values, wrong shapes.
        TypeError: for features that are not floating point or labels that are not integers.

    References:
        Pan, Cao (2023), Towards understanding neural collapse: the effects of batch normalization and weight decay.

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
    r"""E_com: how closely the directions of a class's features agree; 1 at neural collapse, 1/2 at worst.

        E_com = 1/2 [1 + mean_k | mean_{x in k} u(x) |^2],   u = (h - h_G) / |h - h_G|

    h_G is the mean over all samples; pairs of a sample with itself are included, as in the paper.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 tensor without dimensions; differentiable.

    Degenerate cases: a feature equal to h_G has u = 0, so constant features give 1/2. A class of one sample counts as
    compact, unless that sample is h_G.

    Raises:
        ValueError, TypeError: as `cosine_collapse`.

    References:
        Classification vs. deep feature learning in normalized spaces, Eq. 23.

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
    r"""E_sep: how far the directions of different classes' features are apart.

        E_sep = 1/2 [1 - mean_{k != j} v_k . v_j],   v_k = mean_{x in k} h / |h|

    Not centred, unlike compactness: so it is in the paper. Its maximum 1/2 + 1/(2(K-1)) is reached by every collapsed
    configuration whose directions sum to zero, the simplex among them.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.

    Returns:
        Float64 tensor without dimensions; differentiable. Exact also where a common offset makes all cosines nearly 1.

    Degenerate cases: zero features have no direction and count as 0 in v_k. With one class the result is NaN.

    Raises:
        ValueError, TypeError: as `cosine_collapse`.

    References:
        Classification vs. deep feature learning in normalized spaces, Eq. 24.

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
