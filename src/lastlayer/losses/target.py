"""Reads and checks the logits and targets of every loss, so that all losses accept the same and report the same errors.

A target is one of three: class indices (N, ...), class probabilities (N, K, ...), or a mixed pair (y_a, y_b, lam).
The pair means exactly the probabilities lam e_{y_a} + (1 - lam) e_{y_b}. It serves mixup and cutmix without a matrix of
N x K probabilities.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lastlayer._core.labels import INTEGERS, check_classes
from lastlayer._core.precision import at_least_float32, check_floating

Reduction = Literal["none", "mean", "sum"]
MixedPair = tuple[Tensor, Tensor, "Tensor | float"]
Target = Tensor | MixedPair

_always_check_labels = False


@contextlib.contextmanager
def check_labels() -> Iterator[None]:
    """Inside this context, the range of labels is checked on every device. Outside, only on the CPU.

    On a GPU the check would make the CPU wait in every step. Use the context for the first step of a training, or to
    find the label that caused a device-side assertion.

    Example:
        >>> import torch
        >>> from lastlayer import losses
        >>> with losses.check_labels():
        ...     losses.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3]))
        Traceback (most recent call last):
        ValueError: target has the label 3, but there are 3 classes: labels must lie in 0..2, or equal ignore_index=-100
    """
    global _always_check_labels
    before, _always_check_labels = _always_check_labels, True
    try:
        yield
    finally:
        _always_check_labels = before


@dataclass
class Labels:
    """Class indices. Their mask and their index are computed when they are first needed.

    They are not a `functools.cached_property`, which torch.compile cannot trace here.
    """

    given: Tensor  # (N, ...) int64
    ignored: int | None  # samples with this label do not count
    share: Tensor | float = 1.0  # the part of the sample's target that belongs to this label
    _valid: Tensor | None = field(default=None, init=False, repr=False)
    _index: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def valid(self) -> Tensor:
        """Which of them count, (N, ...) bool."""
        if self._valid is None:
            if self.ignored is None:
                self._valid = torch.ones_like(self.given, dtype=torch.bool)
            else:
                self._valid = self.given != self.ignored
        return self._valid

    @property
    def index(self) -> Tensor:
        """The labels in the shape that gather needs, (N, 1, ...). An ignored label becomes 0."""
        if self._index is None:
            self._index = torch.where(self.valid, self.given, 0).unsqueeze(1)
        return self._index


@dataclass(frozen=True)
class Problem:
    """The inputs of one call of a per-sample loss, checked and in one form.

    Either `probabilities` or `labels` is given. Two labels are a mixed pair.
    """

    logits: Tensor  # (N, K, ...) float32 or float64
    labels: tuple[Labels, ...]
    probabilities: Tensor | None  # (N, K, ...)
    weight: Tensor | None  # (K,)
    reduction: Reduction
    unbatched: bool  # the caller gave logits (K,)

    def row_of_classes(self, values: Tensor) -> Tensor:
        """Reshape values (K,) so that they broadcast with the logits (N, K, ...)."""
        return values.reshape(1, -1, *[1] * (self.logits.dim() - 2))

    def reduce(self, per_sample: Tensor, normaliser: Tensor | int) -> Tensor:
        """Apply the reduction. The mean divides by the normaliser, as torch's cross_entropy does."""
        if self.reduction == "sum":
            return per_sample.sum()
        if self.reduction == "mean":
            return per_sample.sum() / normaliser
        return per_sample.squeeze(0) if self.unbatched else per_sample


def read(
    logits: Tensor,
    target: Target,
    *,
    weight: Tensor | None = None,
    ignore_index: int | None = -100,
    reduction: str = "mean",
    name: str = "logits",
    weight_name: str = "weight",
) -> Problem:
    """Check the arguments of a per-sample loss and bring them to one form. ignore_index=None ignores no label."""
    logits = read_scores(logits, name)
    if ignore_index is not None and not isinstance(ignore_index, int | np.integer):
        raise TypeError(f"ignore_index must be an integer, got {ignore_index!r}")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    target = pair_from_list(target)
    unbatched = logits.dim() == 1
    if unbatched:
        logits = logits.unsqueeze(0)
        target = _add_batch_dimension(target)
    if weight is not None:
        weight = read_class_vector(weight, weight_name, logits)
    labels: tuple[Labels, ...] = ()
    probabilities = None
    if isinstance(target, tuple):
        labels = _read_pair(target, logits, ignore_index, name)
    elif is_probabilities(target, logits, name):
        if ignore_index is not None and ignore_index >= 0:
            raise ValueError(
                f"ignore_index={ignore_index} applies to class indices; the target holds class probabilities. "
                "Give an ignored sample weight 0 in the target instead"
            )
        probabilities = target.to(logits.dtype)
    else:
        labels = (_read_labels(target, logits, ignore_index, name),)
    return Problem(logits, labels, probabilities, weight, reduction, unbatched)  # type: ignore[arg-type]


def read_scores(scores: Tensor, name: str) -> Tensor:
    """Check a floating-point tensor (N, K, ...) or (K,), and convert half precision to float32."""
    check_floating(scores, name)
    if scores.dim() == 0 or scores.shape[min(1, scores.dim() - 1)] == 0:
        raise ValueError(f"{name} must have shape (N, K, ...) or (K,) with K >= 1 classes, got {tuple(scores.shape)}")
    return at_least_float32(scores)


