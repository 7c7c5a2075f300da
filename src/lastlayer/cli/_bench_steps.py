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
from lastlayer.losses import Loss, Target, create_for

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

    def constant(self, name: str) -> Tensor:
        """What a loss takes beside the logits, by its name there, without a gradient."""
        return self.teacher if name == "teacher_logits" else self.features.detach()


def loss_for(name: str, inputs: Inputs) -> Loss:
    """The loss with its defaults; class counts, if it needs them, are all different."""
    return create_for(torch.arange(1, inputs.k + 1, device=inputs.device), name)


def on_logits(name: str, inputs: Inputs) -> tuple[list[Tensor], OfTensors, OfTensors]:
    """The leaves to differentiate, and as functions of them the loss on logits and torch's cross_entropy.

    If a loss takes features and weight, and so makes the logits itself, its peer is cross_entropy of their product.
    """
    module, target = loss_for(name, inputs), inputs.target

    def peer(z: Tensor) -> Tensor:
        if isinstance(target, tuple):
            first, second, lam = target
            return lam * F.cross_entropy(z, first) + (1 - lam) * F.cross_entropy(z, second)
        return F.cross_entropy(z, target)

    if module.takes_layer:
        return [inputs.features, inputs.weight], lambda h, w: module(h, w, target), lambda h, w: peer(F.linear(h, w))
    first, *others = module.takes
    constants = [inputs.constant(other) for other in others]
    return [inputs.cosines if first == "cosines" else inputs.logits], lambda z: module(z, *constants, target), peer


def on_layer(name: str, inputs: Inputs) -> Callable[[Tensor, Tensor, Plan], Tensor]:
    """linear_loss of features, weight and a plan. If the loss takes cosines, it gets directions, under autocast."""
    module, target = loss_for(name, inputs), inputs.target
    cosines = module.takes == ("cosines",)

    def call(h: Tensor, w: Tensor, plan: Plan) -> Tensor:
        with torch.autocast(inputs.device, inputs.dtype, enabled=cosines and inputs.dtype is torch.bfloat16):
            return linear_loss(h, w, target, module, normalized=cosines, plan=plan)

    return call


def on_whole_layer(name: str, inputs: Inputs) -> OfTensors:
    """The dense form of features and weight as anyone would write it, with nothing that a compiler stumbles over."""
    module, target = loss_for(name, inputs), inputs.target
    layer, cosines = module.takes_layer, module.takes == ("cosines",)

    def call(h: Tensor, w: Tensor) -> Tensor:
        if layer:
            return module(h, w, target)  # type: ignore[no-any-return]
        if cosines:
            h, w = F.normalize(h.float()).to(h.dtype), F.normalize(w.float()).to(w.dtype)
        return module(F.linear(h, w), target)  # type: ignore[no-any-return]

    return call
