"""What the theory can know of a loss, registered by the loss's class: losses themselves know nothing of theory.

`by_loss.py` says what is known of each loss of the library. Tests: tests/theory/test_loss_theory.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from lastlayer import losses

if TYPE_CHECKING:
    from lastlayer.theory.alignment import Counterexample, Threshold
    from lastlayer.theory.contrastive import Phi
    from lastlayer.theory.minima import Frame

_THEORIES: dict[type[losses.Loss], type[LossTheory]] = {}
_Theory = TypeVar("_Theory", bound="type[LossTheory]")


class NoFormula(ValueError):
    """The theory has no formula for what was asked of this loss, or not with these hyperparameters."""


class LossTheory:
    """What is known of a loss. A subclass answers what it can; every other question raises `NoFormula`.

    Attributes:
        loss: the loss, whose hyperparameters count.
        convex: whether the loss is convex in the logits.
        smooth: whether the derivative is continuous. If it jumps, the gradient need not vanish at a minimum, and the
            curvature says nothing there.
    """

    convex: bool = False
    smooth: bool = True

    def __init__(self, loss: Any) -> None:
        self.loss = loss

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

    def residual(self, scores: Tensor, label: Tensor) -> Tensor:
        """The gradient in the scores (..., N, K), one row per sample; `label` is one-hot (N, K)."""
        raise self._unknown("analysis in the sphere model", LossTheory.residual)

    def decay_rate(self, true: Tensor, false: Tensor) -> float:
        """See `scaling.decay_rate`; true cosines (N,) and the largest false cosine of each sample (N,)."""
        raise self._unknown("analysis in the sphere model", LossTheory.decay_rate)

    def collapse_exponent(self, K: int, scale: float | None) -> float:
        """See `scaling.predicted_exponent`."""
        raise self._unknown("analysis in the sphere model", LossTheory.collapse_exponent)

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

    def add(theory: _Theory) -> _Theory:
        _THEORIES[kind] = theory
        return theory

    return add


def names_with(question: Callable[..., Any]) -> list[str]:
    """The names of the losses that answer a question, such as `LossTheory.threshold`, in the order of registration."""
    return [
        name
        for kind, theory in _THEORIES.items()
        if theory.answers(question)
        for name in losses.available()
        if losses.entry(name).module is kind
    ]


def theory_of(loss: nn.Module) -> LossTheory:
    """What is known of a Module. Nothing is known of a subclass that computes something else than its parent."""
    kind = type(loss)
    for parent in kind.__mro__:
        if parent in _THEORIES:
            same = kind.function is parent.function and kind.forward is parent.forward  # type: ignore[attr-defined]
            return (_THEORIES[parent] if same else LossTheory)(loss)
    return LossTheory(loss)


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
    options = loss.hyperparameters()
    if options.get("weight") is not None or options.get("class_weight") is not None:
        raise NoFormula("the closed forms hold without class weights; make the loss with weight=None")
    return theory_of(loss)


class _Head(nn.Module):
    """A linear head whose weight and bias are given tensors, not parameters."""

    def __init__(self, weight: Tensor, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.weight, self.bias, self.scale = weight, bias, scale

    def forward(self, features: Tensor) -> Tensor:
        logits = features @ self.weight.mT
        logits = logits if self.scale == 1.0 else self.scale * logits
        return logits if self.bias is None else logits + self.bias


def loss_of_features(
    loss: Callable[[Tensor, Tensor], Tensor],
    features: Tensor,
    target: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: float = 1.0,
) -> Tensor:
    """The loss of the logits scale * W h + b. A loss that takes features and weight gets those."""
    head = _Head(weight, bias, scale)
    if isinstance(loss, losses.Loss):
        return loss.from_features(head, features, target)[0]
    return loss(head(features), target)
