"""Decoding image files into uint8 tensors (needs Pillow). Tests: tests/data/test_images.py."""

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lastlayer._core.progress import shown

from .files import CorruptFileError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")  # 16 bits, which Pillow may return in 32
_GREY_MODES = ("1", "L", "LA", *_DEEP_MODES)


def pillow() -> Any:
    """Pillow's Image module. If Pillow is not installed, the ImportError names the extra."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ImportError(
            "reading image files needs Pillow, which is not installed: pip install 'lastlayer[images]'"
        ) from error
    return Image


def is_image(path: Path) -> bool:
    """Whether a file is an image by its name. Hidden files are not."""
    return path.suffix.lower() in ENDINGS and not path.name.startswith(".")


def decode(path: Path, size: int | None, colour: bool) -> tuple[Tensor, bytes]:
    """Decode one file into uint8 (C, H, W) with three channels or one, and take the SHA-256 of the file.

    If a size is given, the shorter side is scaled to it and the middle square cut out.
    """
    image_module = pillow()
    data = path.read_bytes()
    try:
        with image_module.open(io.BytesIO(data)) as opened:
            image = _in_eight_bits(opened, image_module).convert("RGB" if colour else "L")
    except Exception as error:  # decoders raise many kinds of errors
        raise _undecodable(path, error) from error
    if size is not None:
        width, height = image.size
        scale = size / min(width, height)
        width, height = max(size, round(width * scale)), max(size, round(height * scale))
        left, top = (width - size) // 2, (height - size) // 2
        if image.size != (width, height):
            image = image.resize((width, height), image_module.Resampling.BICUBIC)
        image = image.crop((left, top, left + size, top + size))
    pixels = np.array(image, dtype=np.uint8)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels)), hashlib.sha256(data).digest()


def _undecodable(path: Path, error: Exception) -> CorruptFileError:
    """Our own words, because those of Pillow repeat the path or hold an address in memory."""
    if isinstance(error, OSError) and error.strerror is not None:  # from the system, such as a link to nothing
        return CorruptFileError(f"{path} cannot be decoded as an image: {error.strerror}")
    if not path.stat().st_size:
        return CorruptFileError(f"{path} cannot be decoded as an image: the file is empty")
    reason = "its content is of no known image format" if "cannot identify" in str(error) else error
    return CorruptFileError(f"{path} cannot be decoded as an image: {reason}; repair or delete it")


def _in_eight_bits(image: Any, image_module: Any) -> Any:
    """The upper eight bits of an image with 16. Pillow itself would cut every value at 255."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known: save it with 8 or 16 bits")
    if image.mode not in _DEEP_MODES:
        return image
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(f"its pixels run from {pixels.min()} to {pixels.max()}, beyond 16 bits: save it with 8 or 16")
    return image_module.fromarray((pixels >> 8).astype(np.uint8))


def decoders() -> ThreadPoolExecutor:
    """Threads in which to decode. While Pillow decodes, other threads can run."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def _header(path: Path) -> tuple[str, int, int]:
    """Mode, width and height of an image. Only the first bytes of its file are read."""
    image_module = pillow()
    try:
        with image_module.open(path) as opened:
            return opened.mode, opened.width, opened.height
    except Exception as error:
        raise _undecodable(path, error) from error


def any_colour(paths: Sequence[Path], pool: ThreadPoolExecutor) -> bool:
    """Whether any image has colour."""
    return any(mode not in _GREY_MODES for mode, _, _ in pool.map(_header, paths))


def decode_all(paths: Sequence[Path], size: int | None, colour: bool | None = None) -> tuple[Tensor, str]:
    """Decode files into images, uint8 (N, C, H, W), and one SHA-256 over those of the files, in order.

    With `colour=None` all have colour if any file has.

    Raises:
        CorruptFileError: a file cannot be decoded. The message names the first one.
        ValueError: sizes differ and `size` is None. The message names two files.
    """
    combined = hashlib.sha256()
    with decoders() as pool:
        colour = any_colour(paths, pool) if colour is None else colour
        decoded = shown(pool.map(lambda path: decode(path, size, colour), paths), "decoding images", len(paths))
        for number, (path, (image, sha256)) in enumerate(zip(paths, decoded, strict=True)):
            if number == 0:
                images = torch.empty(len(paths), *image.shape, dtype=torch.uint8)
            refuse_other_size(paths[0], tuple(images.shape[1:]), path, image)
            images[number] = image
            combined.update(sha256)
    return images, combined.hexdigest()


def refuse_other_size(first: Path, shape: tuple[int, ...], path: Path, image: Tensor) -> None:
    """ValueError with the names of both files, unless an image has the shape (C, H, W) of the first."""
    if tuple(image.shape) != shape:
        raise ValueError(
            f"images differ in size: {first} is {shape[2]}x{shape[1]}, {path} is {image.shape[2]}x{image.shape[1]} "
            "(width x height); give size= to scale and crop them all (--set data.size=64)"
        )


def stored_bytes(paths: Sequence[Path], size: int | None) -> int:
    """The most bytes that the decoded images can take. Without a size, we assume that all are as large as the first."""
    if not paths:
        return 0
    _, width, height = _header(paths[0]) if size is None else ("", size, size)
    return len(paths) * 3 * width * height