def read_class_vector(values: Tensor | Sequence[float], name: str, logits: Tensor) -> Tensor:
    """Check values of shape (K,) and convert them to the logits' dtype. Sequences become tensors."""
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, dtype=logits.dtype, device=logits.device)
    if values.is_complex() or values.dtype is torch.bool:
        raise TypeError(f"{name} must be real numbers, got {values.dtype}")
    if values.shape != logits.shape[1:2]:
        raise ValueError(
            f"{name} must have shape ({logits.shape[1]},), one number per class, got {tuple(values.shape)}"
        )
    check_same_device(values, name, logits)
    return values.to(logits.dtype)


def is_probabilities(target: Tensor, logits: Tensor, name: str) -> bool:
    """Whether a target holds class probabilities, judged by shape and dtype as in torch's cross_entropy."""
    if not isinstance(target, Tensor):
        raise TypeError(
            "target must be a tensor of class indices or class probabilities, or a mixed pair (y_a, y_b, lam), "
            f"got {type(target).__name__}"
        )
    if target.shape != logits.shape:
        return False
    if not target.is_floating_point():
        raise TypeError(
            f"target has the shape of {name}, {tuple(target.shape)}, so it must hold class probabilities in floating "
            f"point, got {target.dtype}: convert with target.float(), or give class indices of shape "
            f"{(target.shape[0], *target.shape[2:])}"
        )
    check_same_device(target, "target", logits)
    return True


def check_range(
    name: str, value: Tensor | float, low: float, high: float = float("inf"), *, open_low: bool = False
) -> None:
    """Raise unless low <= value <= high, or low < value if `open_low`."""
    if isinstance(value, Tensor):  # a learnable or scheduled number: the CPU would have to wait for the GPU to read it
        return
    if not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not (low < value <= high if open_low else low <= value <= high):
        bracket = "(" if open_low else "["
        raise ValueError(f"{name} must lie in {bracket}{low}, {high}], got {value}")


def pair_from_list(target: Any) -> Any:
    """Turn a list of tensors into a tuple, because a data loader that pins memory turns every tuple into a list."""
    holds_tensors = isinstance(target, list) and any(isinstance(part, Tensor) for part in target)
    return tuple(target) if holds_tensors else target


def _add_batch_dimension(target: Target) -> Target:
    if isinstance(target, tuple):
        return tuple(t.unsqueeze(0) if isinstance(t, Tensor) else t for t in target)  # type: ignore[return-value]
    return target.unsqueeze(0) if isinstance(target, Tensor) else target


def _read_labels(
    labels: Tensor, logits: Tensor, ignore_index: int | None, name: str, share: Tensor | float = 1.0
) -> Labels:
    expected = (logits.shape[0], *logits.shape[2:])
    if tuple(labels.shape) != expected:
        raise ValueError(
            f"target must be class indices of shape {expected} or class probabilities of shape {tuple(logits.shape)} "
            f"for {name} of shape {tuple(logits.shape)}, got shape {tuple(labels.shape)}"
        )
    if labels.dtype not in INTEGERS:
        raise TypeError(
            f"class indices must be integers, got {labels.dtype}: convert with target.long(), or give class "
            f"probabilities of shape {tuple(logits.shape)}"
        )
    check_same_device(labels, "target", logits)
    found = Labels(labels.long(), None if ignore_index is None else int(ignore_index), share)
    if may_read(labels):
        check_label_range("target", found.index, logits.shape[1], ignore_index)
    return found


def _read_pair(pair: MixedPair, logits: Tensor, ignore_index: int | None, name: str) -> tuple[Labels, ...]:
    if len(pair) != 3:
        raise ValueError(f"a mixed target is (y_a, y_b, lam), got a tuple of {len(pair)}")
    first, second, lam = pair
    if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        raise TypeError("y_a and y_b of a mixed target must be tensors of class indices")
    if isinstance(lam, Tensor):
        if lam.dim():
            if tuple(lam.shape) != (logits.shape[0],):
                raise ValueError(f"lam must be a number or of shape ({logits.shape[0]},), got {tuple(lam.shape)}")
            check_same_device(lam, "lam", logits)
            lam = lam.reshape(-1, *[1] * (logits.dim() - 2))
        lam = lam.to(logits.dtype)
    else:
        check_range("lam", lam, 0.0, 1.0)
    return (
        _read_labels(first, logits, ignore_index, name, lam),
        _read_labels(second, logits, ignore_index, name, 1 - lam),
    )


def check_label_range(name: str, labels: Tensor, num_classes: int, ignore_index: int | None = None) -> None:
    """Raise ValueError for a label out of range. On other devices than the CPU, only inside `check_labels`."""
    if may_read(labels):
        ignored = "" if ignore_index is None else f", or equal ignore_index={ignore_index}"
        with contextlib.suppress(RuntimeError):  # inside vmap no value can be read
            check_classes(labels, num_classes, name=name, instead=ignored)


def is_violated(condition: Callable[[Tensor], Tensor], values: Tensor) -> bool:
    """Whether values break a condition. On other devices than the CPU, only checked inside `check_labels`."""
    if not may_read(values):
        return False
    try:
        return not bool(condition(values))
    except RuntimeError:  # inside vmap no value can be read
        return False


def may_read(values: Tensor) -> bool:
    """Whether values may be read now. On a GPU the CPU would have to wait for them, so only inside `check_labels`."""
    return not torch.compiler.is_compiling() and (values.device.type == "cpu" or _always_check_labels)


def check_same_device(tensor: Tensor, name: str, logits: Tensor) -> None:
    """Raise unless the tensor is where the logits are."""
    if tensor.device != logits.device:
        raise ValueError(f"{name} is on {tensor.device}, the logits on {logits.device}: move one with .to(device)")
