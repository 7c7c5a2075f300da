"""In which precision numbers are computed: half precision widens to float32, and float32 products keep all digits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision becomes float32; float32 and float64 stay."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def upcast(x: Tensor) -> Tensor:
    """Half precision to float32, with float16 gradients that come back finite; float32 and float64 stay."""
    if x.dtype is torch.float16:
        return _ClampedUpcast.apply(x)  # type: ignore[no-any-return, no-untyped-call]
    return x.float() if x.dtype is torch.bfloat16 else x


@contextmanager
def full_precision(features: Tensor) -> Iterator[None]:
    """Switch off autocast on the device of the features, and oneDNN's reduced precision of float32 products.

    Under `torch.set_float32_matmul_precision("medium")` a CPU product of float32 matrices runs in bfloat16, which
    would leave three digits. On a GPU every product of this package is float64, where TF32 does not apply.
    """
    if not isinstance(features, Tensor):
        raise TypeError(f"features must be a torch.Tensor, got {type(features).__name__}")
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = setting.fp32_precision
    with torch.autocast(features.device.type, enabled=False):
        try:
            setting.fp32_precision = "ieee"
            yield
        finally:
            setting.fp32_precision = before


class _ClampedUpcast(torch.autograd.Function):
    """float16 to float32; the gradient comes back within float16's finite range."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.float()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        limit = torch.finfo(torch.float16).max
        return gradient.clamp(-limit, limit).half()
