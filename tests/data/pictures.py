"""Small image files for the tests of readers."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (6, 6), grey: bool = False) -> np.ndarray:
    """Random uint8 pixels (H, W, 3), or (H, W) for grey; `size` is (width, height)."""
    shape = (size[1], size[0]) if grey else (size[1], size[0], 3)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write(path: Path, pixels: np.ndarray) -> None:
    """Write pixels as an image file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
