"""What `linear_loss` must know of a loss, beyond its function, to compute it without all logits: plain data.

A loss declares a form on its class, as `row_form` or `class_form`. A loss without forms still works: `linear_loss` then
calls its function on a chunk of rows at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from torch import Tensor

from lastlayer.losses.target import Problem

Options = Mapping[str, Any]  # the hyperparameters of a loss
Offset = Callable[[Options, Tensor], Tensor]  # hyperparameters and logits (N, K) to one number per class, (K,)


class Kind(StrEnum):
    """What the kernels compute from a row of logits z with label y, and from four numbers: a factor f, and a, b, c.

    ce(s) is cross-entropy of the scores s = f z, plus an offset per class if the form has one.
    """

    SOFTMAX = "softmax"  # ce(s) with s_y - a in place of s_y, against a target smoothed by b
    NORM = "norm"  # ce(s / ||z||^a)
    BINARY = "binary"  # softplus(-s_y) + b (sum_{j != y} softplus(s_j) + c softplus(s_y)), with s = z + a
    FOCUS = "focus"  # (1 - p_y)^a ce(s), p = softmax(s)
    PARTITION = "partition"  # ce(s) + a (log sum_j exp(s_j))^2
    ARC = "arc"  # ce(s) with f cos(theta_y + c) in place of s_y, z_y = cos(theta_y), a = cos(c), b = sin(c)
    HINGE = "hinge"  # max(0, a - z_y + max_{j != y} z_j)
    SQUARES = "squares"  # a (z_y - b)^2 + sum_{j != y} z_j^2


@dataclass(frozen=True)
class RowForm:
    """How the kernels compute the loss of samples with one label each, from whole rows of logits."""

    kind: Kind  # what they compute
    numbers: Callable[[Options, int], tuple[float, ...]]  # returns f, a, b, c; those left out are 0
    offset: Offset | None = None  # what is added to the scores of each class, if the loss adds something
    smooths: bool = False  # whether the target may be smoothed


@dataclass(frozen=True)
class Sums:
    """What the softmax losses need of each sample, (N,) each.

    s are the scores, M is the largest of them, and q is the target times the class weights.
    """

    log_sum: Tensor  # log sum_k exp(s_k - M)
    dot: Tensor  # sum_k q_k (s_k - M)
    largest: Tensor  # M, without gradient: in the losses it cancels
    mass: Tensor  # sum_k q_k


def cross_entropy_of(sums: Sums, options: Options) -> Tensor:
    """sum_k q_k (log sum_j exp(s_j) - s_k), (N,)."""
    return sums.mass * sums.log_sum - sums.dot


@dataclass(frozen=True, kw_only=True)
class ClassForm:
    """How a loss is computed from tiles of classes."""

    labels_alone: ClassVar[bool] = False  # whether the target must be labels, one or a mixed pair per sample
    shards: ClassVar[bool] = False  # whether the classes may be split over the ranks of a process group
    learnable: tuple[str, ...] = ()  # the hyperparameters that may be learned, and then get a gradient


@dataclass(frozen=True, kw_only=True)
class SoftmaxForm(ClassForm):
    """A function of two sums over all classes. The scores are s = z, unless an attribute says otherwise."""

    shards = True
    value: Callable[[Sums, Options], Tensor] = cross_entropy_of  # one loss per sample, or the loss of the batch
    temperature: str | None = None  # the name of the hyperparameter T, if s = z / T
    norm: Callable[[Options, int], tuple[float, float]] | None = None  # gamma and tau, if s = z / (tau ||z||^gamma)
    offset: Offset | None = None  # what is added to the scores of each class, if the loss adds something


@dataclass(frozen=True, kw_only=True)
class OthersForm(ClassForm):
    """A function of two numbers: the true logit, and the log-sum of the others.

    `replaced` takes the true logit, ||w|| ||h|| and the hyperparameters, and returns the logit that takes the place of
    the true one in cross-entropy. The product of norms is None unless the loss takes features and weight. Without
    `replaced`, the function of the loss is called on the two numbers, as if they were logits of two classes.
    """

    labels_alone = True
    replaced: Callable[[Tensor, Tensor | None, Options], Tensor] | None = None
    scale: str | None = None  # the name of the hyperparameter that multiplies the logits, if there is one


@dataclass(frozen=True, kw_only=True)
class BinaryForm(ClassForm):
    """Binary cross-entropy: a sum of one term per class. Reads `pos_weight` and `label_smoothing`."""

    shards = True


@dataclass(frozen=True, kw_only=True)
class SquaresForm(ClassForm):
    """kappa (z_y - beta)^2 + sum_{j != y} z_j^2, a sum that needs no logits. Reads `kappa` and `beta`."""

    labels_alone = True


@dataclass(frozen=True, kw_only=True)
class DrawnForm(ClassForm):
    """Logistic losses of the label and of some drawn classes. It applies only if `samples` are given.

    Reads `samples` and `include_target`. `read` takes the hyperparameters and the problem, and returns the drawn
    classes, (N, t), and how often each class is expected among t drawn ones, (K,).
    """

    labels_alone = True
    read: Callable[[Options, Problem], tuple[Tensor, Tensor]]
