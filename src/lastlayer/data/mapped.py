"""Images in a file larger than memory: rows come in as they are asked for. Tests: tests/data/test_decoded.py."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK = 1 << 26  # bytes moved to a device at a time


class MappedImages:
    """Images of a file of bytes, standing where a uint8 tensor (N, C, H, W) would.

    `images[index]`, by a slice, a tensor or an integer, is a tensor of those images, read at that moment; no others are
    in memory. A subset holds the numbers of its rows alone, so that a part of a data set takes no memory either.

    Args:
        pixels: file of M images (M, C, H, W), byte after byte.
        sums: the sum and the sum of squares of each channel of each image, int64 (M, C, 2).
        shape: (M, C, H, W).
        rows: which of them, (N,); None takes all.
    """

    dtype = torch.uint8
    ndim = 4
    device = torch.device("cpu")

    def __init__(
        self, pixels: Path, sums: NDArray[np.int64], shape: tuple[int, ...], rows: NDArray[np.int64] | None = None
    ) -> None:
        self.pixels, self.sums, self.stored = pixels, sums, shape
        self.rows = np.arange(shape[0]) if rows is None else rows
        # read-only: a private writable map of more than the memory there is would be refused
        self._map = np.memmap(pixels, np.uint8, "r", shape=shape)

    def __reduce__(self) -> tuple[type["MappedImages"], tuple[object, ...]]:
        return MappedImages, (self.pixels, np.asarray(self.sums), self.stored, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        return torch.from_numpy(np.take(self._map, self._rows(index), axis=0))

    def __repr__(self) -> str:
        return f"MappedImages({self.pixels}, {tuple(self.shape)})"

    def _rows(self, index: Tensor | slice | int) -> NDArray[np.int64]:
        return np.asarray(self.rows[index.cpu().numpy() if isinstance(index, Tensor) else index])

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        return torch.Size((len(self.rows), *self.stored[1:]))

    @property
    def nbytes(self) -> int:
        """What a tensor of them would take."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """False: pixels are bytes."""
        return False

    def subset(self, index: Tensor) -> "MappedImages":
        """Some of the images, in that order, still in the file."""
        return MappedImages(self.pixels, self.sums, self.stored, self._rows(index))

    def to(self, device: torch.device | str) -> "Tensor | MappedImages":
        """All images as a tensor on another device, moved block by block; the same object for the CPU."""
        if torch.device(device).type == "cpu":
            return self
        moved = torch.empty(self.shape, dtype=self.dtype, device=device)
        step = max(1, _BLOCK // (self.nbytes // len(self)))
        for start in range(0, len(self), step):
            moved[start : start + step] = self[start : start + step].to(device)
        return moved

    def channel_sums(self) -> list[tuple[int, int]]:
        """Sum and sum of squares of all pixels of each channel, exact."""
        return [(int(total), int(squares)) for total, squares in self.sums[self.rows].sum(0).tolist()]
