"""How a linear layer and its loss are computed, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lastlayer.linear_loss.kernels import has_row_loss, is_hinge
from lastlayer.linear_loss.products import WIDTH, padded
from lastlayer.losses import Loss, as_loss, entry
from lastlayer.losses.forms import DrawnForm, SquaresForm

Path = Literal["dense", "rows", "classes"]

SMALL = 2**24  # most logits for which the whole matrix is the cheapest way: 64 MiB in float32
CHUNK = 2**26  # most logits of a chunk of rows: about 1 GiB with what a loss keeps for its gradient
ENOUGH_ROWS = 2048  # samples of a chunk; more would gain nothing
TILE = 2**22  # logits of a tile of classes; small tiles cost little, because each touches its own rows of the weight
FEWEST_CLASSES = 4096  # fewest classes of a tile, because a product of fewer columns is slow
GPU_CHUNK = 2**28  # most logits of a chunk on a GPU, which computes in place: 512 MiB in half precision
GPU_TILE = 2**25  # logits of a tile on a GPU
GPU_SMALL = 2**20  # logits above which kernels, if a loss has them, take fewer passes than the whole matrix
NARROW = 10  # fewest classes for kernels, because fewer have not been timed
ONE_PROGRAM = 2**18  # most rows that one program adds or couples in less time than the CPU needs for a step
FEWEST_ROWS = 512  # fewest rows of a chunk; with fewer, updates of the whole weight gradient cost more than new logits
SPARSE_PAYS = 2**39  # N d K above which single entries of a gradient save more products than their search costs


@dataclass(frozen=True)
class Plan:
    """The path that `linear_loss` takes.

    "dense": all N x K logits. "rows": a chunk of samples at a time, with every class. "classes": a tile of classes at a
    time, with every sample; the logits are computed again for the gradient.
    """

    path: Path
    why: str  # the reason, in words
    rows: int | None = None  # samples in a chunk, only for the path "rows"
    classes: int | None = None  # classes in a tile, only for the path "classes"

    def __post_init__(self) -> None:
        if self.path not in ("dense", "rows", "classes"):
            raise ValueError(f"path must be 'dense', 'rows' or 'classes', got {self.path!r}")
        for name, value, path in (("rows", self.rows, "rows"), ("classes", self.classes, "classes")):
            if (value is None) != (self.path != path):
                raise ValueError(f"{name} belongs to the path {path!r}: got {name}={value} with path={self.path!r}")
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")


def plan(
    N: int,
    d: int,
    K: int,
    loss: Loss | str | Callable[..., Tensor],
    *,
    probabilities: bool = False,
    device: torch.device | str = "cpu",
) -> Plan:
    """Choose how to compute a loss on a linear layer: all logits at once, chunks of rows, or tiles of classes.

    On a CPU:
        dense     if N K <= 2^24
        rows      if a chunk can have 512 samples or more. It has 2048 samples. It has more if they have at most 2^24
                  logits, and fewer if they would have more than 2^26. If that is more than half of the samples, it has
                  a quarter of them.
        classes   otherwise. Also for `mse`, whose sum of squares needs no logits, unless d is much larger than N. A
                  tile has 2^22 logits, or 4096 classes if that is more, but at most 2^26 logits.

    On a GPU, which computes a chunk in place:
        dense     if N K <= 2^24, or 2^20 if kernels take the loss, the target is labels and K >= 10. Up to 2^26 also
                  for batch losses of more than 2^18 samples, which kernels do not couple, and for `large-margin` of
                  features four times as wide as the logits.
        rows      if a chunk of 2^28 logits has all samples or at least 512
        classes   otherwise. Also for `mse`, as above. A tile has 2^25 logits.

    On a GPU `large-margin` differs. With labels it is dense up to 2^24 logits, because there are many small steps
    between its kernels, and a chunk has at most 2^28 entries of features too. With class probabilities it has the sizes
    of a CPU, because each of its chunks reads and writes the whole weight.

    A loss of your own is dense, unless its class says `in_pieces = True`. Its mean must then be that of
    `cross_entropy`.

    A loss without a form by tiles of classes takes rows, even if only a few rows fit a chunk. Then `why` says so.

    Args:
        N, d, K: samples, width of the features, classes. N is at least 0, d and K at least 1.
        loss: a loss, a name for `lastlayer.losses.create`, or any callable of (logits, target).
        probabilities: whether the target is class probabilities (N, K) rather than labels or a mixed pair.
        device: a torch device or its name.

    Returns:
        A `Plan`, to look at or to give to `linear_loss`, which then takes that path or raises.

    Raises:
        ValueError: for wrong sizes, and for a loss that needs a teacher.

    Example:
        >>> plan(8192, 2048, 32768, "ce")
        Plan(path='rows', why='268435456 logits; 2048 rows of them fit a chunk', rows=2048, classes=None)
        >>> plan(256, 512, 1_000_000, "sln").path, plan(8192, 512, 1000, "sln").path
        ('classes', 'dense')
    """
    for name, value, low in (("N", N, 0), ("d", d, 1), ("K", K, 1)):
        if not isinstance(value, int | np.integer) or value < low:
            raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
    N, d, K = int(N), int(d), int(K)
    loss = loss if isinstance(loss, str) else as_loss(loss)
    kind = class_of(loss)
    refuse_teachers(loss)
    if not kind.in_pieces:
        return Plan("dense", f"{called(loss)} does not say how the losses of some samples add up (in_pieces)")
    row_form, form = kind.row_form, kind.class_form
    in_place = torch.device(device).type == "cuda" and not (kind.takes_layer and probabilities)
    too_many = kind.couples_batch and row_form is not None and N > ONE_PROGRAM  # more than kernels couple
    taken = has_row_loss(loss) if isinstance(loss, Loss) else row_form is not None
    by_kernels = in_place and taken and suits_kernels(kind, N, d, K, N) and not probabilities
    if by_kernels and GPU_SMALL < N * K <= SMALL:
        return Plan("rows", f"{N * K} logits; all rows of them fit a chunk", rows=N)
    if N * K <= SMALL:
        return Plan("dense", f"{N * K} logits are few")
    if in_place and N * K <= CHUNK:
        if too_many and not probabilities:
            return Plan("dense", f"{N * K} logits are few for {N} rows, which are more than kernels couple")
        if kind.takes_layer and d >= 4 * K:
            return Plan("dense", f"{N * K} logits are few beside the features, {d} wide")

    width = max(d, padded(K)) if kind.takes_layer else padded(K)  # such a loss makes a float32 copy of the features
    rows = max(1, GPU_CHUNK // width if in_place else min(CHUNK // K, max(ENOUGH_ROWS, SMALL // K)))
    enough = rows >= FEWEST_ROWS or (in_place and rows >= N)
    classes = tile(N, K, device)
    if isinstance(form, DrawnForm):
        samples = getattr(loss, "samples", None)
        if samples is not None and not probabilities:
            drawn = int(samples.shape[-1])
            return Plan("classes", f"only the {drawn} drawn classes of a sample are looked at", classes=drawn)
        form = None
    if isinstance(form, SquaresForm) and not probabilities:
        if 2 * d * (N + K) < (3 if enough else 8) * N * K:  # the cost by way of the logits
            return Plan("classes", "squares are summed without the logits", classes=classes)
        why = f"summing squares without the logits would cost more at d={d}"
        form = None
    else:
        why = f"{called(loss)} of this target has no form by classes"
    if enough and (in_place or 2 * rows <= N):
        return Plan("rows", f"{N * K} logits; {rows} rows of them fit a chunk", rows=min(rows, N))
    if enough:  # larger chunks, with the weight's gradient that waits for all of them, would hold more than dense does
        return Plan("rows", f"{N * K} logits; a quarter of their rows is a chunk", rows=-(-N // 4))
    if form is not None and not (probabilities and form.labels_alone):
        return Plan("classes", f"{N * K} logits; only {rows} rows of {K} classes would fit a chunk", classes=classes)
    rows = min(rows, max(1, N // 4))  # one chunk of all samples would hold as much as the dense form
    if is_hinge(kind) and not probabilities:
        return Plan("rows", "the gradient has a few entries per row, so small chunks cost nothing", rows=rows)
    return Plan("rows", f"{rows} rows fit a chunk, which is few, but {why}", rows=rows)


def suits_kernels(loss: type[Loss], N: int, d: int, K: int, rows: int) -> bool:
    """Whether the kernels for labels pay at these sizes, with this many rows in a chunk."""
    if loss.row_form is None or K < NARROW or N == 0:
        return False
    if loss.couples_batch and min(rows, ONE_PROGRAM) < N:
        return False
    # For a hinge, single entries of the gradient cost less if the layer is large or the chunks are small.
    return not is_hinge(loss) or (N * d * K <= SPARSE_PAYS and rows >= min(N, FEWEST_ROWS))


def eager_rows(size: int, K: int) -> int:
    """Samples in a chunk of at most `size` that is not computed in place, so that eager code makes float32 copies."""
    return min(size, max(1, CHUNK // K))


def tile(N: int, K: int, device: torch.device | str = "cpu") -> int:
    """Classes in a tile with all N samples."""
    wanted = GPU_TILE if torch.device(device).type == "cuda" else TILE
    size = max(wanted // max(N, 1), min(FEWEST_CLASSES, max(1, CHUNK // max(N, 1))))
    return min(K, size // WIDTH * WIDTH or size)


def class_of(loss: Loss | str) -> type[Loss]:
    """The class of a loss, given as a Module or by name."""
    return entry(loss).module if isinstance(loss, str) else type(loss)


def called(loss: Loss | str) -> str:
    """The name of a loss in messages: the one by which it was given, else that of its class."""
    return entry(loss).name if isinstance(loss, str) else type(loss).__name__


def of_teacher(loss: type[Loss]) -> str:
    """What a loss needs from a teacher, in words. Empty for most losses."""
    needed = [name.removeprefix("teacher_") for name in loss.takes if name.startswith("teacher_")]
    return f"the teacher's {' and '.join(needed)}" if loss.needs_teacher else ""


def refuse_teachers(loss: Loss | str) -> None:
    """Raise if a loss needs a teacher, because linear_loss has no input for it."""
    if needed := of_teacher(class_of(loss)):
        raise ValueError(f"linear_loss has no place for {needed}: call {called(loss)!r} on the logits instead")
