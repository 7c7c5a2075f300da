"""Checks of inputs that all measures share, and loops over the blocks of large matrices."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from lastlayer._core.labels import check_classes, read_labels
from lastlayer._core.precision import check_floating

Logits: TypeAlias = Tensor | Callable[[], Iterable[Tensor]]
"""An (N, K) tensor, or a function without arguments that yields its column blocks (N, b) in the order of classes."""


def read_target(target: Tensor, samples: int, device: torch.device) -> Tensor:
    """The labels as int64 on `device`. The caller checks their range, because on a GPU the CPU has to wait for that."""
    hint = "; class probabilities have no ranking: pass probabilities.argmax(dim=1)"
    return read_labels(target, samples, instead=hint).to(device)


def check_labelled(target: Tensor, num_classes: int) -> None:
    """Raise for labels outside 0..num_classes-1, and so for ignore_index: rows without a label cannot be measured."""
    check_classes(target, num_classes, instead="; drop unlabelled rows before measuring")


def check_matrix(values: Tensor, name: str, *, empty: bool = False) -> Tensor:
    """Check an (N, K) tensor of floating dtype, and detach it. `empty` allows N = 0."""
    check_floating(values, name)
    if values.dim() != 2:
        raise ValueError(
            f"{name} must have shape (samples, classes), got {tuple(values.shape)}; "
            "flatten other dimensions into the samples"
        )
    if values.shape[1] == 0 or (values.shape[0] == 0 and not empty):
        raise ValueError(f"{name} is empty, shape {tuple(values.shape)}: there is nothing to measure")
    return values.detach()


def check_pair(values: Tensor, target: Tensor, name: str = "logits") -> tuple[Tensor, Tensor]:
    """Check a matrix and its labels, including their range."""
    values = check_matrix(values, name)
    target = read_target(target, values.shape[0], values.device)
    check_labelled(target, values.shape[1])
    return values, target


def check_probabilities(values: Tensor, name: str) -> None:
    """Raise for numbers outside [0, 1] and for NaN."""
    low, high = torch.aminmax(values)
    if not bool((low >= 0) & (high <= 1)):
        raise ValueError(
            f"{name} must lie in [0, 1], got {low.item():.4g}..{high.item():.4g}; "
            "turn logits into probabilities with the loss's probabilities()"
        )


def check_bias(bias: Tensor, logits: Tensor) -> None:
    """Raise unless the bias has exactly one entry per column of the logits."""
    if not isinstance(bias, Tensor):
        raise TypeError(f"bias must be a tensor, got {type(bias).__name__}")
    if bias.shape != (logits.shape[1],):
        raise ValueError(f"bias must have shape ({logits.shape[1]},), one per class, got {tuple(bias.shape)}")


def refuse_nan(values: Tensor, name: str) -> None:
    """Raise for NaN, which has no place in a ranking. amax passes NaN on, and is much faster than isnan().any()."""
    if values.numel() and bool(values.amax().isnan()):
        raise ValueError(f"{name} contain NaN, which has no place in a ranking")


def column_blocks(logits: Logits, name: str = "logits") -> Iterator[Tensor]:
    """The (N, b) column blocks of logits, in the order of classes. A tensor is one block."""
    if isinstance(logits, Tensor) or not callable(logits):
        yield check_matrix(logits, name)
        return
    samples = None
    for block in logits():
        checked = check_matrix(block, f"a block of {name}")
        if samples is not None and checked.shape[0] != samples:
            raise ValueError(
                f"every block of {name} must have the same {samples} rows, got {checked.shape[0]}; "
                "blocks are columns (classes), not batches of samples"
            )
        samples = checked.shape[0]
        yield checked
    if samples is None:
        raise ValueError(f"{name}() yielded no block: there is nothing to measure")


def row_blocks(values: Tensor, elements: int = 1 << 22) -> Iterator[slice]:
    """Slices of rows with about `elements` entries each, so that a float64 copy of a slice stays small."""
    rows = max(1, elements // values.shape[1])
    for start in range(0, values.shape[0], rows):
        yield slice(start, min(start + rows, values.shape[0]))
