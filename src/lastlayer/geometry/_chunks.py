"""Splits the features into chunks of rows that fit in the cache, reuses buffers for them, and sums them by class."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.geometry._inputs import Samples

CHUNK_BYTES = {"cpu": 2**20, "cuda": 2**26}
"""Size of one chunk: on a CPU it fits in a core's cache, on a GPU it is large enough to keep the device busy."""


@dataclass(frozen=True)
class ClassRuns:
    """The rows of one chunk in order of their class, one run of rows per class."""

    order: Tensor  # (n,) positions within the chunk
    start: Tensor  # (runs,) where each run begins in `order`
    label: Tensor  # (runs,)


@dataclass(frozen=True)
class SplitTable:
    """A float64 table, stored as the sum of two tables of lower precision, so that x - table has only one rounding."""

    high: Tensor
    low: Tensor | None

    @classmethod
    def of(cls, table: Tensor, dtype: torch.dtype) -> "SplitTable":
        if dtype == torch.float64:
            return cls(table, None)
        high = table.to(dtype)
        return cls(high, (table - high.to(torch.float64)).to(dtype))


def zero_safe_inverse(norm: Tensor) -> Tensor:
    """1 / norm, or 0 if the norm is 0. There the gradient is 0 too."""
    zero = norm == 0
    return torch.where(zero, 0.0, 1 / torch.where(zero, 1.0, norm))


class FeatureChunks:
    """Chunks of rows in `dtype`. If gradients are needed, there is only one chunk and no buffer.

    New tensors for every chunk would cost more than the arithmetic. That is why results go into buffers with `out=`.
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
            out = self.buffer("rows", len(rows)) if rows.dtype != self.dtype else None
            yield number, rows.to(self.dtype) if out is None else out.copy_(rows), label

    def buffer(self, name: str, rows: int) -> Tensor | None:
        """A (rows, d) buffer for `out=`, or None if gradients are needed."""
        if self.samples.differentiable:
            return None
        if name not in self.buffers:
            self.buffers[name] = self._empty(self.rows, self.samples.features.shape[1])
        return self.buffers[name][:rows]

    def norms(self, name: str, number: int, rows: Tensor) -> Tensor:
        """The norm of each row, (n,). Afterwards `column(name)` has those of all chunks."""
        if self.samples.differentiable:
            self.buffers[name] = torch.linalg.vector_norm(rows, dim=1)
            return self.buffers[name]
        # One column for all chunks: small tensors that stay between large ones that go would fragment the memory.
        if name not in self.buffers:
            self.buffers[name] = self._empty(len(self.samples.features))
        out = self.buffers[name][number * self.rows :][: len(rows)]
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, out=out)
        return norms

    def column(self, name: str) -> Tensor:
        return self.buffers[name].to(torch.float64)

    def product(self, table: Tensor, rows: Tensor) -> Tensor:
        """The product table rows', (m, n). Valid until the next call."""
        if self.samples.differentiable or len(rows) < self.rows:
            return table @ rows.T
        if "product" not in self.buffers:
            self.buffers["product"] = self._empty(len(table), self.rows)
        return torch.mm(table, rows.T, out=self.buffers["product"])

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.samples.features.device)

    def minus(self, rows: Tensor, table: SplitTable, label: Tensor | None = None) -> Tensor:
        """rows - table[label], or rows - table for a table of one row. Valid until the next call."""
        out, spare = self.buffer("minus", len(rows)), self.buffer("spare", len(rows))
        high = table.high if label is None else torch.index_select(table.high, 0, label, out=out)
        result = torch.sub(rows, high, out=out)
        if table.low is not None:
            result.sub_(table.low if label is None else torch.index_select(table.low, 0, label, out=spare))
        return result

    def add_weighted(self, sums: Tensor, number: int, rows: Tensor, weight: Tensor) -> None:
        """Add weight * rows to the float64 class sums (K, d). Within a chunk, sums are in `dtype`."""
        runs = self.runs[number]
        parts = F.embedding_bag(
            runs.order, rows, runs.start, mode="sum", per_sample_weights=torch.index_select(weight, 0, runs.order)
        )
        sums.index_add_(0, runs.label, parts.to(torch.float64))

    @cached_property
    def runs(self) -> list[ClassRuns]:
        label, size = self.samples.label, len(self.samples.classes)
        position = torch.arange(len(label), device=label.device)
        chunk = position.div(self.rows, rounding_mode="floor")
        key, order = torch.sort(chunk * size + label, stable=True)
        run, length = torch.unique_consecutive(key, return_counts=True)
        of_chunk = run.div(size, rounding_mode="floor")
        start = length.cumsum(0) - length - of_chunk * self.rows
        per_chunk = torch.bincount(of_chunk).tolist()
        pieces = zip(
            torch.split(order - chunk * self.rows, self.rows),
            torch.split(start, per_chunk),
            torch.split(run % size, per_chunk),
            strict=True,
        )
        return [ClassRuns(*piece) for piece in pieces]
