"""Row functions under torch.compile: a chunk's logits to its losses, and in their place the gradient of the logits.

On a GPU every operation of eager code reads and writes the chunk in float32. Compiled, the chunk stays in the layer's
dtype, is computed in float32 inside, and is read and written about once. A CPU gains nothing and runs eager code.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lastlayer._core.precision import at_least_float32
from lastlayer.linear_loss._products import narrow, on_its_device
from lastlayer.losses import Loss, Target

RowFunction = Callable[..., Any]


class CompilationError(RuntimeError):
    """torch.compile could not do it; nothing was computed."""


BACKEND = "inductor"
ONE_ROW = 64  # classes below which a program that takes one row would mostly idle
_compiled: dict[Any, RowFunction | None] = {}  # None where it failed
_count = itertools.count()


def pays(tensor: Tensor) -> bool:
    """Whether compiled code is faster on the tensor's device."""
    return tensor.is_cuda


def kernels(tensor: Tensor) -> Any:
    """The module of Triton kernels, where they run on such a tensor; else None."""
    return _kernels_on(tensor.device) if pays(tensor) and tensor.dtype is not torch.float64 else None


def row_kernels(features: Tensor, K: int) -> Any:
    """The same, where rows of logits are long enough for kernels that take one row a program."""
    return kernels(features) if K >= ONE_ROW else None


def label_kernels() -> Any:
    """The module of Triton kernels for losses of one label a sample."""
    from lastlayer.linear_loss import _label_kernels

    return _label_kernels


def batch_kernels() -> Any:
    """The module of Triton kernels for those of them that couple the samples."""
    from lastlayer.linear_loss import _batch_kernels

    return _batch_kernels


@functools.cache
def _kernels_on(device: torch.device) -> Any:
    """The kernels if the smallest of them runs on the device; where Triton is but does not work, says so once."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        from lastlayer.linear_loss import _kernels

        few = torch.ones(4, device=device)
        with on_its_device(few):
            _kernels.times(few, few[:1], torch.empty_like(few))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        warnings.warn(f"linear_loss: Triton fails, torch.compile takes its place: {error}", stacklevel=2)
        return None
    return _kernels


def losses_and_gradient(loss: Loss) -> RowFunction | None:
    """f(z, target, upstream, tensors), which gives one loss a row and puts upstream dL/dz into z; None if it cannot.

    Made once for a loss and its numbers. Its tensors (`tensors_of`) are arguments, so that their values may change.
    """
    if not loss.only_calls_function():
        return None
    function = type(loss).function
    tensors = tensors_of(loss)
    options = {name: v for name, v in loss.hyperparameters().items() if name not in tensors and name != "reduction"}

    def rows(z: Tensor, target: Target, upstream: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        def values_of(logits: Tensor) -> Tensor:
            return function(logits, target, **options, **tensors, reduction="none")

        values, pull = torch.func.vjp(values_of, at_least_float32(z))  # type: ignore[misc]
        z.copy_(narrow(pull(upstream)[0], z.dtype))
        return values  # type: ignore[no-any-return]

    return compiled((type(loss), tuple(options.items()), tuple(tensors)), rows)


def tensors_of(loss: Loss) -> dict[str, Tensor]:
    """The tensors among a loss's hyperparameters, without history."""
    return {name: value.detach() for name, value in loss.hyperparameters().items() if isinstance(value, Tensor)}


def compiled(key: Any, function: RowFunction) -> RowFunction | None:
    """The function under torch.compile, one for each key; None where that failed, which is said once.

    Called, it raises `CompilationError` if compiling fails.
    """
    if key in _compiled:
        return _compiled[key]
    made: dict[Any, RowFunction] = {}  # by device, dtype and shape of the tensors, but for their number of rows

    def guarded(*arguments: Any) -> Any:
        rows = arguments[0].shape[0]
        tensors = [tensor for tensor in tree_leaves(arguments) if isinstance(tensor, Tensor)]
        kinds = tuple((tensor.device, tensor.dtype, tensor.dim(), tensor.shape[1:]) for tensor in tensors)
        if kinds not in made:
            made[kinds] = torch.compile(_copy(function), fullgraph=True, backend=BACKEND)
        for tensor in tensors:
            if tensor.dim() and tensor.shape[0] == rows:  # the last chunk may be smaller
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return made[kinds](*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            _compiled[key] = None
            warnings.warn(
                f"linear_loss: torch.compile failed, eager code takes its place, slower and with more memory: {error}",
                stacklevel=2,
            )
            raise CompilationError(str(error)) from error

    _compiled[key] = guarded
    return guarded


def _copy(function: RowFunction) -> RowFunction:
    """The function with code of its own: torch.compile counts recompilations by that, and gives up after a few."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_count)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
