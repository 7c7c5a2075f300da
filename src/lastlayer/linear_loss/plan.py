"""Which way a linear layer and its loss are computed, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lastlayer.linear_loss._label_losses import COUPLED, FORMS, has_form
from lastlayer.linear_loss._products import WIDTH, padded
from lastlayer.losses import Loss, available, create, entry

Path = Literal["dense", "rows", "classes"]

SMALL = 2**24  # logits up to which the whole matrix is cheaper than any way around it: 64 MiB in float32
CHUNK = 2**26  # most logits of a chunk of rows: with what a loss keeps for its gradient, about 1 GiB
ENOUGH_ROWS = 2048  # samples of a chunk from which more would gain nothing
TILE = 2**22  # logits of a tile of classes, which touches each row of the weight once however small it is
FEWEST_CLASSES = 4096  # of a tile, all the same: a product of fewer columns is slow
GPU_CHUNK = 2**28  # most logits of a chunk on a GPU, where it is computed in place: 512 MiB in half precision
GPU_TILE = 2**25  # logits of a tile on a GPU
GPU_SMALL = 2**20  # logits from which on kernels, where a loss has them, take fewer passes than the whole matrix
NARROW = 10  # classes below which kernels have not been timed and are not used
ONE_PROGRAM = 2**18  # rows that one program adds or couples in less time than the host needs for a step
FEWEST_ROWS = 512  # below, adding to the whole weight gradient once a chunk costs more than computing logits twice

NEVER = {"kd": "the teacher's logits", "fn-kd": "the teacher's logits and features"}
BY_CLASSES = {"ce", "ls", "sln", "ln", "bce", "self-norm", "logit-adjusted", "batch-ce", "mse"}
AGAINST_OTHERS = {"focal", "soft-margin", "arc-margin", "large-margin"}  # by classes too, where the target is labels
SPARSE = {"max-margin", "batch-max-margin"}
SPARSE_PAYS = 2**39  # N d K, from which single entries of a gradient gain more over products than their search costs
SHARDED = BY_CLASSES - {"mse"}  # whose numbers of a sample are sums over the classes of each rank


@dataclass(frozen=True)
class Plan:
    """How `linear_loss` goes about it.

    Attributes:
        path: "dense", the whole N x K logits; "rows", a chunk of samples at a time with every class; "classes", a tile
            of classes at a time with every sample, the logits computed again for the gradient.
        why: the reason, for people.
        rows: samples in a chunk; None but for "rows".
        classes: classes in a tile; None but for "classes".
    """

    path: Path
    why: str
    rows: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if self.path not in ("dense", "rows", "classes"):
            raise ValueError(f"path must be 'dense', 'rows' or 'classes', got {self.path!r}")
        for name, value, path in (("rows", self.rows, "rows"), ("classes", self.classes, "classes")):
            if (value is None) != (self.path != path):
                raise ValueError(f"{name} belongs to the path {path!r}: got {name}={value} with path={self.path!r}")
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a positive integer, got {value!r}")


def plan(
    N: int, d: int, K: int, loss: Loss | str, *, probabilities: bool = False, device: torch.device | str = "cpu"
) -> Plan:
    """Choose how to compute a loss on a linear layer: all logits at once, chunks of rows, or tiles of classes.

    On a CPU:
        dense     N K <= 2^24
        rows      chunks of 2048 samples, or of as many as have 2^24 logits, or of 2^26 / K >= 512 where that is less;
                  where that is more than half of the samples, of a quarter of them
        classes   otherwise, and for `mse`, whose sum of squares needs no logits at all, unless d is much larger than N:
                  tiles of 2^22 logits, or of 4096 classes where that is more, of 2^26 logits at most

    On a GPU, where a chunk is computed in place:
        dense     N K <= 2^20 for labels, ten classes or more and a loss that has kernels; else N K <= 2^24
        rows      chunks of 2^28 logits, if those are all samples or at least 512
        classes   otherwise, and for `mse` as above: tiles of 2^25 logits

    but there
        - `large-margin` of labels is dense up to 2^24 logits, as its kernels have many small steps between them, and up
          to 2^26 where the features are four times as wide as the logits; a chunk has at most 2^28 features too;
        - `large-margin` of class probabilities goes by the sizes of a CPU: its chunks read and write the whole weight;
        - batch losses of more than 2^18 samples are dense up to 2^26 logits: kernels do not couple as many, and what
          takes their place goes over the features several times.

    A loss that has no form by class tiles takes rows whatever their number; `why` says so.

    Args:
        N, d, K: samples, width of the features, classes; not negative, d and K at least 1.
        loss: a loss Module or a name for `lastlayer.losses.create`.
        probabilities: whether the target is class probabilities (N, K) rather than labels or a mixed pair.
        device: a torch device or its name.

    Returns:
        A `Plan`, to look at or to give to `linear_loss`, which then takes that path or raises.

    Raises:
        ValueError: for sizes that are none, and for kd and fn-kd, which need a teacher.

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
    name = name_of(loss)
    refuse_teachers(name)
    through_weight = name == "large-margin" and probabilities  # angles to all classes need more than the logits
    in_place = torch.device(device).type == "cuda" and not through_weight
    too_many = name in COUPLED and N > ONE_PROGRAM
    formed = has_form(name, loss) if isinstance(loss, Loss) else name in FORMS
    sparse = name in SPARSE and N * d * K > SPARSE_PAYS
    by_kernels = in_place and K >= NARROW and formed and not (too_many or sparse or probabilities)
    if by_kernels and GPU_SMALL < N * K <= SMALL:
        return Plan("rows", f"{N * K} logits; all rows of them fit a chunk", rows=N)
    if N * K <= SMALL:
        return Plan("dense", f"{N * K} logits are few")
    if in_place and N * K <= CHUNK:
        if too_many and not probabilities:
            return Plan("dense", f"{N * K} logits are few for {N} rows, which are more than kernels couple")
        if name == "large-margin" and d >= 4 * K:
            return Plan("dense", f"{N * K} logits are few beside the features, {d} wide")
    wide = max(d, padded(K)) if name == "large-margin" else padded(K)  # it makes a float32 copy of the features
    rows = max(1, GPU_CHUNK // wide if in_place else min(CHUNK // K, max(ENOUGH_ROWS, SMALL // K)))
    classes = tile(N, K, device)
    tiled = name in (BY_CLASSES if probabilities else BY_CLASSES | AGAINST_OTHERS) and name != "mse"
    samples = getattr(loss, "samples", None)
    if name == "nce" and samples is not None and not probabilities:
        drawn = int(samples.shape[-1])
        return Plan("classes", f"only the {drawn} drawn classes of a sample are looked at", classes=drawn)
    enough = rows >= FEWEST_ROWS or (in_place and rows >= N)
    squares_pay = 2 * d * (N + K) < (3 if enough else 8) * N * K  # what the logits would cost instead
    if name == "mse" and squares_pay and not probabilities:
        return Plan("classes", "squares are summed without the logits", classes=classes)
    if enough and (in_place or 2 * rows <= N):
        return Plan("rows", f"{N * K} logits; {rows} rows of them fit a chunk", rows=min(rows, N))
    if enough:  # beside the weight's gradient, which waits for all chunks, most of the logits are more than dense holds
        rows = -(-N // 4)
        return Plan("rows", f"{N * K} logits; a quarter of their rows is a chunk", rows=rows)
    if tiled:
        return Plan("classes", f"{N * K} logits; only {rows} rows of {K} classes would fit a chunk", classes=classes)
    rows = min(rows, max(1, N // 4))  # one chunk of all would hold what the dense form does
    if name in SPARSE and not probabilities:
        return Plan("rows", "the gradient has a few entries a row, so small chunks cost nothing", rows=rows)
    why = f"{name} of this target has no form by classes"
    if name == "mse" and not probabilities:
        why = f"summing squares without the logits would cost more at d={d}"
    return Plan("rows", f"{rows} rows fit a chunk, which is few, but {why}", rows=rows)


def refuse_teachers(name: str) -> None:
    """Raise for a loss that needs a teacher."""
    if name in NEVER:
        raise ValueError(f"linear_loss has no place for {NEVER[name]}: call {name!r} on the logits instead")


def eager_rows(size: int, K: int) -> int:
    """Samples of a chunk of at most `size` that is not computed in place: float32 copies of it are made on the way."""
    return min(size, max(1, CHUNK // K))


def tile(N: int, K: int, device: torch.device | str = "cpu") -> int:
    """Classes in a tile of N samples."""
    wanted = GPU_TILE if torch.device(device).type == "cuda" else TILE
    size = max(wanted // max(N, 1), min(FEWEST_CLASSES, max(1, CHUNK // max(N, 1))))
    return min(K, size // WIDTH * WIDTH or size)


def name_of(loss: Loss | str) -> str:
    """The registry's name of a loss; of a Module, the first name its class is registered under."""
    if isinstance(loss, str):
        return entry(loss).name
    if not isinstance(loss, Loss):
        raise TypeError(f"loss must be a Module of lastlayer.losses or a name for create, got {type(loss).__name__}")
    for name in available():
        if entry(name).module is type(loss):
            return name
    return f"{type(loss).__module__}.{type(loss).__qualname__}"  # not a name of the registry, whatever it is called


def module_of(loss: Loss | str) -> Loss:
    """The loss as a Module."""
    return create(loss) if isinstance(loss, str) else loss
