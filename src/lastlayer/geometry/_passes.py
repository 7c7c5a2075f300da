"""The two passes over the features from which every measure is computed, in row chunks that stay in the cache.

The first pass gives the class means; the second what is measured about them. Every sum is float64: with float32
sums a feature mean a thousand times the spread would leave no digit of the spread. Only the large product of the
second pass runs in float32, on residuals that are already small, and is repeated in float64 where that is not enough.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.geometry._inputs import Samples, check_finite

CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""Size of one float64 chunk: within a core's cache on a CPU, large enough to fill a GPU."""

FLOAT32_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Means:
    """What the first pass gives. Means are relative to `origin`, so that no digit is lost to a common offset."""

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
    """What the second pass gives: sums over the samples about the class means and about the global mean."""

    square: Tensor  # (K,) sum of |h - class mean|^2
    distance: Tensor | None = None  # (K,) sum of |h - class mean|
    energy: Tensor | None = None  # () sum of |whitener (h - class mean)|^2
    unit_sum: Tensor | None = None  # (K, d) sum of (h - center) / |h - center|
    nonzero: Tensor | None = None  # (K,) number of h that differ from the center
    disagreements: Tensor | None = None  # () samples on which classifier and nearest class mean disagree


@dataclass(frozen=True)
class Scores:
    """Affine scores of a centred feature z: table z + offset; its argmax is a decision between the classes."""

    table: Tensor  # (K, d) float64
    offset: Tensor  # (K,) float64

    @classmethod
    def nearest_mean(cls, mean: Tensor, center: Tensor) -> "Scores":
        """argmax is the class with the nearest mean: z.m - |m|^2 / 2 falls with |z - m|^2."""
        table = mean - center
        return cls(table.detach(), -table.detach().square().sum(dim=1) / 2)

    @classmethod
    def classifier(cls, weight: Tensor, bias: Tensor | None, center: Tensor) -> "Scores":
        """argmax is that of weight h + bias, for h = center + z with the center itself, not relative to an origin."""
        offset = weight @ center
        if bias is not None:
            offset = offset + bias
        return cls(weight.detach(), (offset - offset.mean()).detach())

    def argmax(self, rows: Tensor, fast: bool) -> Tensor:
        """The deciding class of each row (N,); in float32 if `fast`, but for rows too close to call."""
        if not fast:
            return torch.addmm(self.offset, rows, self.table.T).argmax(dim=1)
        scores = F.linear(rows.float(), self.table.float(), self.offset.float())  # (N, K)
        best, decision = scores.max(dim=1)
        second = scores.scatter_(1, decision[:, None], -torch.inf).amax(dim=1)
        scale = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(self.table, dim=1).max()
        slack = 32 * FLOAT32_ROUNDING * (scale + self.offset.abs().max())
        # Negated so that NaN, from an overflow of float32, counts as too close to call.
        close = (~(best - second > slack)).nonzero().flatten()
        if len(close):
            decision[close] = self.argmax(rows[close], fast=False)
        return decision


def zero_safe_inverse(norm: Tensor) -> Tensor:
    """1 / norm, and 0 where the norm is 0, with a gradient that is 0 there too."""
    zero = norm == 0
    return torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, norm))


