"""What `linear_loss` must know of a loss, beyond its function, to compute it without all logits: plain data.

A loss declares a form on its class, as `row_form` or `class_form`. A loss without forms still works: `linear_loss` then
calls its function on a chunk of rows at a time. The hyperparameters that a form reads are those of one loss, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from lastlayer.losses.target import Problem

Options = Mapping[str, Any]  # the hyperparameters of a loss
Offset = Callable[[Options, Tensor], Tensor]  # hyperparameters and logits (., K) to one number per class, (K,)


class Kind(StrEnum):
    """What kernels compute of a row of logits with one label. Its numbers are a factor on the logits, and a, b, c."""

    SOFTMAX = "softmax"  # cross-entropy; the true score is reduced by a, the target is smoothed by b
    NORM = "norm"  # cross-entropy of logits that are divided by their norm to the power a
    BINARY = "binary"  # logistic losses of z + a; those of false classes count b times, and c times the label's own
    FOCUS = "focus"  # cross-entropy times the a-th power of 1 - p
    PARTITION = "partition"  # cross-entropy plus a times the squared log-partition
    ARC = "arc"  # cross-entropy; the true angle is enlarged by c radians, with cosine a and sine b
    HINGE = "hinge"  # the largest false logit may come within a of the true one at no cost
    SQUARES = "squares"  # squares of the false logits, and a times that of the true one less b


@dataclass(frozen=True)
class RowForm:
    """How the kernels compute the loss of samples with one label each, from whole rows of logits.

    Attributes:
        kind: what they compute.
        numbers: the hyperparameters and K to the factor and a, b, c; those left out are 0.
        offset: what is added to the logits of each class, if anything is.
        smooths: whether the target may be smoothed.
    """

    kind: Kind
    numbers: Callable[[Options, int], tuple[float, ...]]
    offset: Offset | None = None
    smooths: bool = False


@dataclass(frozen=True)
class Sums:
    """What the softmax losses need of each sample, (N,) each. s are the scores, M is their largest and q = t w."""

    log_sum: Tensor  # log sum_k exp(s_k - M)
    dot: Tensor  # sum_k q_k (s_k - M)
    largest: Tensor  # M, without gradient: in the losses it cancels
    mass: Tensor  # sum_k q_k


def cross_entropy_of(sums: Sums, options: Options) -> Tensor:
    """sum_k q_k (log sum_j exp(s_j) - s_k), (N,)."""
    return sums.mass * sums.log_sum - sums.dot


@dataclass(frozen=True, kw_only=True)
class ClassForm:
    """How a loss is computed from tiles of classes.

    Attributes:
        labels_alone: whether the target must be labels, one or a mixed pair per sample.
        shards: whether each rank of a process group may hold some of the classes only.
        learnable: the hyperparameters that get a gradient if they want one.
    """

    labels_alone: ClassVar[bool] = False
    shards: ClassVar[bool] = False
    learnable: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SoftmaxForm(ClassForm):
    """A function of two sums over all classes, with scores s = z / temperature, or divided by a norm, plus an offset.

    Attributes:
        value: the sums and the hyperparameters to one loss per sample, or to that of the batch.
        temperature: the hyperparameter that divides the logits, if one does.
        norm: the hyperparameters and K to gamma and tau, if s = z / (tau ||z||^gamma).
        offset: what is added to the scores of each class, if anything is.
    """

    shards = True
    value: Callable[[Sums, Options], Tensor] = cross_entropy_of
    temperature: str | None = None
    norm: Callable[[Options, int], tuple[float, float]] | None = None
    offset: Offset | None = None


@dataclass(frozen=True, kw_only=True)
class OthersForm(ClassForm):
    """A function of the true logit and the log-sum of the others.

    Attributes:
        replaced: the true logit, ||w|| ||h|| and the hyperparameters to what cross-entropy sees in its place. The norms
            are None unless the loss takes features and weight. Without it, the loss's own function is called on the two
            numbers, as if they were logits of two classes.
        scale: the hyperparameter that multiplies the logits, if one does.
    """

    labels_alone = True
    replaced: Callable[[Tensor, Tensor | None, Options], Tensor] | None = None
    scale: str | None = None


@dataclass(frozen=True, kw_only=True)
class BinaryForm(ClassForm):
    """Binary cross-entropy: a sum over classes, each on its own. Reads `pos_weight` and `label_smoothing`."""

    shards = True


@dataclass(frozen=True, kw_only=True)
class SquaresForm(ClassForm):
    """kappa (z_y - beta)^2 plus the squares of the other logits, which need no logits. Reads `kappa` and `beta`."""

    labels_alone = True


@dataclass(frozen=True, kw_only=True)
class DrawnForm(ClassForm):
    """Logistic losses of the label and of some drawn classes, `samples`. Only if there are any.

    Reads `samples` and `include_target`.

    Attributes:
        read: the hyperparameters and the problem to the drawn classes (N, t), and to how often each class is expected
            among t of them, (K,).
    """

    labels_alone = True
    read: Callable[[Options, Problem], tuple[Tensor, Tensor]]
