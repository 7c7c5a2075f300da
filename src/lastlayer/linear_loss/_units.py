"""Rows of unit length by Triton kernels, which read a row once: eager code passes over the weight a dozen times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lastlayer.linear_loss._compiled import kernels
from lastlayer.linear_loss._products import on_its_device, wide

LONGEST = 8192  # entries of a row that fit the registers of a program


def has_kernels_for(*tensors: Tensor) -> bool:
    """Whether the kernels take rows such as these."""
    return all(kernels(t) is not None and 0 < t.shape[1] <= LONGEST for t in tensors)


def unit_rows(x: Tensor, scale: float, dtype: torch.dtype | None) -> Tensor:
    """scale x / ||x|| of each row, in a dtype, None being float32: `unit` and what follows it, rounded once."""
    return _Unit.apply(x, float(scale), dtype or wide(x.dtype))  # type: ignore[no-any-return, no-untyped-call]


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.scale = scale
        with on_its_device(x):
            return kernels(x).unit(x, scale, dtype)  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return kernels(x).unit_gradient(x, gradient.contiguous(), ctx.scale), None, None
