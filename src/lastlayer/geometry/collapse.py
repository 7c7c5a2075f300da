"""Neural collapse: the measures NC1 to NC4, and how well classifier and class means agree."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry._inputs import prepare, select_classifier
from lastlayer.geometry._passes import first_pass, second_pass, zero_safe_inverse

CUTOFF = 1e-5
"""Singular values of the centred class means below this fraction of the largest count as zero. For S_B it is 1e-10."""


@dataclass(frozen=True)
class NeuralCollapse:
    """Float64 scalars on the device of the features, all 0 at neural collapse. Without a weight, only nc1 is there.

    nc1 to nc3 have gradients with respect to features and weight, nc4 has none.
    """

    nc1: Tensor
    nc2: Tensor | None
    nc3: Tensor | None
    nc4: Tensor | None


def neural_collapse(
    features: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    center_weight: bool = False,
    global_mean: str = "samples",
) -> NeuralCollapse:
    r"""How far features and classifier are from neural collapse, in the four measures NC1 to NC4.

    With class means h_k, global mean h_G, J = 11'/K and K the number of classes present:

        NC1 = tr(S_W S_B^+) / K,  S_W = 1/N \sum (h - h_y)(h - h_y)',  S_B = 1/K \sum_k (h_k - h_G)(h_k - h_G)'
        NC2 = || W W' / |W W'|_F - (I - J) / sqrt(K - 1) ||_F
        NC3 = || W M' / |W M'|_F - (I - J) / sqrt(K - 1) ||_F,  row k of M is h_k - h_G
        NC4 = share of samples where argmax(W h + b) is not the class with the nearest mean

    Singular values of M below 1e-5 of the largest count as zero. The relative error is 1e-5 or less at any degree of
    collapse and for any common offset of the features, unless float64 features spread less than 1e-13 of their size.

    Args:
        features: (N, d), float16, bfloat16, float32 or float64.
        target: (N,) class labels of any integer dtype. Classes without a sample are left out.
        weight: (C, d) classifier with a row for every label. Rows of absent classes are dropped first.
        bias: (C,) bias that is added to the logits. Only NC4 uses it.
        center_weight: whether to subtract the mean row from the weight in NC2 and NC3. The paper of Zhou et al. does
            not; the evaluate.py that its authors published does. Both are 0 at collapse.
        global_mean: with `"samples"`, h_G is the mean over all samples, as in both papers. With `"classes"`, it is the
            mean of the class means, as in rhubarbwu/neural-collapse. They differ only for unbalanced data.

    Degenerate cases: with one sample in every class nc1 is 0. With one class it is NaN. If all class means are equal,
    nc1 is infinite, or NaN if all samples are equal too. If d < K - 1, NC1 uses the d directions that exist, and NC2
    and NC3 cannot reach 0. A zero weight gives NaN in nc2 and nc3. In nc4 the lower label wins a tie.

    Paper: Papyan et al. 2020; Zhou et al. 2022, section 4.
    Tests: tests/geometry/test_collapse.py::test_agrees_with_reference

    Example:
        >>> means = torch.eye(3)
        >>> target = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> result = neural_collapse(means[target], target, weight=means - 1 / 3)
        >>> [round(float(value), 6) for value in (result.nc1, result.nc2, result.nc3, result.nc4)]
        [0.0, 0.0, 0.0, 0.0]
    """
    with full_precision(features):
        samples = prepare(features, target)
        classifier = None if weight is None else select_classifier(weight, bias, samples)
        means = first_pass(samples)
        centred = means.mean - means.center(global_mean)
        spread = second_pass(samples, means, whitener=whitening(centred), classifier=classifier)
        assert spread.energy is not None
        nc1 = nc1_of(spread.energy, centred, spread.square, means.count.sum())
        if classifier is None:
            return NeuralCollapse(nc1, None, None, None)
        rows = centre_rows(classifier[0]) if center_weight else classifier[0]
        assert spread.disagreements is not None
        nc4 = spread.disagreements / len(features)
        return NeuralCollapse(nc1, simplex_distance(rows @ rows.T), simplex_distance(rows @ centred.T), nc4)


def self_duality(features: Tensor, target: Tensor, weight: Tensor, *, global_mean: str = "samples") -> Tensor:
    r"""The cosine between each class's centred weight row and its centred class mean. It is 1 at neural collapse.

        cos(w_k - \bar w, h_k - h_G)

    where \bar w is the mean row over the classes present.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.
        weight: (C, d) classifier. Rows of absent classes are dropped before centring.
        global_mean: `"samples"` or `"classes"`, as in `neural_collapse`.

    Returns:
        (K,) one value per class present, in ascending order of label.

    Degenerate cases: if the centred mean or the centred weight row of a class is zero, the cosine and its gradient
    are 0. With a single class that is always so.

    Paper: Pan and Cao 2023, section 2.2.
    Tests: tests/geometry/test_summary.py::test_measure_agrees_with_references

    Example:
        >>> means = torch.eye(3)
        >>> target = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> self_duality(means[target] + 5, target, weight=2 * means).round(decimals=6)
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    with full_precision(features):
        samples = prepare(features, target)
        rows, _ = select_classifier(weight, None, samples)
        means = first_pass(samples)
        return row_cosines(centre_rows(rows), means.mean - means.center(global_mean))


