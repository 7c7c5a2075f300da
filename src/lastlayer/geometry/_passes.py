"""The two passes over the features from which every measure is computed.

The first pass computes the class means, the second the sums about them. Sums are in float64: with float32 sums, if the
mean of a feature were a thousand times its spread, no digit of the spread would be left. The second pass may compute
the part of each sample in float32, from differences that are exact up to one rounding. If that is not precise enough,
it runs again in float64.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.geometry._inputs import Samples, check_finite

CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""Size of one chunk: on a CPU it fits in a core's cache, on a GPU it is large enough to keep the device busy."""

FLOAT32_ROUNDING = 2.0**-24


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
        work = chunks.out("minus", len(rows))
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
    fast = not (exact or features.dtype == torch.float64 or features.device.type != "cpu" or samples.differentiable)
    dtype = torch.float32 if fast else torch.float64
    center = means.center()
    global_mean = center + means.origin
    own_means, split_center = split_table(means.mean + means.origin, dtype), split_table(global_mean, dtype)
    table = None if whitener is None else whitener.to(dtype)
    rules = classifier and (
        AffineScores.classifier(*classifier, global_mean),
        AffineScores.nearest_mean(means.mean - center, center, global_mean),
    )
    unit_sum = torch.zeros_like(means.mean)
    disagreements = means.count.new_zeros(())
    energies = None if table is None else means.count.new_zeros(len(table))  # (rank,)
    chunks = FeatureChunks(samples, dtype, width=len(means.count) if rules else 0)
    for number, rows, label in chunks:
        residual = chunks.minus(rows, own_means, label)
        chunks.norms("residual", number, residual)
        if table is not None and energies is not None:
            # One norm per direction, not one per sample: many norms of a few entries would cost more than the product.
            whitened = torch.linalg.vector_norm(chunks.product(table, residual), dim=1)
            energies = energies + whitened.to(torch.float64).square()
        if units or rules:
            centred = chunks.minus(rows, split_center)
            norm = chunks.norms("centred", number, centred)
        if units:
            chunks.add_weighted(unit_sum, number, centred, zero_safe_inverse(norm))
        if rules:
            one, other = (rule.decisions(rows, centred, norm, global_mean) for rule in rules)
            disagreements += (one != other).sum()

    distance = chunks.column("residual")
    energy = None if energies is None else energies.sum()
    from_center = chunks.column("centred") if units or rules else None
    if fast and not _trusted(distance, from_center, energy, whitener):
        return second_pass(samples, means, whitener=whitener, units=units, classifier=classifier, exact=True)
    return Spread(
        _by_class(samples, distance.square()),
        _by_class(samples, distance),
        energy,
        unit_sum if units else None,
        _by_class(samples, from_center > 0) if units and from_center is not None else None,
        disagreements if rules else None,
    )


def _by_class(samples: Samples, values: Tensor) -> Tensor:
    """Sums over each class, (K,), of values (N,), one per sample."""
    return torch.zeros_like(samples.count).index_add(0, samples.label, values.to(torch.float64))


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


