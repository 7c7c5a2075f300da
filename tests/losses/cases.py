"""Every per-sample loss as one entry: how to call it on logits alone, and its formula. Tests run over all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lastlayer import losses

from . import reference

K = 5
TEACHER = [0.3, -1.2, 2.0, 0.7, -0.4]
COUNTS = [50, 30, 12, 5, 3]
NOISE = [0.4, 0.3, 0.15, 0.1, 0.05]
CLASSIFIER = [
    [0.9, -0.2, 0.4, 0.1, 0.3],
    [-0.5, 0.8, 0.2, -0.7, 0.6],
    [0.1, 0.3, -1.1, 0.5, 0.2],
    [0.7, 0.6, 0.5, 0.9, -0.8],
    [-0.3, -0.9, 0.4, 0.2, 1.0],
]


@dataclass(frozen=True, eq=False)
class Case:
    """A loss with hyperparameters.

    call(logits, target, **common) is the library, formula(row, k) the reference.
    """

    name: str
    create_name: str
    function: Callable[..., Tensor]
    formula: reference.PerClass
    options: dict[str, Any] = field(default_factory=dict)
    smoothing: bool = False  # takes label_smoothing
    smooth: bool = True  # twice differentiable
    dense: bool = True  # takes (N, K, H, W)
    cosines: bool = False  # its logits lie in [-1, 1]
    shift: bool = True  # does not change when a number is added to every logit
    symmetric: bool = True  # treats all classes alike

    def call(self, logits: Tensor, target: Any, **common: Any) -> Tensor:
        extra = (
            {"class_weight": common.pop("weight")} if self.create_name == "large-margin" and "weight" in common else {}
        )
        return self.function(*self.inputs(logits), target, **self.hyperparameters(logits), **common, **extra)

    def inputs(self, logits: Tensor) -> tuple[Tensor, ...]:
        """The tensors before the target."""
        if self.create_name == "kd":
            return logits, along_classes(TEACHER, logits)
        if self.create_name == "fn-kd":
            features = torch.tensor([[3.0, 4.0]], dtype=logits.dtype, device=logits.device).expand(logits.shape[0], 2)
            return logits, features, along_classes(TEACHER, logits), 2 * features
        if self.create_name == "large-margin":
            return logits, torch.tensor(CLASSIFIER, dtype=logits.dtype, device=logits.device)
        return (logits,)

    def hyperparameters(self, logits: Tensor) -> dict[str, Any]:
        tensors = {name for name, value in self.options.items() if isinstance(value, list)}
        return {
            name: torch.tensor(value, dtype=logits.dtype, device=logits.device) if name in tensors else value
            for name, value in self.options.items()
        }

    def module(self, **more: Any) -> losses.Loss:
        return losses.create(self.create_name, **{**self.options, **more})

    def accepts(self, option: str) -> bool:
        return option in inspect.signature(self.function).parameters

    def logits(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 3.0) -> Tensor:
        """Random inputs this loss is defined on."""
        z = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return ((z / 2).tanh() * 0.95 if self.cosines else scale * z).to(dtype)


def along_classes(values: list[float], like: Tensor) -> Tensor:
    row = torch.tensor(values, dtype=like.dtype, device=like.device)
    if like.dim() == 1:
        return row
    return row.reshape(1, -1, *[1] * (like.dim() - 2)).expand(like.shape)


def bce_per_class(pos_weight=None) -> reference.PerClass:
    return lambda row, k: reference.binary_cross_entropy(row, reference.one_hot(k, len(row)), pos_weight)


def fn_kd(beta, scale) -> reference.PerClass:
    def loss(row, k):
        p = reference.cross_entropy()(row, k)
        student = reference.softmax([scale * value / 5 for value in reference.exact(row)])
        teacher = reference.softmax([scale * value / 10 for value in reference.exact(TEACHER)])
        return p - beta * float(sum(b * reference.mp.log(a) for a, b in zip(student, teacher, strict=True)))

    return loss


SHIFTS, SIDED, KINKED, FLAT = {"shift": False}, {"symmetric": False}, {"smooth": False}, {"dense": False}
SMOOTHING, COSINES = {"smoothing": True}, {"cosines": True, "shift": False}
SLN_TAU, LN_TAU = 0.2 * (K / 10) ** -0.35, 0.2 * (K / 10) ** -0.5


def cases_of(
    create_name: str,
    function: Callable[..., Tensor],
    *variants: tuple[str, dict[str, Any], reference.PerClass],
    **flags: bool,
) -> list[Case]:
    return [
        Case(create_name + suffix, create_name, function, formula, options, **flags)
        for suffix, options, formula in variants
    ]


CASES = [
    *cases_of(
        "ce",
        losses.cross_entropy,
        ("", {}, reference.cross_entropy()),
        ("-T", {"temperature": 2.5}, reference.cross_entropy(2.5)),
        **SMOOTHING,
    ),
    *cases_of("focal", losses.focal, ("", {}, reference.focal(3.0)), ("-0.5", {"gamma": 0.5}, reference.focal(0.5))),
    *cases_of(
        "mse",
        losses.mse,
        ("", {}, reference.mse(1.0, 15.0)),
        ("-kappa", {"kappa": 5.0, "beta": 3.0}, reference.mse(5.0, 3.0)),
        **SHIFTS,
    ),
    *cases_of(
        "sln",
        losses.soft_logit_norm,
        ("", {}, reference.soft_logit_norm(0.7, SLN_TAU)),
        ("-0.3", {"gamma": 0.3, "tau": 0.4}, reference.soft_logit_norm(0.3, 0.4)),
        **SMOOTHING,
        **SHIFTS,
    ),
    *cases_of("ln", losses.logit_norm, ("", {}, reference.soft_logit_norm(1.0, LN_TAU)), **SHIFTS),
    *cases_of("max-margin", losses.max_margin, ("", {}, reference.max_margin(1.0)), **KINKED),
    *cases_of("self-norm", losses.self_norm, ("", {}, reference.self_norm(0.1)), **SHIFTS),
    *cases_of(
        "nce",
        losses.nce,
        ("", {}, reference.nce(25, None)),
        ("-without-target", {"include_target": False}, reference.nce(25, None, include_target=False)),
        **SHIFTS,
    ),
    *cases_of(
        "nce",
        losses.nce,
        ("-noise", {"num_noise": 7, "noise": NOISE}, reference.nce(7, NOISE)),
        ("-some-noise", {"noise": [0.5, 0.0, 0.3, 0.0, 0.2]}, reference.nce(25, [0.5, 0.0, 0.3, 0.0, 0.2])),
        **SHIFTS,
        **SIDED,
    ),
    *cases_of(
        "soft-margin",
        losses.soft_margin,
        ("", {}, reference.soft_margin(0.5)),
        ("-3", {"margin": 3.0}, reference.soft_margin(3.0)),
    ),
    *cases_of("arc-margin", losses.arc_margin, ("", {}, reference.arc_margin(0.5, 64.0)), **COSINES),
    *cases_of(
        "arc-margin",
        losses.arc_margin,
        ("-2", {"margin": 2.0, "scale": 4.0}, reference.arc_margin(2.0, 4.0)),
        **COSINES,
        **KINKED,
    ),
    *cases_of(
        "large-margin",
        losses.large_margin,
        ("", {}, reference.large_margin(CLASSIFIER, 4, 0.0)),
        ("-2", {"margin": 2, "lam": 3.0}, reference.large_margin(CLASSIFIER, 2, 3.0)),
        **FLAT,
        **SHIFTS,
        **SIDED,
        **KINKED,
    ),
    *cases_of(
        "logit-adjusted",
        losses.logit_adjusted,
        ("", {"counts": COUNTS}, reference.logit_adjusted(COUNTS, 1.0)),
        ("-2", {"counts": COUNTS, "tau": 2.0}, reference.logit_adjusted(COUNTS, 2.0)),
        **SIDED,
    ),
    *cases_of(
        "kd",
        losses.distillation,
        ("", {}, reference.distillation(TEACHER, 4.0, 0.9)),
        ("-1", {"temperature": 1.0, "alpha": 0.4}, reference.distillation(TEACHER, 1.0, 0.4)),
        **SIDED,
    ),
    *cases_of("fn-kd", losses.feature_norm_distillation, ("", {}, fn_kd(9.0, 2.0)), **FLAT, **SIDED),
]
BCE = [
    *cases_of("bce", losses.binary_cross_entropy, ("", {}, bce_per_class()), **SMOOTHING, **SHIFTS),
    *cases_of(
        "bce",
        losses.binary_cross_entropy,
        ("-pos", {"pos_weight": NOISE}, bce_per_class(NOISE)),
        **SMOOTHING,
        **SHIFTS,
        **SIDED,
    ),
]
PER_SAMPLE = CASES + BCE

# One entry per function, for tests that do not depend on the hyperparameters.
ONE_EACH = list({case.function: case for case in reversed(PER_SAMPLE)}.values())[::-1]
BATCH = [losses.batch_cross_entropy, losses.batch_max_margin]


def identity(case: Case | Callable[..., Any]) -> str:
    return case.name if isinstance(case, Case) else case.__name__