class _Chunks:
    """Row chunks in float64, through buffers that are used again: fresh ones would cost more than the arithmetic.

    Where gradients are needed there is a single chunk and no buffer.
    """

    def __init__(self, samples: Samples, width: int = 0) -> None:
        features = samples.features
        self.samples = samples
        self.rows = len(features)
        self.buffers: dict[str, Tensor] = {}
        if not samples.differentiable:
            size = CHUNK_BYTES.get(features.device.type, CHUNK_BYTES["cpu"])
            self.rows = max(16, min(self.rows, size // (8 * max(features.shape[1], width))))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        samples = self.samples
        # split, not slices: the gradient of a split is one concatenation, that of each slice as large as the features.
        for rows, label in zip(
            torch.split(samples.features, self.rows), torch.split(samples.label, self.rows), strict=True
        ):
            if samples.differentiable:
                yield rows.to(torch.float64), label
            else:
                out = self.buffer("rows", len(rows))
                assert out is not None
                yield out.copy_(rows), label

    def buffer(self, name: str, rows: int) -> Tensor | None:
        """A (rows, d) buffer for `out=`, None where gradients are needed."""
        if self.samples.differentiable:
            return None
        if name not in self.buffers:
            shape = (self.rows, self.samples.features.shape[1])
            self.buffers[name] = torch.empty(shape, dtype=torch.float64, device=self.samples.features.device)
        return self.buffers[name][:rows]


def first_pass(samples: Samples, *, units: bool = False) -> Means:
    """Class means, and with `units` the class sums of h / |h|."""
    origin = samples.features[0].detach().to(torch.float64)
    total = origin.new_zeros(len(samples.classes), len(origin))  # (K, d)
    unit_sum = torch.zeros_like(total) if units else None
    nonzero = torch.zeros_like(samples.count) if units else None
    chunks = _Chunks(samples)
    for rows, label in chunks:
        work = chunks.buffer("work", len(rows))
        if unit_sum is not None and nonzero is not None:
            norm = torch.linalg.vector_norm(rows, dim=1)
            unit_sum.index_add_(0, label, torch.mul(rows, zero_safe_inverse(norm)[:, None], out=work))
            nonzero.index_add_(0, label, (norm > 0).to(torch.float64))
        total.index_add_(0, label, torch.sub(rows, origin, out=work))
    mean = total / samples.count[:, None]
    check_finite(mean, samples)
    return Means(samples.count, origin, mean, unit_sum, nonzero)


def second_pass(
    samples: Samples,
    means: Means,
    *,
    whitener: Tensor | None = None,
    units: bool = False,
    classifier: tuple[Tensor, Tensor | None] | None = None,
) -> Spread:
    """Sums about the class means; about the mean of all samples where `units` or `classifier` ask for them."""
    fast = samples.features.dtype != torch.float64 and samples.features.device.type == "cpu"
    spread = _second_pass(samples, means, whitener, units, classifier, fast)
    if fast and whitener is not None and spread.energy is not None:
        # Each whitened entry is off by about one float32 rounding of |residual| / s: too much where the residuals lie
        # almost wholly outside the span of the class means, or those have a very weak direction.
        error = FLOAT32_ROUNDING**2 * spread.square.sum() * whitener.square().sum()
        if bool(error > 1e-10 * spread.energy):
            spread = replace(spread, energy=_second_pass(samples, means, whitener, False, None, False).energy)
    return spread


def _second_pass(
    samples: Samples,
    means: Means,
    whitener: Tensor | None,
    units: bool,
    classifier: tuple[Tensor, Tensor | None] | None,
    fast: bool,
) -> Spread:
    center = means.center()
    absolute_mean = means.mean + means.origin  # (K, d)
    absolute_center = center + means.origin
    square = torch.zeros_like(means.count)
    distance = torch.zeros_like(means.count)
    energy = None if whitener is None else means.count.new_zeros(())
    product = torch.float32 if fast else torch.float64
    table = None if whitener is None else whitener.to(product)
    unit_sum = torch.zeros_like(means.mean) if units else None
    nonzero = torch.zeros_like(means.count) if units else None
    decide = None
    if classifier is not None:
        decide = (
            Scores.classifier(*classifier, absolute_center),
            Scores.nearest_mean(means.mean, center),
        )
    disagreements = None if decide is None else means.count.new_zeros(())
    chunks = _Chunks(samples, width=0 if decide is None else len(means.count))

    for rows, label in chunks:
        work = chunks.buffer("work", len(rows))
        own_mean = torch.index_select(absolute_mean, 0, label, out=work)
        residual = torch.sub(rows, own_mean, out=work)
        norm = torch.linalg.vector_norm(residual, dim=1)
        distance.index_add_(0, label, norm)
        square.index_add_(0, label, residual.square().sum(dim=1) if samples.differentiable else norm.square())
        if table is not None and energy is not None:
            whitened = F.linear(residual.to(product), table)  # (n, rank)
            if samples.differentiable:
                energy = energy + whitened.to(torch.float64).square().sum()
            else:
                energy += torch.linalg.vector_norm(whitened, dim=1).to(torch.float64).square().sum()
        if not units and decide is None:
            continue
        centred = torch.sub(rows, absolute_center, out=work)
        if decide is not None and disagreements is not None:
            with torch.no_grad():
                decisions = [scores.argmax(centred.detach(), fast) for scores in decide]
                disagreements += (decisions[0] != decisions[1]).sum()
        if unit_sum is not None and nonzero is not None:
            norm = torch.linalg.vector_norm(centred, dim=1)
            unit_sum.index_add_(0, label, torch.mul(centred, zero_safe_inverse(norm)[:, None], out=work))
            nonzero.index_add_(0, label, (norm > 0).to(torch.float64))
    return Spread(square, distance, energy, unit_sum, nonzero, disagreements)
