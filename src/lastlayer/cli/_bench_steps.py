"""What is timed: every loss beside its peers, on random inputs of given sizes; for `lastlayer bench` and `benchmarks/`.

Tests: tests/cli/test_bench.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.linear_loss import Plan, linear_loss
from lastlayer.losses import ArcMarginLoss, LargeMarginLoss, Loss, Target, create

OfTensors = Callable[..., Tensor]


class Inputs:
    """Inputs of N samples, d features and K classes, each drawn when it is first asked for.

    `kind` of target: "index", "pair" (two labels mixed) or "probabilities".
    """

    def __init__(
        self, n: int, d: int, k: int, device: str = "cpu", dtype: torch.dtype = torch.float32, kind: str = "index"
    ) -> None:
        self.n, self.d, self.k, self.device, self.dtype, self.kind = n, d, k, device, dtype, kind
        self.generator = torch.Generator(device).manual_seed(0)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def _labels(self) -> Tensor:
        return torch.randint(self.k, (self.n,), generator=self.generator, device=self.device)

    @cached_property
    def target(self) -> Target:
        """As `kind` says."""
        if self.kind == "probabilities":
            return self._normal(self.n, self.k).softmax(1).to(self.dtype)
        return (self._labels(), self._labels(), 0.7) if self.kind == "pair" else self._labels()

    @cached_property
    def logits(self) -> Tensor:
        """Of the student, (N, K)."""
        return self._normal(self.n, self.k).to(self.dtype).requires_grad_()

    @cached_property
    def teacher(self) -> Tensor:
        """Of the teacher, (N, K)."""
        return self._normal(self.n, self.k).to(self.dtype)

    @cached_property
    def cosines(self) -> Tensor:
        """As of random directions in 64 dimensions, (N, K)."""
        return (self._normal(self.n, self.k) / 8).clamp(-1, 1).to(self.dtype).requires_grad_()

    @cached_property
    def features(self) -> Tensor:
        """(N, d)."""
        return self._normal(self.n, self.d).to(self.dtype).requires_grad_()

    @cached_property
    def weight(self) -> Tensor:
        """(K, d), such that logits are of size 1."""
        return (self._normal(self.k, self.d) / math.sqrt(self.d)).to(self.dtype).requires_grad_()


def make_loss(name: str, inputs: Inputs) -> Loss:
    """The loss with its defaults; class counts, which have none, are all different."""
    more = {"counts": torch.arange(1, inputs.k + 1, device=inputs.device)} if name == "logit-adjusted" else {}
    return create(name, inputs.k, **more)


def on_logits(name: str, inputs: Inputs) -> tuple[list[Tensor], OfTensors, OfTensors]:
    """The leaves to differentiate, and as functions of them the loss on logits and torch's cross_entropy.

    large-margin makes the logits itself: the peer is cross_entropy of the product it starts with.
    """
    module, target = make_loss(name, inputs), inputs.target

    def peer(z: Tensor) -> Tensor:
        if isinstance(target, tuple):
            first, second, lam = target
            return lam * F.cross_entropy(z, first) + (1 - lam) * F.cross_entropy(z, second)
        return F.cross_entropy(z, target)

    if name == "large-margin":
        return [inputs.features, inputs.weight], lambda h, w: module(h, w, target), lambda h, w: peer(F.linear(h, w))
    leaves = [inputs.cosines if name == "arc-margin" else inputs.logits]
    if name == "kd":
        teacher = inputs.teacher
        return leaves, lambda z: module(z, teacher, target), peer
    if name == "fn-kd":
        teacher, features = inputs.teacher, inputs.features.detach()
        return leaves, lambda z: module(z, features, teacher, features, target), peer
    return leaves, lambda z: module(z, target), peer


def on_layer(name: str, inputs: Inputs) -> Callable[[Tensor, Tensor, Plan], Tensor]:
    """linear_loss of features, weight and a plan; arc-margin on directions, in half precision under autocast."""
    module, target, cosines = make_loss(name, inputs), inputs.target, name == "arc-margin"

    def call(h: Tensor, w: Tensor, plan: Plan) -> Tensor:
        with torch.autocast(inputs.device, inputs.dtype, enabled=cosines and inputs.dtype is torch.bfloat16):
            return linear_loss(h, w, target, module, normalized=cosines, plan=plan)

    return call


def on_whole_layer(name: str, inputs: Inputs) -> OfTensors:
    """The dense form of features and weight as anyone would write it, with nothing that a compiler stumbles over."""
    module, target = make_loss(name, inputs), inputs.target

    def call(h: Tensor, w: Tensor) -> Tensor:
        if isinstance(module, LargeMarginLoss):
            return module(h, w, target)  # type: ignore[no-any-return]
        if isinstance(module, ArcMarginLoss):
            h, w = F.normalize(h.float()).to(h.dtype), F.normalize(w.float()).to(w.dtype)
        return module(F.linear(h, w), target)  # type: ignore[no-any-return]

    return call
