"""The formulas of the measures. They take statistics per class: means, sums of unit features, spreads, in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.geometry._chunks import zero_safe_inverse

CUTOFF = 1e-5
"""Singular values of the centred class means below this fraction of the largest count as zero. For S_B it is 1e-10."""


@dataclass(frozen=True)
class CosineCollapse:
    """Average cosines within and between classes. `classes` holds the label of each row."""

    intra: Tensor  # (K,)
    inter: Tensor  # (K, K), intra on the diagonal
    intra_mean: Tensor
    intra_min: Tensor
    inter_mean: Tensor
    inter_max: Tensor
    classes: Tensor  # (K,)


def nan_like(reference: Tensor) -> Tensor:
    return reference.new_full((), torch.nan)


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
        return nan_like(gram)
    norm = torch.linalg.matrix_norm(gram)
    # In place, because with many classes the K x K matrices take most of the memory.
    difference = gram / norm if gram.requires_grad else gram.div_(norm)
    difference += 1 / (size * (size - 1) ** 0.5)
    difference.diagonal().sub_(1 / (size - 1) ** 0.5)
    distance: Tensor = torch.linalg.matrix_norm(difference)
    return distance


def nc1(energy: Tensor, centred: Tensor, square: Tensor, total: Tensor) -> Tensor:
    """sum |A r|^2 / N. Infinite if all class means are equal but samples differ, NaN if all samples are equal."""
    if len(centred) < 2:
        return nan_like(energy)
    between = torch.linalg.matrix_norm(centred.detach())
    within = (square.detach().sum() / total).sqrt()
    # Class means that differ only by rounding count as equal.
    coincide = between <= 1e-13 * within
    undefined = torch.where(within > 0, torch.inf, torch.nan).to(energy.dtype)
    return torch.where(coincide, undefined, energy / total)


def nc2(weight: Tensor) -> Tensor:
    return simplex_distance(weight @ weight.T)


def nc3(weight: Tensor, centred: Tensor) -> Tensor:
    return simplex_distance(weight @ centred.T)


def centre_rows(matrix: Tensor) -> Tensor:
    return matrix - matrix.mean(dim=0)


def unit_rows(matrix: Tensor) -> Tensor:
    """Rows divided by their norm. Zero rows stay zero."""
    return matrix * zero_safe_inverse(torch.linalg.vector_norm(matrix, dim=1))[:, None]


def row_cosines(a: Tensor, b: Tensor) -> Tensor:
    return (unit_rows(a) * unit_rows(b)).sum(dim=1)


def cosines(unit_sum: Tensor, nonzero: Tensor, count: Tensor, classes: Tensor, self_pairs: bool) -> CosineCollapse:
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
    inter_max = between.fill_diagonal_(-torch.inf).amax() if len(count) > 1 else nan_like(intra)
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
        return nan_like(mean)
    return (mean.sum(dim=0).square().sum() - mean.square().sum()) / (size * (size - 1))


def compactness(unit_sum: Tensor, count: Tensor) -> Tensor:
    return (1 + (unit_sum / count[:, None]).square().sum(dim=1).mean()) / 2


def separability(unit_sum: Tensor, count: Tensor) -> Tensor:
    return (1 - off_diagonal_mean(unit_sum / count[:, None])) / 2


def intra_inter_ratio(distance: Tensor, count: Tensor, pair_distance: Tensor) -> Tensor:
    if len(count) < 2:
        return nan_like(distance)
    return distance.sum() / count.sum() / pair_distance.mean()


def class_distance_variance(square: Tensor, count: Tensor, pair_distance: Tensor) -> Tensor:
    size = len(count)
    if size < 2:
        return nan_like(square)
    variance = square / count
    first = torch.repeat_interleave(variance, torch.arange(size - 1, -1, -1, device=square.device))
    second = torch.cat([variance[i:] for i in range(1, size)])
    return ((first + second) / pair_distance.square()).mean() / 2


def pair_distances(mean: Tensor) -> Tensor:
    """|m_i - m_j| for i < j. Computed from differences, since products would lose the distance of two close means."""
    return torch.pdist(mean)
