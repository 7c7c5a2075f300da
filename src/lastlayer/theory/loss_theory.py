"""What the theory knows of each loss, one class per loss, found by the class of the loss.

The formulas stand in the modules of their subjects. Here a loss says which of them hold for it, and with which of its
hyperparameters. The losses themselves know nothing of theory. Tests: tests/theory/test_loss_theory.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

# The modules of the formulas import this one. So we ask `theory` for them when a question is answered, not before.
from lastlayer import losses, theory
from lastlayer.losses.soft_logit_norm import resolve_tau
from lastlayer.theory.numbers import log1pexp, sigmoid

if TYPE_CHECKING:
    from lastlayer.theory.alignment import Counterexample, Threshold
    from lastlayer.theory.contrastive import Phi
    from lastlayer.theory.minima import Frame

_THEORIES: dict[type[losses.Loss], type[LossTheory]] = {}
_Theory = TypeVar("_Theory", bound="type[LossTheory]")


class NoFormula(ValueError):
    """The theory has no formula for what was asked of this loss, or not with these hyperparameters."""


@dataclass(frozen=True)
class OnSpheres:
    """How a loss acts on scores of unit rows."""

    residual: Callable[
        [Tensor, Tensor], Tensor
    ]  # the gradient in the scores (..., N, K), from the one-hot label (N, K)
    decay_rate: Callable[[Tensor, Tensor], float]  # from the true cosines (N,) and the largest false ones (N,)
    exponent: Callable[[int, float | None], float]  # from K and the scale, see `scaling.predicted_exponent`


class LossTheory:
    """What is known of a loss. A subclass answers what it can. Every other question raises `NoFormula`."""

    convex: bool = False  # whether the loss is convex in the logits
    # whether the derivative is continuous. If it jumps, gradient and curvature say nothing at a minimum.
    smooth: bool = True

    def __init__(self, loss: Any) -> None:
        self.loss = loss  # its hyperparameters count

    @property
    def name(self) -> str:
        """The name of the loss, for messages."""
        return losses.name_of(self.loss)

    def phi(self, K: int) -> Phi:
        """The profile of a contrastive loss; see `contrastive.phi`."""
        raise self._unknown("contrastive profile", LossTheory.phi)

    def frame(self, K: int, c: float, lambda_b: float) -> Frame:
        """The minimum of the balanced unconstrained feature model, if the loss is not contrastive.

        Args:
            K: number of classes.
            c: sqrt(n lambda_w lambda_h), what the model pays per unit of the logits' nuclear norm.
            lambda_b: penalty of the bias; infinite if there is no bias.
        """
        raise self._unknown("closed form in the unconstrained feature model", LossTheory.phi, LossTheory.frame)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        """The minimum on spheres: unit rows, balanced classes, at least K - 1 dimensions."""
        raise self._unknown("closed form on spheres", LossTheory.sphere_minimum)

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        """Below which value logits are separated; see `alignment.threshold`."""
        raise self._unknown("threshold", LossTheory.threshold)

    def counterexample(self, epsilon: float) -> Counterexample:
        """A small loss without separation; see `alignment.counterexample`."""
        raise self._unknown("counter-example", LossTheory.counterexample)

    def logit_hessian(self, logits: Tensor, target: Tensor) -> Tensor:
        """The Hessian in the logits; see `landscape.logit_hessian`."""
        raise self._unknown("Hessian in closed form", LossTheory.logit_hessian)

    def on_spheres(self) -> OnSpheres:
        """What `scaling` needs to know."""
        raise self._unknown("analysis in the sphere model", LossTheory.on_spheres)

    def bias_curvature(self, K: int, c: float) -> float:
        """Rough curvature of the loss in one bias. The solver only needs its order of magnitude."""
        return 0.25 / K**2

    @classmethod
    def answers(cls, question: Callable[..., Any]) -> bool:
        """Whether this class answers a question, such as `LossTheory.threshold`."""
        return getattr(cls, question.__name__) is not question

    def need(self, condition: bool, what: str) -> None:
        """Raise `NoFormula` unless the hyperparameters are such that the formula holds."""
        if not condition:
            raise NoFormula(f"the closed form for {self.name} needs {what}")

    def _unknown(self, what: str, *questions: Callable[..., Any]) -> NoFormula:
        known = ", ".join(dict.fromkeys(name for question in questions for name in names_with(question)))
        return NoFormula(f"loss {self.name!r} has no {what}; losses that have one: {known}")


def register(kind: type[losses.Loss]) -> Callable[[_Theory], _Theory]:
    """Class decorator: this is what the theory knows of the losses of a class."""

    def add(known: _Theory) -> _Theory:
        _THEORIES[kind] = known
        return known

    return add


def names_with(question: Callable[..., Any]) -> list[str]:
    """The names of the losses that answer a question, such as `LossTheory.threshold`, in the order of registration."""
    answering = [kind for kind, known in _THEORIES.items() if known.answers(question)]
    return [name for kind in answering for name in losses.available() if losses.entry(name).module is kind]


def theory_of(loss: nn.Module) -> LossTheory:
    """What is known of a Module. Nothing is known of a subclass that computes something else than its parent."""
    kind = type(loss)
    for parent in kind.__mro__:
        if parent in _THEORIES:
            same = kind.function is parent.function and kind.forward is parent.forward  # type: ignore[attr-defined]
            return (_THEORIES[parent] if same else LossTheory)(loss)
    return LossTheory(loss)


def has_class_weights(loss: losses.Loss) -> bool:
    """Whether the loss weighs its classes, in either of the two spellings of that option."""
    options = loss.hyperparameters()
    return options.get("weight") is not None or options.get("class_weight") is not None


def read(loss: str | nn.Module) -> LossTheory:
    """What is known of a create name or a loss Module.

    Raises:
        NoFormula: for class weights.
        ValueError: for an unknown name.
        TypeError: for a Module that is no `lastlayer.losses.Loss`.
    """
    if isinstance(loss, str):
        loss = losses.create(loss)
    if not isinstance(loss, losses.Loss):
        raise TypeError(f"loss must be a create name or a loss Module of lastlayer.losses, got {type(loss).__name__}")
    if has_class_weights(loss):
        raise NoFormula("the closed forms hold without class weights; make the loss with weight=None")
    return theory_of(loss)


@register(losses.CrossEntropyLoss)
class _CrossEntropy(LossTheory):
    """Cross-entropy with a temperature and label smoothing: `ce` and `ls`."""

    convex = True

    def phi(self, K: int) -> Phi:
        temperature, smoothing = float(self.loss.temperature), float(self.loss.label_smoothing)
        return theory.contrastive.Phi(K, temperature=temperature, label_smoothing=smoothing)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        self.need(self.loss.label_smoothing == 0, "no label_smoothing")
        return theory.minima.normalized_cross_entropy(K, scale / float(self.loss.temperature))

    def counterexample(self, epsilon: float) -> Counterexample:
        temperature, smoothing = float(self.loss.temperature), float(self.loss.label_smoothing)
        self.need(smoothing < 1, f"label_smoothing below 1, got {smoothing}")
        if smoothing == 0:
            a = theory.alignment.margin_for(epsilon) + 1.0
            return theory.alignment.unseparated(a * temperature, 2.0 * log1pexp(-a))
        a = math.log((2.0 - smoothing) / smoothing)  # the infimum itself is reached
        return theory.alignment.unseparated(a * temperature, 0.0, log1pexp(-a) + smoothing / 2.0 * a)

    def logit_hessian(self, logits: Tensor, target: Tensor) -> Tensor:
        self.need(self.loss.temperature == 1, f"temperature = 1, got {self.loss.temperature}")
        return theory.landscape.softmax_hessian(torch.softmax(logits, dim=1))

    def on_spheres(self) -> OnSpheres:
        plain = self.loss.label_smoothing == 0 and self.loss.temperature == 1
        self.need(plain, "temperature = 1 and no label_smoothing")
        return OnSpheres(
            residual=lambda scores, label: torch.softmax(scores, dim=-1) - label,
            decay_rate=lambda true, false: float((true - false).min()),
            # The scores move by scale^2 times the residual, which slows the growth at a finite scale.
            exponent=lambda K, scale: K / (K - 1) - (0.0 if scale is None else 2.0 / scale),
        )


@register(losses.FocalLoss)
class _Focal(LossTheory):
    def phi(self, K: int) -> Phi:
        return theory.contrastive.Phi(K, gamma=float(self.loss.gamma))

    def counterexample(self, epsilon: float) -> Counterexample:
        gamma = float(self.loss.gamma)
        return theory.alignment.grown(lambda a: 2.0 * sigmoid(-a) ** gamma * log1pexp(-a), epsilon)

    def logit_hessian(self, logits: Tensor, target: Tensor) -> Tensor:
        return theory.landscape.focal_hessian(logits, target, float(self.loss.gamma))


@register(losses.SoftLogitNormLoss)
class _SoftLogitNorm(LossTheory):
    def counterexample(self, epsilon: float) -> Counterexample:
        gamma, smoothing = float(self.loss.gamma), float(self.loss.label_smoothing)
        self.need(gamma < 1 and smoothing == 0, f"gamma < 1 and no label_smoothing, got {gamma} and {smoothing}")
        scale = float(resolve_tau(self.loss.tau, 2, gamma)) * 5.0 ** (gamma / 2.0)
        return theory.alignment.grown(lambda a: 2.0 * log1pexp(-(a ** (1.0 - gamma)) / scale), epsilon)


@register(losses.MaxMarginLoss)
class _MaxMargin(LossTheory):
    convex = True
    smooth = False

    def phi(self, K: int) -> Phi:
        return theory.contrastive.HingePhi(K, margin=float(self.loss.margin))

    def counterexample(self, epsilon: float) -> Counterexample:
        return theory.alignment.unseparated(float(self.loss.margin), 0.0)


@register(losses.SoftMarginLoss)
class _SoftMargin(LossTheory):
    convex = True

    def phi(self, K: int) -> Phi:
        return theory.contrastive.Phi(K, margin=float(self.loss.margin))

    def counterexample(self, epsilon: float) -> Counterexample:
        margin = float(self.loss.margin)
        a = theory.alignment.margin_for(epsilon) + margin + 1.0
        return theory.alignment.unseparated(a, 2.0 * log1pexp(margin - a))


@register(losses.BinaryCrossEntropyLoss)
class _BinaryCrossEntropy(LossTheory):
    convex = True

    def frame(self, K: int, c: float, lambda_b: float) -> Frame:
        self._need_plain()
        return theory.minima.Frame.of_binary_cross_entropy(K, c, lambda_b)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        self._need_plain()
        self.need(free_bias, "a bias without penalty")
        return theory.minima.normalized_binary_cross_entropy(K, scale).loss

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        self._need_plain()
        return theory.alignment.Threshold(2.0 * math.log(2.0), math.log(2.0), 0.0, 0.0, "sample")

    def on_spheres(self) -> OnSpheres:
        self._need_plain()
        return OnSpheres(
            residual=lambda scores, label: torch.sigmoid(scores) - label,
            decay_rate=lambda true, false: float(torch.minimum(true.min(), -false.max())),
            exponent=lambda K, scale: K / (2.0 * (K - 1)),
        )

    def _need_plain(self) -> None:
        plain = self.loss.label_smoothing == 0 and self.loss.pos_weight is None
        self.need(plain, "no label_smoothing and no pos_weight")


@register(losses.SelfNormLoss)
class _SelfNorm(LossTheory):
    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        return theory.alignment.self_norm_threshold(float(self.loss.alpha))


@register(losses.NceLoss)
class _Nce(LossTheory):
    def __init__(self, loss: losses.NceLoss) -> None:
        super().__init__(loss)
        self.convex = loss.samples is None  # with samples, the noise is fixed per row of one batch

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        self.need(self.loss.samples is None, "samples=None, because it is about the expectation over samples")
        noise = [1.0 / K] * K if self.loss.noise is None else [float(x) for x in self.loss.noise]
        return theory.alignment.nce_threshold(noise, float(self.loss.num_noise), bool(self.loss.include_target))


@register(losses.MseLoss)
class _Mse(LossTheory):
    convex = True

    def frame(self, K: int, c: float, lambda_b: float) -> Frame:
        kappa, beta = float(self.loss.kappa), float(self.loss.beta)
        self.need(kappa == 1.0, f"kappa = 1, got {kappa}")
        self.need(beta >= 0, f"beta >= 0, got {beta}")
        self.need(lambda_b == 0 or lambda_b == math.inf, f"lambda_b = 0 or no bias, got lambda_b = {lambda_b}")
        s = max(beta - c * K / 2.0, 0.0)
        if lambda_b == 0:
            return theory.minima.Frame((K - 1) / K * (s - beta) ** 2 + c * (K - 1) * s, s, 0.0, beta / K)
        return theory.minima.Frame((s - beta) ** 2 + c * K * s, s, s, 0.0)

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        kappa, beta = float(self.loss.kappa), float(self.loss.beta)
        self.need(beta > 0, f"beta > 0, got {beta}")
        level = kappa * beta / (1.0 + kappa)
        return theory.alignment.Threshold(kappa * beta**2 / (1.0 + kappa), None, 0.0, level, "sample")

    def bias_curvature(self, K: int, c: float) -> float:
        # Near W H = beta the features curve by 2 beta/(K c) in the solver's coordinates, and the bias by 2 in its own.
        # This makes them equal. Losses of probabilities flatten as those become certain, squared error never does.
        return K * c / max(float(self.loss.beta), 1.0)


@register(losses.LogitNormLoss)
class _LogitNorm(LossTheory):
    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        return theory.alignment.logit_norm_threshold(K, float(resolve_tau(self.loss.tau, K, 1.0)))


@register(losses.BatchCrossEntropyLoss)
class _BatchCrossEntropy(LossTheory):
    convex = True

    def phi(self, K: int) -> Phi:
        return theory.contrastive.Phi(K)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        return theory.minima.normalized_cross_entropy(K, scale)

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        size = theory.alignment.check_batch_size(self.name, batch_size)
        return theory.alignment.Threshold(math.log(2.0) / size, 0.5 / size**2, 0.0, None, "batch")


@register(losses.BatchMaxMarginLoss)
class _BatchMaxMargin(LossTheory):
    convex = True
    smooth = False

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        value = float(self.loss.margin) / theory.alignment.check_batch_size(self.name, batch_size)
        return theory.alignment.Threshold(value, value, 0.0, None, "batch")


@register(losses.LogitAdjustedLoss)
class _LogitAdjusted(LossTheory):
    convex = True


@register(losses.LargeMarginLoss)
class _LargeMargin(LossTheory):
    smooth = False


@register(losses.ArcMarginLoss)
class _ArcMargin(LossTheory):
    smooth = False
