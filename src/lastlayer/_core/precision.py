"""In which precision we compute: half precision becomes float32, and products of float32 keep all their digits.

Also by how many threads, because sums are rounded differently with another number of them.

Tests: tests/_core/test_precision.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def at_least_float32(values: Tensor) -> Tensor:
    """Half precision becomes float32, which keeps order and ties; every other dtype stays."""
    return values.to(wide(values.dtype))


def check_floating(values: Tensor, name: str) -> None:
    """Raise TypeError unless the values are a floating-point tensor."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}")
    if not values.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {values.dtype}: convert with {name}.float()")


@contextmanager
def full_precision(features: Tensor) -> Iterator[None]:
    """Switch off autocast on the device of the features, and oneDNN's reduced precision of float32 products.

    Under `torch.set_float32_matmul_precision("medium")` a CPU multiplies float32 matrices in bfloat16, which leaves
    three digits. A network that computes in float32 on a GPU also needs `without_tf32`.
    """
    check_floating(features, "features")
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    with torch.autocast(features.device.type, enabled=False):
        try:
            setting.fp32_precision = "ieee"
            yield
        finally:
            setting.fp32_precision = before


@contextmanager
def without_tf32() -> Iterator[None]:
    """Make a GPU multiply and convolve float32 numbers with all their digits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Let torch use this many threads on a CPU. None leaves their number as it is."""
    before = torch.get_num_threads()
    if count not in (None, before):
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
