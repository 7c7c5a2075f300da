"""Image sets that do not fit in memory: decoded once into a file, and read from there when they are used.

<cache>/<key>/    the key is a hash of the files' paths, sizes and times of change, and of how they are decoded
  pixels          the images (N, C, H, W), byte after byte
  records         for each image: the SHA-256 of its file, the sum and the sum of squares of each channel
  about.json      shape and checksum; it is written last, so a folder that has it is complete
  lock            held while a process decodes

`pixels` and `records` grow block by block. A block of `records` is written after its pixels have reached the disk, so
that a later process can continue after one that was killed. You may delete the cache at any time.
"""

import hashlib
import itertools
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lastlayer._core.files import DamagedFileError, image_cache, locked, read_json, write_json
from lastlayer._core.memory import free_memory
from lastlayer._core.progress import shown

from .images import any_colour, decode, decoders, refuse_other_size

BLOCK = 1 << 25  # bytes that are decoded before they are flushed, or moved to a device at a time
_FORMAT = 1  # of the files above; another one makes other keys


class MappedImages:
    """Images in a file of bytes, used in place of a uint8 tensor (N, C, H, W).

    `images[index]`, with a slice, a tensor or an integer, reads these images from the file into a tensor. The others
    take no memory. A subset holds only the numbers of its rows.

    Args:
        pixels: file of images of this shape, (M, C, H, W), byte after byte.
        sums: the sum and the sum of squares of each channel of each image, int64 (M, C, 2).
        rows: which of the images, (N,); None takes all.
    """

    dtype = torch.uint8
    ndim = 4
    device = torch.device("cpu")

    def __init__(
        self, pixels: Path, sums: NDArray[np.int64], shape: tuple[int, ...], rows: NDArray[np.int64] | None = None
    ) -> None:
        self.pixels, self.sums, self.stored = pixels, sums, shape
        self.rows = np.arange(shape[0]) if rows is None else rows
        # read-only, because the system would refuse a private writable map that is larger than the memory
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
        """Bytes that a tensor of the images would take."""
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        """False: pixels are bytes."""
        return False

    def subset(self, index: Tensor) -> "MappedImages":
        """Some of the images, in that order, still in the file."""
        return self.with_rows(self._rows(index))

    def with_rows(self, rows: NDArray[np.int64]) -> "MappedImages":
        """The images of the file with these numbers, in that order."""
        return MappedImages(self.pixels, self.sums, self.stored, rows)

    def to(self, device: torch.device | str) -> "Tensor | MappedImages":
        """All images as a tensor on another device, moved block by block. For the CPU it is the same object."""
        if torch.device(device).type == "cpu":
            return self
        moved = torch.empty(self.shape, dtype=self.dtype, device=device)
        step = max(1, BLOCK // (self.nbytes // len(self)))
        for start in range(0, len(self), step):
            moved[start : start + step] = self[start : start + step].to(device)
        return moved

    def channel_sums(self) -> list[tuple[int, int]]:
        """Sum and sum of squares of all pixels of each channel, exact."""
        return [(int(total), int(squares)) for total, squares in self.sums[self.rows].sum(0).tolist()]


def in_memory_limit() -> int:
    """The most bytes of images that we hold in memory: a quarter of what is free, shared among the cores.

    Each core may have a process of its own that holds the images, and holds them twice while it splits them.
    """
    return free_memory() // (4 * (os.cpu_count() or 1))


def decode_to_disk(paths: Sequence[Path], size: int | None, colour: bool | None = None) -> tuple[MappedImages, str]:
    """The same as `decode_all`, but in a file instead of memory. Images that were decoded before stay as they are.

    If an image is at fault, nothing is kept. If the disk has no room for all images, none is decoded: OSError.
    """
    key = hashlib.sha256(repr((_FORMAT, size, colour)).encode())
    for path in paths:
        facts = path.stat()
        key.update(f"{os.path.abspath(path)}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    folder = image_cache() / key.hexdigest()[:24]
    about = _complete(folder)
    if about is None:
        waiting = f"another process decodes these images into {folder}; waiting for it"
        with locked(folder / "lock", waiting=waiting):
            about = _complete(folder) or _build(folder, paths, size, colour)
    shape = tuple(about["shape"])
    records = np.memmap(folder / "records", _record(shape[1]), "r", shape=shape[:1])
    return MappedImages(folder / "pixels", records["sums"], shape), about["files_sha256"]


def _record(channels: int) -> np.dtype[Any]:
    return np.dtype([("sha256", "u1", 32), ("sums", "<i8", (channels, 2))])


def _complete(folder: Path) -> dict[str, Any] | None:
    """The content of about.json if the folder is complete, else None. A damaged folder is emptied, with a warning."""
    if not (folder / "about.json").exists():
        return None
    try:
        about = read_json(folder / "about.json")
        shape = about["shape"]
        sizes = {"pixels": int(np.prod(shape)), "records": shape[0] * _record(shape[1]).itemsize}
        for name, size in sizes.items():
            found = (folder / name).stat().st_size
            if found != size:
                raise DamagedFileError(f"{folder / name} is damaged: {size} bytes expected, {found} found")
    except (DamagedFileError, FileNotFoundError) as error:
        warnings.warn(f"{error}; the images are decoded again", stacklevel=2)
        _empty(folder)
        return None
    return about


def _empty(folder: Path) -> None:
    for name in ("about.json", "pixels", "records"):
        (folder / name).unlink(missing_ok=True)


def _build(folder: Path, paths: Sequence[Path], size: int | None, colour: bool | None) -> dict[str, Any]:
    try:
        with decoders() as pool:
            colour = any_colour(paths, pool) if colour is None else colour
            shape = tuple(decode(paths[0], size, colour)[0].shape)
            _decode_rest(folder, paths, size, shape, pool)
    except ValueError:  # an image is at fault; when it is mended, the key is another one
        _empty(folder)
        raise
    records = np.memmap(folder / "records", _record(shape[0]), "r")
    about = {
        "shape": [len(paths), *shape],
        "files_sha256": hashlib.sha256(records["sha256"].tobytes()).hexdigest(),
        "first": os.path.abspath(paths[0]),
    }
    write_json(folder / "about.json", about)
    return about


def _decode_rest(
    folder: Path, paths: Sequence[Path], size: int | None, shape: tuple[int, ...], pool: ThreadPoolExecutor
) -> None:
    """Decode the images that are missing from the files, one block at a time."""
    image_bytes, record = int(np.prod(shape)), _record(shape[0])

    def decode_one(path: Path) -> tuple[bytes, bytes]:
        image, digest = decode(path, size, colour=shape[0] == 3)
        refuse_other_size(paths[0], shape, path, image)
        pixels = image.numpy()
        flat = pixels.reshape(shape[0], -1).astype(np.int64)
        sums = np.stack((flat.sum(1), (flat * flat).sum(1)), 1).astype("<i8")
        return pixels.tobytes(), digest + sums.tobytes()

    with (folder / "pixels").open("ab") as pixels, (folder / "records").open("ab") as records:
        done = min(pixels.tell() // image_bytes, records.tell() // record.itemsize)
        pixels.truncate(done * image_bytes)
        records.truncate(done * record.itemsize)
        wanted, free = (len(paths) - done) * (image_bytes + record.itemsize), shutil.disk_usage(folder).free
        if wanted > free:
            raise OSError(
                f"{len(paths)} images do not fit in memory, and decoding them into {folder.parent} needs "
                f"{wanted / 2**30:.1f} GiB where {free / 2**30:.1f} GiB are free: set LASTLAYER_CACHE to a folder with "
                "more room, or choose a smaller size= (--set data.size=64)"
            )
        resumed = f", {done} are there already" if done else ""
        print(f"decoding {len(paths)} images into {folder}, once{resumed}", file=sys.stderr)
        step = max(1, BLOCK // image_bytes)
        blocks = range(done, len(paths), step)
        decoded = (made for start in blocks for made in pool.map(decode_one, paths[start : start + step]))
        counted = shown(decoded, "decoding images", len(paths), done)
        for _ in blocks:
            images, facts = zip(*itertools.islice(counted, step), strict=True)
            for file, content in ((pixels, images), (records, facts)):
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
