"""Layers, targets, losses and plans for the tests, the dense form to compare with, and the memory of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lastlayer import losses
from lastlayer.linear_loss import Plan

N, D, K = 11, 5, 7
PER_SAMPLE = [
    "ce", "ls", "focal", "mse", "bce", "sln", "ln", "max-margin", "self-norm", "nce", "soft-margin", "arc-margin",
    "logit-adjusted", "large-margin",
]  # fmt: skip
BATCH = ["batch-ce", "batch-max-margin"]
LABELS_BY_CLASSES = ["mse", "focal", "soft-margin", "arc-margin", "large-margin"]  # not class probabilities
BY_CLASSES = ["ce", "ls", "bce", "sln", "ln", "self-norm", "logit-adjusted", *LABELS_BY_CLASSES]
KINDS = ["index", "probabilities", "pair", "pairs"]
REDUCTIONS = ["none", "mean", "sum"]
WEIGHT = torch.linspace(0.2, 2.0, K, dtype=torch.float64)
WHOLE = Plan("dense", "test")
PLANS = [Plan("rows", "chunks", rows=4), Plan("rows", "one chunk", rows=100)]  # for the kernels
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # where they run
BY_KERNELS = [
    pytest.mark.usefixtures("kernels_anywhere"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),  # numpy's, of 0 / 0
]
every_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.why)


def rows(size: int) -> Plan:
    return Plan("rows", "test", rows=size)


def classes(size: int) -> Plan:
    return Plan("classes", "test", classes=size)


def plans_for(name: str, in_rows: int, *in_classes: int) -> list[Plan]:
    """Chunks of rows, and tiles of classes where the loss has such a form."""
    return [rows(in_rows)] + [classes(size) for size in in_classes if name in [*BY_CLASSES, "batch-ce"]]


def layer(n: int = N, d: int = D, k: int = K, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Features, weight and bias, as leaves that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((n, d), (k, d), (k,))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def on_device() -> tuple[list[Any], Tensor]:
    """A small layer in float32 and labels, where the kernels run."""
    parts = [p.to(DEVICE).detach().requires_grad_() for p in layer(6, D, K, dtype=torch.float32)]
    return parts, target("index", 6, K).to(DEVICE)


def layer_for(name: str, biased: bool = True) -> list[Tensor | None]:
    """A layer that the loss takes: large-margin has no bias, and arc-margin takes cosines."""
    parts = layer()
    if name == "arc-margin":
        parts = [(p.detach() / 8).requires_grad_() for p in parts]
    return [*parts[:2], parts[2] if biased and name != "large-margin" else None]


def target(kind: str, n: int = N, k: int = K, seed: int = 1, ignore: bool = False) -> Any:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(k, (n,), generator=generator) for _ in range(2))
    if ignore:
        first[::3] = -100
        second[1::4] = -100
    if kind == "index":
        return first
    if kind == "probabilities":
        return torch.rand(n, k, generator=generator, dtype=torch.float64).softmax(1)
    lam = 0.3 if kind == "pair" else torch.rand(n, generator=generator, dtype=torch.float64)
    return first, second, lam


def make(name: str, k: int = K, **options: Any) -> losses.Loss:
    if name == "logit-adjusted":
        options.setdefault("counts", torch.arange(1, k + 1))
    if name == "arc-margin":
        options.setdefault("scale", 4.0)
    return losses.create(name, k, **options)


def options(name: str, reduction: str, weighted: bool) -> dict[str, Any]:
    weight = {"class_weight" if name == "large-margin" else "weight": WEIGHT} if weighted else {}
    return {"reduction": reduction, **weight}


def variants(name: str, kind: str) -> Iterator[tuple[losses.Loss, list[Any], Any]]:
    """A loss in every reduction, with and without class weights, ignored labels and a bias; its layer and labels."""
    for reduction, weighted, ignore, biased in itertools.product(REDUCTIONS, *[(False, True)] * 3):
        if (ignore and kind == "probabilities") or (biased and name == "large-margin"):
            continue
        module = make(name, **options(name, reduction, weighted))
        yield module, layer_for(name, biased), target(kind, ignore=ignore)


def logits_of(parts: list[Tensor | None]) -> Tensor:
    features, weight, bias = parts
    logits = features @ weight.T  # type: ignore[union-attr, operator]
    return logits if bias is None else logits + bias


def dense(module: losses.Loss, parts: list[Tensor | None], labels: Any) -> Tensor:
    """The loss on the whole logits."""
    if isinstance(module, losses.LargeMarginLoss):
        return module(parts[0], parts[1], labels)
    return module(logits_of(parts), labels)


def gradients(value: Tensor, parts: list[Tensor | None]) -> list[Tensor]:
    """Gradients of a value, with a different upstream number for each of its entries."""
    upstream = torch.linspace(-1.0, 2.0, value.numel(), dtype=value.dtype).reshape(value.shape)
    if value.dim() == 0:
        upstream = torch.tensor(1.7, dtype=value.dtype)
    leaves = [p for p in parts if p is not None]
    return list(
        torch.autograd.grad(value, leaves, upstream, retain_graph=True, allow_unused=True, materialize_grads=True)
    )


def assert_same(value: Tensor, expected: Tensor, parts: list[Tensor | None], **tolerance: float) -> None:
    torch.testing.assert_close(value, expected, **tolerance, equal_nan=True)
    for found, wanted in zip(gradients(value, parts), gradients(expected, parts), strict=True):
        torch.testing.assert_close(found, wanted, **tolerance, equal_nan=True)


def is_dense(value: Tensor, leaf: Tensor) -> bool:
    """Whether a value was computed from the whole logits. Only then a gradient has a graph of its own."""
    try:
        torch.autograd.grad(value, leaf, torch.ones_like(value), create_graph=True)
    except RuntimeError as error:
        if "no second derivatives" in str(error):
            return False
        raise
    return True


def peak(step: Callable[[], None]) -> int:
    """Most bytes held at once during a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    held = most = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
