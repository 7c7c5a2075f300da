"""The three matrix products of a linear layer, in pieces, with sums kept in float32 or better."""

from __future__ import annotations

import torch
from torch import Tensor

from lastlayer.losses._module import at_least_float32


def logits_of(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Logits (n, k) in float32 or better; half precision is multiplied, and rounded, as the dense layer does it."""
    z = features @ weight.T if bias is None else torch.addmm(bias, features, weight.T)
    return at_least_float32(z)


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are kept in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def narrow(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Gradients in the dtype of the input they belong to; float16 is held within its finite range."""
    if dtype is torch.float16 and values.dtype is not dtype:
        limit = torch.finfo(dtype).max
        values = values.clamp(-limit, limit)
    return values.to(dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total (a, b) += left (n, a)^T right (n, b), without rounding the sum to the dtype of right."""
    if right.dtype is total.dtype:
        total.addmm_(left.to(total.dtype).T, right)
    elif right.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        total.add_(torch.mm(narrow(left, right.dtype).T, right, out_dtype=total.dtype))
    else:
        total.addmm_(left.to(total.dtype).T, right.to(total.dtype))


def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Gradient (n, d) of the features from that of the logits (n, k) and the weight (k, d), in the weight's dtype."""
    return narrow(gradient, weight.dtype) @ weight


def in_full_precision(tensor: Tensor) -> torch.autocast:
    """Turn autocast off: the products are in the dtype of their inputs already, and the sums must not be rounded."""
    return torch.autocast(tensor.device.type, enabled=False)