def nc1_of(energy: Tensor, centred: Tensor, square: Tensor, total: Tensor) -> Tensor:
    """sum |A r|^2 / N. Infinite if all class means are equal but samples differ, NaN if all samples are equal."""
    if len(centred) < 2:
        return energy.new_tensor(torch.nan)
    between = torch.linalg.matrix_norm(centred.detach())
    within = (square.detach().sum() / total).sqrt()
    # Class means that differ only by rounding count as equal.
    coincide = between <= 1e-13 * within
    undefined = torch.where(within > 0, torch.inf, torch.nan).to(energy.dtype)
    return torch.where(coincide, undefined, energy / total)


def whitening(centred: Tensor) -> Tensor:
    """A matrix A (rank, d) with |A r|^2 = r' (M'M)^+ r for the centred class means M (K, d).

    Its rows are v_j / s_j from the singular value decomposition of M. We never form or invert M'M, since its singular
    values are squared and would lose digits.
    """
    if not centred.requires_grad and len(centred) > centred.shape[1]:
        full_rank = _triangular_whitening(centred)
        if full_rank is not None:
            return full_rank
    left: Tensor
    left, singular, right = torch.linalg.svd(centred.detach(), full_matrices=False)
    rank = int((singular > CUTOFF * singular[0]).sum())
    if not centred.requires_grad:
        whitener: Tensor = right[:rank] / singular[:rank, None]
        return whitener
    # The derivative of singular vectors divides by differences of singular values, which are all equal at neural
    # collapse. The derivative of the pseudo-inverse of M does not. Holding the left vectors fixed changes |A r|^2 only
    # in second order.
    inverse: Tensor = torch.linalg.pinv(centred, rtol=CUTOFF)  # (d, K)
    return left[:, :rank].T.matmul(inverse.T)


def _triangular_whitening(centred: Tensor) -> Tensor | None:
    """The inverse of R' in M = Q R, at a fifth of the cost of singular vectors. None if M may need a cutoff."""
    triangle: Tensor = torch.linalg.qr(centred, mode="r").R
    if bool((triangle.diagonal() == 0).any()):
        return None
    identity = torch.eye(len(triangle), dtype=triangle.dtype, device=triangle.device)
    inverse: Tensor = torch.linalg.solve_triangular(triangle, identity, upper=True)
    # The product of the norms is an upper bound of the largest singular value over the smallest.
    condition = torch.linalg.matrix_norm(triangle) * torch.linalg.matrix_norm(inverse)
    return inverse.T if bool(condition < 1 / CUTOFF) else None


def simplex_distance(gram: Tensor) -> Tensor:
    """|| G / |G|_F - (I - J) / sqrt(K - 1) ||_F for a K x K matrix G, which is overwritten."""
    size = len(gram)
    if size < 2:
        return gram.new_tensor(torch.nan)
    norm = torch.linalg.matrix_norm(gram)
    # In place, because with many classes the K x K matrices take most of the memory.
    difference = gram / norm if gram.requires_grad else gram.div_(norm)
    difference += 1 / (size * (size - 1) ** 0.5)
    difference.diagonal().sub_(1 / (size - 1) ** 0.5)
    distance: Tensor = torch.linalg.matrix_norm(difference)
    return distance


def centre_rows(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(dim=0)


def unit_rows(matrix: Tensor) -> Tensor:
    """Rows divided by their norm. Zero rows stay zero."""
    return matrix * zero_safe_inverse(torch.linalg.vector_norm(matrix, dim=1))[:, None]


def row_cosines(a: Tensor, b: Tensor) -> Tensor:
    return (unit_rows(a) * unit_rows(b)).sum(dim=1)
