"""Kernels for rows of logits: where they run, and what replaces them where they do not.

A GPU runs the Triton kernels of this folder. If Triton fails, torch.compile replaces them. If that fails too, eager
code does. Each time a warning says so once. On a GPU every operation of eager code reads and writes the logits in
float32. Kernels and compiled code keep them in the layer's dtype, compute in float32, and read and write them about
once. A CPU gains nothing from either and runs eager code.

This module needs no Triton. It imports the kernels when a device can run them.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lastlayer._core.precision import at_least_float32
from lastlayer.losses import Loss, Target
from lastlayer.losses.forms import Kind, RowForm
from lastlayer.losses.target import read_class_vector

BACKEND = "inductor"
ONE_ROW = 64  # classes below which a program with one row would mostly idle

RowFunction = Callable[..., Any]
Numbers = tuple[float, float, float, float]


class CompilationError(RuntimeError):
    """torch.compile failed, and nothing was computed."""


def pays(tensor: Tensor) -> bool:
    """Whether kernels and compiled code are faster on the tensor's device."""
    return tensor.is_cuda


def on_its_device(tensor: Tensor) -> torch.cuda.device_of:
    """Make the tensor's device the current one, because Triton launches there, not where its arguments are."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def row_kernels(tensor: Tensor, K: int | None = None) -> Any:
    """The module of kernels over rows, or None if they do not run on such a tensor.

    If K is given, also None if rows of K logits are too short for kernels that take one row per program.
    """
    if not pays(tensor) or tensor.dtype is torch.float64 or (K is not None and K < ONE_ROW):
        return None
    return _row_kernels_on(tensor.device)


@functools.cache
def _row_kernels_on(device: torch.device) -> Any:
    """The kernels, or None if the smallest of them does not run on the device. If Triton fails, warns once."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        from lastlayer.linear_loss.kernels import rows

        few = torch.ones(4, device=device)
        with on_its_device(few):
            rows.times(few, few[:1], torch.empty_like(few))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        warnings.warn(f"linear_loss: Triton fails, torch.compile takes its place: {error}", stacklevel=2)
        return None
    return rows


# The input of the kernels for labels.

NO_LABEL = -(2**63)  # the ignored label of a loss that ignores none
VECTORS = {"weight", "counts"}  # hyperparameters that may be tensors; kernels take no loss with any other tensor


def place(what: str) -> int:
    """The line that holds a number of each row. The dict is here because Triton's cache sees only functions."""
    return {
        "value": 0,
        "mass": 1,  # the weight of the sample in a mean
        "largest": 2,  # the largest false score
        "factor": 3,  # of the logits in the softmax
        "slope": 4,  # dL / dz of a false class, without its sigmoid or its exponential against the largest
        "true": 5,  # dL / dz of the label
        "even": 6,  # the part of dL / dz that is the same for every false class
        "norm slope": 7,  # dL / d||z||
        "inverse": 8,  # 1 / ||z||
        # losses that couple rows use two of these lines for other numbers
        "score": 6,  # the true logit
        "sum": 7,  # over false classes: of exponentials against the largest; for a hinge how many are the largest
    }[what]


LINES = 1 + place("inverse")


@dataclass(frozen=True)
class RowLoss:
    """A loss in the form that the kernels for labels take."""

    kind: Kind
    numbers: Numbers
    ignored: int
    class_weight: Tensor | None = None  # (K,) in float32
    offset: Tensor | None = None  # (K,) in float32
    smooth: bool = False
    coupled: bool = False  # whether the loss couples the samples of the batch
    sample_term: bool = True  # of a coupled hinge: whether each row's own loss counts too


def is_hinge(loss: Loss | type[Loss]) -> bool:
    """Whether two logits of each row have a gradient: the true one and the largest false one."""
    return loss.row_form is not None and loss.row_form.kind is Kind.HINGE


def has_row_loss(loss: Loss) -> bool:
    """Whether the kernels for labels can compute the loss."""
    form = loss.row_form
    if form is None or not loss.only_calls_function():
        return False
    options: dict[str, Any] = loss.hyperparameters()
    if options.get("group") is not None:
        return False
    tensors = {option: value for option, value in options.items() if isinstance(value, Tensor)}
    if not tensors.keys() <= VECTORS or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())):
        return False
    return not options.get("label_smoothing") or (form.smooths and options["weight"] is None)


def row_loss(loss: Loss, K: int, device: torch.device) -> RowLoss:
    """A loss that the kernels for labels can compute, in the form that they take."""
    form, options = loss.row_form, loss.hyperparameters()
    assert form is not None
    plain = tuple((option, value) for option, value in options.items() if option not in VECTORS)
    numbers = _read_numbers(form, type(loss).function, K, loss.needs_counts, plain)
    weight = offset = None
    logits = torch.empty(0, K, dtype=torch.float32, device=device)
    if options.get("weight") is not None:
        weight = read_class_vector(options["weight"], "weight", logits).contiguous()
    if form.offset is not None:
        offset = form.offset(options, logits).contiguous()
    ignore_index = options.get("ignore_index")
    return RowLoss(
        form.kind,
        numbers,
        NO_LABEL if ignore_index is None else int(ignore_index),
        weight,
        offset,
        smooth=options.get("label_smoothing", 0.0) > 0,
        coupled=loss.couples_batch,
        sample_term=bool(options.get("sample_term", True)),
    )


@functools.lru_cache(maxsize=256)
def _read_numbers(
    form: RowForm, function: Callable[..., Tensor], K: int, counted: bool, plain: tuple[tuple[str, Any], ...]
) -> Numbers:
    """The numbers of a loss with these hyperparameters. Its own function checks them once, on no samples."""
    counts = {"counts": torch.ones(K)} if counted else {}
    function(torch.empty(0, K), torch.empty(0, dtype=torch.long), **dict(plain), **counts)
    factor, a, b, c = (*form.numbers(dict(plain), K), 0.0, 0.0, 0.0)[:4]
    return float(factor), float(a), float(b), float(c)


# What replaces the kernels: the loss's own function under torch.compile.

_compiled: dict[Any, RowFunction | None] = {}  # None if compiling failed
_count = itertools.count()


def losses_and_gradient(loss: Loss) -> RowFunction | None:
    """f(z, target, upstream, tensors), which returns one loss per row and writes upstream dL/dz into z. May be None.

    It is made once for a loss and its numbers. Its tensors (`tensors_of`) are arguments, because their values change.
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
        z.copy_(pull(upstream)[0])
        return values  # type: ignore[no-any-return]

    return compiled((type(loss), tuple(options.items()), tuple(tensors)), rows)


def tensors_of(loss: Loss) -> dict[str, Tensor]:
    """The tensors among a loss's hyperparameters, without history."""
    return {name: value.detach() for name, value in loss.hyperparameters().items() if isinstance(value, Tensor)}


def compiled(key: Any, function: RowFunction) -> RowFunction | None:
    """The function under torch.compile, one for each key. None if that failed before, which warned once.

    A call raises `CompilationError` if compiling fails.
    """
    if key in _compiled:
        return _compiled[key]
    made: dict[Any, RowFunction] = {}  # by device, dtype and shape of the tensors, without their number of rows

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
    """The function with its own code object. torch.compile counts recompilations per code object, up to a limit."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_count)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