def split_table(table: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A float64 table as a sum of two tables of lower precision, so that x - table has only one rounding."""
    high = table.to(dtype)
    return high, None if dtype == torch.float64 else (table - high.to(torch.float64)).to(dtype)


def zero_safe_inverse(norm: Tensor) -> Tensor:
    """1 / norm, or 0 if the norm is 0. There the gradient is 0 too."""
    zero = norm == 0
    return torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, norm))


class FeatureChunks:
    """Chunks of rows in `dtype`. If gradients are needed, there is only one chunk and no buffer.

    Results go into buffers with `out=`, because new tensors for every chunk would cost more than the arithmetic.
    """

    def __init__(self, samples: Samples, dtype: torch.dtype, width: int = 0) -> None:
        features = samples.features
        self.samples = samples
        self.dtype = dtype
        self.rows = len(features)
        self.buffers: dict[str, Tensor] = {}
        if not samples.differentiable:
            size = CHUNK_BYTES.get(features.device.type, CHUNK_BYTES["cpu"])
            self.rows = max(16, min(self.rows, size // (dtype.itemsize * max(features.shape[1], width))))

    def __iter__(self) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yields the number of each chunk, its rows and their labels. The rows are valid until the next chunk."""
        samples = self.samples
        # split, not slices: its gradient is one concatenation. Each slice has a gradient as large as all features.
        pairs = zip(torch.split(samples.features, self.rows), torch.split(samples.label, self.rows), strict=True)
        for number, (rows, label) in enumerate(pairs):
            out = self.out("rows", len(rows)) if rows.dtype != self.dtype else None
            yield number, rows.to(self.dtype) if out is None else out.copy_(rows), label

    def buffer(self, name: str, *shape: int) -> Tensor:
        """The buffer of this name. Its shape is that of the first call."""
        if name not in self.buffers:
            self.buffers[name] = torch.empty(shape, dtype=self.dtype, device=self.samples.features.device)
        return self.buffers[name]

    def out(self, name: str, rows: int) -> Tensor | None:
        """A (rows, d) buffer for `out=`, or None if gradients are needed."""
        if self.samples.differentiable:
            return None
        return self.buffer(name, self.rows, self.samples.features.shape[1])[:rows]

    def norms(self, name: str, number: int, rows: Tensor) -> Tensor:
        """The norm of each row, (n,). Afterwards `column(name)` has the norms of all chunks."""
        if self.samples.differentiable:
            self.buffers[name] = torch.linalg.vector_norm(rows, dim=1)
            return self.buffers[name]
        # All chunks share one column: small tensors that stay between large ones that go would fragment the memory.
        out = self.buffer(name, len(self.samples.features))[number * self.rows :][: len(rows)]
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, out=out)
        return norms

    def column(self, name: str) -> Tensor:
        return self.buffers[name].to(torch.float64)

    def product(self, table: Tensor, rows: Tensor) -> Tensor:
        """The product table rows', (m, n). Valid until the next call."""
        if self.samples.differentiable or len(rows) < self.rows:
            return table @ rows.T
        return torch.mm(table, rows.T, out=self.buffer("product", len(table), self.rows))

    def minus(self, rows: Tensor, table: tuple[Tensor, Tensor | None], label: Tensor | None = None) -> Tensor:
        """rows - table[label], or rows - table for a table of one row. Valid until the next call."""
        high, low = table
        out, spare = self.out("minus", len(rows)), self.out("spare", len(rows))
        result = torch.sub(rows, high if label is None else torch.index_select(high, 0, label, out=out), out=out)
        if low is not None:
            result.sub_(low if label is None else torch.index_select(low, 0, label, out=spare))
        return result

    def add_weighted(self, sums: Tensor, number: int, rows: Tensor, weight: Tensor) -> None:
        """Add weight * rows to the float64 class sums (K, d). Within a chunk, sums are in `dtype`."""
        order, start, label = self.runs[number]
        weight = torch.index_select(weight, 0, order)
        parts = F.embedding_bag(order, rows, start, mode="sum", per_sample_weights=weight)
        sums.index_add_(0, label, parts.to(torch.float64))

    @cached_property
    def runs(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each chunk: its row numbers sorted by class, where each class begins among them, and its label."""
        label, size = self.samples.label, len(self.samples.classes)
        position = torch.arange(len(label), device=label.device)
        chunk = position.div(self.rows, rounding_mode="floor")
        key, order = torch.sort(chunk * size + label, stable=True)
        run, length = torch.unique_consecutive(key, return_counts=True)
        of_chunk = run.div(size, rounding_mode="floor")
        start = length.cumsum(0) - length - of_chunk * self.rows
        per_chunk = torch.bincount(of_chunk).tolist()
        orders = torch.split(order - chunk * self.rows, self.rows)
        return list(zip(orders, torch.split(start, per_chunk), torch.split(run % size, per_chunk), strict=True))


@dataclass(frozen=True)
class AffineScores:
    """Scores table z + offset for a feature z relative to the global mean. Their argmax is the decision.

    The sizes are those of the numbers that table and offset were computed from, so they say how much was rounded.
    """

    table: Tensor  # (K, d) float64
    offset: Tensor  # (K,) float64
    table_size: Tensor  # ()
    offset_size: Tensor  # ()

    @classmethod
    def nearest_mean(cls, centred: Tensor, center: Tensor, global_mean: Tensor) -> "AffineScores":
        """Decides for the class with the nearest mean: z.m - |m|^2 / 2 is largest where |z - m|^2 is smallest."""
        table = centred.detach()
        size = _longest(table) + _longest(center)
        return cls(table, -table.square().sum(dim=1) / 2, size, size * (_longest(global_mean) + size))

    @classmethod
    def classifier(cls, weight: Tensor, bias: Tensor | None, center: Tensor) -> "AffineScores":
        """Decides like weight h + bias, where h = center + z."""
        weight, size = weight.detach(), _longest(weight)
        bias = weight.new_zeros(()) if bias is None else bias.detach()
        offset = weight @ center.detach() + bias
        return cls(weight, offset - offset.mean(), size, size * _longest(center) + bias.abs().max())

    @cached_property
    def single(self) -> tuple[Tensor, Tensor]:
        """Table and offset in float32."""
        return self.table.float(), self.offset.float()

    @torch.no_grad()
    def decisions(self, rows: Tensor, centred: Tensor, norm: Tensor, global_mean: Tensor) -> Tensor:
        """The decision for each row, (n,). `centred` is rows - global_mean, and `norm` holds its norms.

        A decision that is too close for float32 is made in float64.
        """
        if centred.dtype == torch.float64:
            return self._first_of_ties(centred, norm)
        table, offset = self.single
        scores = F.linear(centred, table, offset)  # (n, K)
        best, decision = scores.max(dim=1)
        second = scores.scatter_(1, decision[:, None], -torch.inf).amax(dim=1)
        slack = self._rounding(norm, torch.float32)
        # Written with "not", so that NaN from an overflow of float32 counts as too close.
        close = (~(best - second > slack)).nonzero().flatten()
        if len(close):
            decision[close] = self._first_of_ties(rows[close].to(torch.float64) - global_mean, norm[close].double())
        return decision

    def _first_of_ties(self, centred: Tensor, norm: Tensor) -> Tensor:
        """The lowest label among the scores that are largest up to rounding: centring rounds scores that are equal."""
        scores = torch.addmm(self.offset, centred, self.table.T)
        least = scores.amax(dim=1) - self._rounding(norm, torch.float64)
        return (scores >= least[:, None]).byte().argmax(dim=1)

    def _rounding(self, norm: Tensor, dtype: torch.dtype) -> Tensor:
        """How far apart rounding can bring two equal scores, (n,)."""
        size = self.offset.abs().max() if dtype is torch.float32 else self.offset_size  # which is added up in float64
        return 16 * torch.finfo(dtype).eps * (norm * self.table_size + size)


def _longest(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(rows.detach(), dim=-1).max()
    return norm
