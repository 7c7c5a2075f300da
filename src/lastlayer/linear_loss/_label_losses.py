"""Losses of one label a sample as a kind and a few numbers: what the kernels of `_label_kernels` compute them from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from lastlayer.losses import Loss
from lastlayer.losses.forms import row_form_of
from lastlayer.losses.soft_logit_norm import resolve_tau
from lastlayer.losses.target import read_class_vector


class Kind(StrEnum):
    """A form of loss. Its numbers are a factor on the logits, and a, b, c."""

    SOFTMAX = "softmax"  # cross-entropy, the true score less a; smoothed by b
    NORM = "norm"  # cross-entropy of logits that are divided by their norm to the power a
    BINARY = "binary"  # logistic losses of z + a, the false ones b times; c times the label's as if it were false too
    FOCAL = "focal"  # exponent a
    SELF_NORM = "self-norm"  # strength a
    ARC = "arc"  # cross-entropy, the true angle enlarged by one of cosine a, sine b and radians c
    HINGE = "hinge"  # margin a
    SQUARES = "squares"  # the true one a times, from b


Numbers = tuple[float, float, float, float]


def place(what: str) -> int:
    """The line that holds a number of each row. Written out here: of a function Triton's cache sees the text alone."""
    return {
        "value": 0,
        "mass": 1,  # what the sample counts in a mean
        "largest": 2,  # false score
        "factor": 3,  # on the logits in the softmax
        "slope": 4,  # dL / dz of a false class, but for its sigmoid or its exponential against the largest
        "true": 5,  # dL / dz of the label
        "even": 6,  # dL / dz of every other class beyond that
        "norm slope": 7,  # dL / d||z||
        "inverse": 8,  # 1 / ||z||
        # of a loss that couples rows, which has no use for those two
        "score": 6,  # the true logit
        "sum": 7,  # over the false classes: of the exponentials against the largest, or how many are the largest
    }[what]


LINES = 1 + place("inverse")
NO_LABEL = -(2**63)  # ignored where nothing is


@dataclass(frozen=True)
class RowLoss:
    """A loss, as the kernels take it."""

    kind: Kind
    numbers: Numbers
    ignored: int
    class_weight: Tensor | None = None  # (K,) in float32
    offset: Tensor | None = None  # (K,) in float32
    smooth: bool = False
    coupled: bool = False  # the loss is one of the batch, made from these rows
    sample_term: bool = True  # of a coupled hinge: whether each row's own counts too


FORMS: dict[str, tuple[Kind, Callable[[dict[str, Any], int], tuple[float, ...]]]] = {
    "ce": (Kind.SOFTMAX, lambda o, K: (1 / o["temperature"], 0.0, o["label_smoothing"])),
    "ls": (Kind.SOFTMAX, lambda o, K: (1 / o["temperature"], 0.0, o["label_smoothing"])),
    "logit-adjusted": (Kind.SOFTMAX, lambda o, K: (1.0,)),
    "soft-margin": (Kind.SOFTMAX, lambda o, K: (1.0, o["margin"])),
    "sln": (Kind.NORM, lambda o, K: (1 / resolve_tau(o["tau"], K, o["gamma"]), o["gamma"])),
    "ln": (Kind.NORM, lambda o, K: (1 / resolve_tau(o["tau"], K, 1.0), 1.0)),
    "bce": (Kind.BINARY, lambda o, K: (1.0, 0.0, 1.0, 0.0)),
    "nce": (Kind.BINARY, lambda o, K: (1.0, -math.log(o["num_noise"] / K), o["num_noise"] / K, o["include_target"])),
    "focal": (Kind.FOCAL, lambda o, K: (1.0, o["gamma"])),
    "self-norm": (Kind.SELF_NORM, lambda o, K: (1.0, o["alpha"])),
    "arc-margin": (Kind.ARC, lambda o, K: (o["scale"], math.cos(o["margin"]), math.sin(o["margin"]), o["margin"])),
    "max-margin": (Kind.HINGE, lambda o, K: (1.0, o["margin"])),
    "mse": (Kind.SQUARES, lambda o, K: (1.0, o["kappa"], o["beta"])),
    "batch-ce": (Kind.SOFTMAX, lambda o, K: (1.0,)),
    "batch-max-margin": (Kind.HINGE, lambda o, K: (1.0, o["margin"])),
}
COUPLED = {"batch-ce", "batch-max-margin"}  # from all rows at once
VECTORS = {"weight", "counts"}  # the hyperparameters that may be tensors; any other that is one has no place here


def has_form(name: str, loss: Loss) -> bool:
    """Whether the kernels can compute the loss."""
    if name not in FORMS or not loss.only_calls_function():
        return False
    options: dict[str, Any] = loss.hyperparameters()
    if options.get("group") is not None:
        return False
    tensors = {option: value for option, value in options.items() if isinstance(value, Tensor)}
    if not tensors.keys() <= VECTORS or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())):
        return False
    return not options.get("label_smoothing") or (name in ("ce", "ls") and options["weight"] is None)


def row_loss(name: str, loss: Loss, K: int, device: torch.device) -> RowLoss:
    """A loss that has such a form, for the kernels."""
    options: dict[str, Any] = loss.hyperparameters()
    plain = tuple((option, value) for option, value in options.items() if option not in VECTORS)
    kind, numbers = _read_numbers(name, type(loss).function, K, plain)
    weight = offset = None
    if options.get("weight") is not None:
        weight = _of_classes(options["weight"], "weight", K, device)
    if name == "logit-adjusted":
        form = row_form_of(type(loss))
        assert form is not None
        assert form.offset is not None
        offset = form.offset(options, torch.empty(0, K, dtype=torch.float32, device=device))
    ignore_index = options.get("ignore_index")
    return RowLoss(
        kind,
        numbers,
        NO_LABEL if ignore_index is None else int(ignore_index),
        weight,
        offset,
        smooth=options.get("label_smoothing", 0.0) > 0,
        coupled=name in COUPLED,
        sample_term=bool(options.get("sample_term", True)),
    )


def _of_classes(values: Tensor, name: str, K: int, device: torch.device) -> Tensor:
    return read_class_vector(values, name, torch.empty(0, K, dtype=torch.float32, device=device)).contiguous()


@functools.lru_cache(maxsize=256)
def _read_numbers(
    name: str, function: Callable[..., Tensor], K: int, plain: tuple[tuple[str, Any], ...]
) -> tuple[Kind, Numbers]:
    """Kind and numbers of a loss with such hyperparameters, which its own function checks, on no samples, once."""
    counts = {"counts": torch.ones(K)} if name == "logit-adjusted" else {}
    function(torch.empty(0, K), torch.empty(0, dtype=torch.long), **dict(plain), **counts)
    kind, form = FORMS[name]
    factor, a, b, c = (*form(dict(plain), K), 0.0, 0.0, 0.0)[:4]
    return kind, (float(factor), float(a), float(b), float(c))
