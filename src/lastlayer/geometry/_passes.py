"""The two passes over the features from which every measure is computed.

The first pass computes the class means, the second the sums about them. Sums are in float64: with float32 sums, if the
mean of a feature were a thousand times its spread, no digit of the spread would be left. The second pass may compute
the part of each sample in float32, from differences that are exact up to one rounding. If that is not precise enough,
it runs again in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lastlayer.geometry._chunks import FeatureChunks, SplitTable, zero_safe_inverse
from lastlayer.geometry._decisions import FLOAT32_ROUNDING, AffineScores
from lastlayer.geometry._inputs import Samples, check_finite


@dataclass(frozen=True)
class Means:
    """The result of the first pass. Means are relative to `origin`, so that a common offset costs no digits."""

    count: Tensor  # (K,) float64
    origin: Tensor  # (d,) float64, one of the features
    mean: Tensor  # (K, d) float64, class mean minus origin
    unit_sum: Tensor | None = None  # (K, d) sum of h / |h|
    nonzero: Tensor | None = None  # (K,) number of h that are not zero

    def center(self, global_mean: str = "samples") -> Tensor:
        """The global mean minus the origin, (d,)."""
        if global_mean == "samples":
            return self.count @ self.mean / self.count.sum()
        if global_mean == "classes":
            return self.mean.mean(dim=0)
        raise ValueError(f'global_mean must be "samples" or "classes", got {global_mean!r}')


@dataclass(frozen=True)
class Spread:
    """The result of the second pass: sums over the samples about the class means and about the global mean."""

    square: Tensor  # (K,) sum of |h - class mean|^2
    distance: Tensor | None = None  # (K,) sum of |h - class mean|
    energy: Tensor | None = None  # () sum of |whitener (h - class mean)|^2
    unit_sum: Tensor | None = None  # (K, d) sum of (h - center) / |h - center|
    nonzero: Tensor | None = None  # (K,) number of h that differ from the center
    disagreements: Tensor | None = None  # () samples for which classifier and nearest class mean disagree


def first_pass(samples: Samples, *, units: bool = False) -> Means:
    """The class means. With `units` also the class sums of h / |h|."""
    origin = samples.features[0].detach().to(torch.float64)
    total = origin.new_zeros(len(samples.classes), len(origin))  # (K, d)
    unit_sum = torch.zeros_like(total)
    chunks = FeatureChunks(samples, torch.float64)
    for number, rows, label in chunks:
        work = chunks.buffer("minus", len(rows))
        if units:
            inverse = zero_safe_inverse(chunks.norms("norm", number, rows))
            unit_sum.index_add_(0, label, torch.mul(rows, inverse[:, None], out=work))
        total.index_add_(0, label, torch.sub(rows, origin, out=work))
    mean = total / samples.count[:, None]
    check_finite(mean, samples)
    if not units:
        return Means(samples.count, origin, mean)
    return Means(samples.count, origin, mean, unit_sum, _by_class(samples, chunks.column("norm") > 0))


def second_pass(
    samples: Samples,
    means: Means,
    *,
    whitener: Tensor | None = None,
    units: bool = False,
    classifier: tuple[Tensor, Tensor | None] | None = None,
    exact: bool = False,
) -> Spread:
    """Sums about the class means. If `units` or `classifier` is given, also sums about the mean of all samples.

    The result is precise to six digits. With `exact` it is precise to the rounding of float64.
    """
    features = samples.features
    fast = features.dtype != torch.float64 and features.device.type == "cpu" and not samples.differentiable
    if fast and not exact:
        spread = _second_pass(samples, means, whitener, units, classifier, torch.float32)
        if spread is not None:
            return spread
    spread = _second_pass(samples, means, whitener, units, classifier, torch.float64)
    assert spread is not None
    return spread


def _second_pass(
    samples: Samples,
    means: Means,
    whitener: Tensor | None,
    units: bool,
    classifier: tuple[Tensor, Tensor | None] | None,
    dtype: torch.dtype,
) -> Spread | None:
    """The second pass in `dtype`. None if float32 turns out to be too coarse."""
    center = means.center()
    own_mean = SplitTable.of(means.mean + means.origin, dtype)
    global_mean = SplitTable.of(center + means.origin, dtype)
    table = None if whitener is None else whitener.to(dtype)
    decide = classifier and (
        AffineScores.classifier(*classifier, center + means.origin),
        AffineScores.nearest_mean(means.mean - center),
    )
    unit_sum = torch.zeros_like(means.mean)
    disagreements = means.count.new_zeros(())
    energies = None if table is None else means.count.new_zeros(len(table))  # (rank,)
    chunks = FeatureChunks(samples, dtype, width=len(means.count) if decide else 0)
    for number, rows, label in chunks:
        residual = chunks.minus(rows, own_mean, label)
        chunks.norms("residual", number, residual)
        if table is not None and energies is not None:
            # One norm per direction, not one per sample: many norms of a few entries would cost more than the product.
            whitened = torch.linalg.vector_norm(chunks.product(table, residual), dim=1)
            energies = energies + whitened.to(torch.float64).square()
        if units or decide:
            centred = chunks.minus(rows, global_mean)
            norm = chunks.norms("centred", number, centred)
        if units:
            chunks.add_weighted(unit_sum, number, centred, zero_safe_inverse(norm))
        if decide:
            disagreements += _disagreements(decide, rows, centred.detach(), norm, center + means.origin)

    distance = chunks.column("residual")
    energy = None if energies is None else energies.sum()
    from_center = chunks.column("centred") if units or decide else None
    if dtype == torch.float32 and not _trusted(distance, from_center, energy, whitener):
        return None
    return Spread(
        _by_class(samples, distance.square()),
        _by_class(samples, distance),
        energy,
        unit_sum if units else None,
        _by_class(samples, from_center > 0) if units and from_center is not None else None,
        disagreements if decide else None,
    )


def _by_class(samples: Samples, values: Tensor) -> Tensor:
    """Sums over each class, (K,), of values (N,), one per sample."""
    return torch.zeros_like(samples.count).index_add(0, samples.label, values.to(torch.float64))


@torch.no_grad()
def _disagreements(
    decide: tuple[AffineScores, AffineScores], rows: Tensor, centred: Tensor, norm: Tensor, global_mean: Tensor
) -> Tensor:
    decisions = []
    for scores in decide:
        if centred.dtype == torch.float64:
            decisions.append(scores.argmax(centred))
            continue
        decision, close = scores.argmax_single(centred, norm)
        if len(close):
            decision[close] = scores.argmax(rows[close].to(torch.float64) - global_mean)
        decisions.append(decision)
    return (decisions[0] != decisions[1]).sum()


def _trusted(distance: Tensor, from_center: Tensor | None, energy: Tensor | None, whitener: Tensor | None) -> bool:
    """Whether float32 gives six digits."""
    for norms in (distance, from_center):
        # Squares of smaller or larger norms leave the range of float32.
        if norms is not None and not 1e-15 < float(norms.max()) < 1e17:
            return False
    if energy is None or whitener is None:
        return True
    # Each whitened entry has an error of about one float32 rounding of |residual| / s. That is too much if the
    # residuals lie almost wholly outside the span of the class means, or if the means have a very weak direction.
    error = FLOAT32_ROUNDING**2 * distance.square().sum() * whitener.square().sum()
    return bool(error <= 1e-10 * energy)
