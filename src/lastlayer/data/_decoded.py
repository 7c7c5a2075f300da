"""Image files decoded once into a file that is mapped, for sets that do not fit in memory.

<cache>/<key>/    the key is a hash of the files' paths, sizes and times of change, and of how they are decoded
  pixels          the images (N, C, H, W), byte after byte
  records         of each image: the SHA-256 of its file, the sum and the sum of squares of each channel
  about.json      shape and checksum; written last, so that a folder with it is complete
  lock            held while a process decodes

Both files grow block by block, `records` after `pixels` has reached the disk: a process that is killed leaves a part
that the next one continues. The cache may be deleted at any time. Tests: tests/data/test_decoded.py.
"""

import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lastlayer._core.files import DamagedFileError, locked, read_json, write_json
from lastlayer._core.memory import free_memory
from lastlayer._core.progress import shown

from ._images import any_colour, decode, decoders, refuse_other_size
from .mapped import MappedImages

BLOCK = 1 << 25  # bytes decoded before they are flushed
FORMAT = 1  # of the files above; another one makes other keys


def cache_root() -> Path:
    """Where decoded images are kept: $LASTLAYER_CACHE, else $XDG_CACHE_HOME/lastlayer/images, else ~/.cache/..."""
    if chosen := os.environ.get("LASTLAYER_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lastlayer" / "images"


def in_memory_limit() -> int:
    """Bytes of images up to which they are held in memory: a quarter of what is free, shared among the cores.

    Each core may have a process of its own that holds the images, and for a moment a second time while it splits them.
    """
    return free_memory() // (4 * (os.cpu_count() or 1))


def decode_to_disk(paths: Sequence[Path], size: int | None, colour: bool | None = None) -> tuple[MappedImages, str]:
    """What `decode_all` gives, from a file instead of memory; decoded now unless it was before.

    Returns:
        The images, and one SHA-256 over those of the files, in order.

    Raises:
        CorruptFileError, ValueError: as `decode_all`; nothing is kept then.
        OSError: when the disk has no room for the images, before the first is decoded, or cannot be written.
    """
    folder = cache_root() / _key(paths, size, colour)
    about = _complete(folder)
    if about is None:
        waiting = f"another process decodes these images into {folder}; waiting for it"
        with locked(folder / "lock", waiting=waiting):
            about = _complete(folder) or _build(folder, paths, size, colour)
    shape = tuple(about["shape"])
    records = np.memmap(folder / "records", _record(shape[1]), "r", shape=shape[:1])
    return MappedImages(folder / "pixels", records["sums"], shape), about["files_sha256"]


def _key(paths: Sequence[Path], size: int | None, colour: bool | None) -> str:
    key = hashlib.sha256(repr((FORMAT, size, colour)).encode())
    for path in paths:
        facts = path.stat()
        key.update(f"{os.path.abspath(path)}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
    return key.hexdigest()[:24]


def _record(channels: int) -> np.dtype[Any]:
    return np.dtype([("sha256", "u1", 32), ("sums", "<i8", (channels, 2))])


def _complete(folder: Path) -> dict[str, Any] | None:
    """What about.json says, where the folder is complete; a damaged one is emptied, loudly."""
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
        for name in ("about.json", "pixels", "records"):
            (folder / name).unlink(missing_ok=True)
        return None
    return about


def _build(folder: Path, paths: Sequence[Path], size: int | None, colour: bool | None) -> dict[str, Any]:
    try:
        with decoders() as pool:
            colour = any_colour(paths, pool) if colour is None else colour
            shape = tuple(decode(paths[0], size, colour)[0].shape)
            _decode_rest(folder, paths, size, shape, pool)
    except ValueError:  # the images are at fault: once mended they have another key
        for name in ("pixels", "records"):
            (folder / name).unlink(missing_ok=True)
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
    """Decode what an earlier attempt has not, a block at a time."""
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
        _refuse_full_disk(folder, len(paths), (len(paths) - done) * (image_bytes + record.itemsize))
        resumed = f", {done} are there already" if done else ""
        print(f"decoding {len(paths)} images into {folder}, once{resumed}", file=sys.stderr)
        step = max(1, BLOCK // image_bytes)
        blocks = range(done, len(paths), step)
        decoded = (made for start in blocks for made in pool.map(decode_one, paths[start : start + step]))
        waiting = []
        for number, (image, facts) in enumerate(shown(decoded, "decoding images", len(paths), done), done + 1):
            pixels.write(image)
            waiting.append(facts)
            if (number - done) % step == 0 or number == len(paths):
                _flush(pixels)
                records.write(b"".join(waiting))
                _flush(records)
                waiting.clear()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _refuse_full_disk(folder: Path, count: int, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise OSError(
            f"{count} images do not fit in memory, and decoding them into {folder.parent} needs {wanted / 2**30:.1f} "
            f"GiB where {free / 2**30:.1f} GiB are free: set LASTLAYER_CACHE to a folder with more room, or choose a "
            "smaller size= (--set data.size=64)"
        )
