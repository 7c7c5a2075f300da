"""What the theory knows of each loss of the library, one class per loss.

The formulas stand in the modules of their subjects, as functions of numbers. Here a loss says which of them are its
own, and with which hyperparameters. Tests: tests/theory/test_by_loss.py.
"""

import math

import torch
from torch import Tensor

from lastlayer import losses
from lastlayer.losses.soft_logit_norm import resolve_tau
from lastlayer.theory import alignment, landscape, minima
from lastlayer.theory.alignment import Counterexample, Threshold
from lastlayer.theory.contrastive import HingePhi, Phi
from lastlayer.theory.loss_theory import LossTheory, register
from lastlayer.theory.minima import Frame


@register(losses.CrossEntropyLoss)
class CrossEntropy(LossTheory):
    """Cross-entropy with a temperature and label smoothing: `ce` and `ls`."""

    convex = True

    def phi(self, K: int) -> Phi:
        return Phi(K, temperature=float(self.loss.temperature), label_smoothing=float(self.loss.label_smoothing))

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        self.need(self.loss.label_smoothing == 0, "no label_smoothing")
        return minima.normalized_cross_entropy(K, scale / float(self.loss.temperature))

    def counterexample(self, epsilon: float) -> Counterexample:
        temperature, smoothing = float(self.loss.temperature), float(self.loss.label_smoothing)
        return alignment.unseparated_cross_entropy(epsilon, temperature, smoothing)

    def logit_hessian(self, logits: Tensor, target: Tensor) -> Tensor:
        self.need(self.loss.temperature == 1, f"temperature = 1, got {self.loss.temperature}")
        return landscape.softmax_hessian(torch.softmax(logits, dim=1))

    def residual(self, scores: Tensor, label: Tensor) -> Tensor:
        self._need_plain()
        return torch.softmax(scores, dim=-1) - label

    def decay_rate(self, true: Tensor, false: Tensor) -> float:
        self._need_plain()
        return float((true - false).min())

    def collapse_exponent(self, K: int, scale: float | None) -> float:
        self._need_plain()
        # The scores move by scale^2 times the residual, which slows the growth at a finite scale.
        return K / (K - 1) - (0.0 if scale is None else 2.0 / scale)

    def _need_plain(self) -> None:
        plain = self.loss.label_smoothing == 0 and self.loss.temperature == 1
        self.need(plain, "temperature = 1 and no label_smoothing")


@register(losses.FocalLoss)
class Focal(LossTheory):
    def phi(self, K: int) -> Phi:
        return Phi(K, gamma=float(self.loss.gamma))

    def counterexample(self, epsilon: float) -> Counterexample:
        return alignment.unseparated_focal(epsilon, float(self.loss.gamma))

    def logit_hessian(self, logits: Tensor, target: Tensor) -> Tensor:
        return landscape.focal_hessian(logits, target, float(self.loss.gamma))


@register(losses.SoftLogitNormLoss)
class SoftLogitNorm(LossTheory):
    def counterexample(self, epsilon: float) -> Counterexample:
        gamma, smoothing = float(self.loss.gamma), float(self.loss.label_smoothing)
        self.need(gamma < 1 and smoothing == 0, f"gamma < 1 and no label_smoothing, got {gamma} and {smoothing}")
        return alignment.unseparated_soft_logit_norm(epsilon, gamma, float(resolve_tau(self.loss.tau, 2, gamma)))


@register(losses.MaxMarginLoss)
class MaxMargin(LossTheory):
    convex = True
    smooth = False

    def phi(self, K: int) -> Phi:
        return HingePhi(K, margin=float(self.loss.margin))

    def counterexample(self, epsilon: float) -> Counterexample:
        return alignment.unseparated(float(self.loss.margin), 0.0)


@register(losses.SoftMarginLoss)
class SoftMargin(LossTheory):
    convex = True

    def phi(self, K: int) -> Phi:
        return Phi(K, margin=float(self.loss.margin))

    def counterexample(self, epsilon: float) -> Counterexample:
        return alignment.unseparated_soft_margin(epsilon, float(self.loss.margin))


@register(losses.BinaryCrossEntropyLoss)
class BinaryCrossEntropy(LossTheory):
    convex = True

    def frame(self, K: int, c: float, lambda_b: float) -> Frame:
        self._need_plain()
        return minima.binary_frame(K, c, lambda_b)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        self._need_plain()
        self.need(free_bias, "a bias without penalty")
        return minima.normalized_binary_cross_entropy(K, scale).loss

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        self._need_plain()
        return Threshold(2.0 * math.log(2.0), math.log(2.0), 0.0, 0.0, "sample")

    def residual(self, scores: Tensor, label: Tensor) -> Tensor:
        self._need_plain()
        return torch.sigmoid(scores) - label

    def decay_rate(self, true: Tensor, false: Tensor) -> float:
        self._need_plain()
        return float(torch.minimum(true.min(), -false.max()))

    def collapse_exponent(self, K: int, scale: float | None) -> float:
        self._need_plain()
        return K / (2.0 * (K - 1))

    def _need_plain(self) -> None:
        plain = self.loss.label_smoothing == 0 and self.loss.pos_weight is None
        self.need(plain, "no label_smoothing and no pos_weight")


@register(losses.SelfNormLoss)
class SelfNorm(LossTheory):
    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        return alignment.self_norm_threshold(float(self.loss.alpha))


@register(losses.NceLoss)
class Nce(LossTheory):
    def __init__(self, loss: losses.NceLoss) -> None:
        super().__init__(loss)
        self.convex = loss.samples is None  # with samples, the noise is fixed per row of one batch

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        self.need(self.loss.samples is None, "samples=None, because it is about the expectation over samples")
        noise = [1.0 / K] * K if self.loss.noise is None else [float(x) for x in self.loss.noise]
        return alignment.nce_threshold(noise, float(self.loss.num_noise), bool(self.loss.include_target))


@register(losses.MseLoss)
class Mse(LossTheory):
    convex = True

    def frame(self, K: int, c: float, lambda_b: float) -> Frame:
        kappa, beta = float(self.loss.kappa), float(self.loss.beta)
        self.need(kappa == 1.0, f"kappa = 1, got {kappa}")
        self.need(beta >= 0, f"beta >= 0, got {beta}")
        self.need(lambda_b == 0 or lambda_b == math.inf, f"lambda_b = 0 or no bias, got lambda_b = {lambda_b}")
        return minima.squared_frame(K, c, beta, free_bias=lambda_b == 0)

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        kappa, beta = float(self.loss.kappa), float(self.loss.beta)
        self.need(beta > 0, f"beta > 0, got {beta}")
        return Threshold(kappa * beta**2 / (1.0 + kappa), None, 0.0, kappa * beta / (1.0 + kappa), "sample")

    def bias_curvature(self, K: int, c: float) -> float:
        # Near W H = beta the features curve by 2 beta/(K c) in the solver's coordinates, and the bias by 2 in its own.
        # This makes them equal. Losses of probabilities flatten as those become certain, squared error never does.
        return K * c / max(float(self.loss.beta), 1.0)


@register(losses.LogitNormLoss)
class LogitNorm(LossTheory):
    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        return alignment.logit_norm_threshold(K, float(resolve_tau(self.loss.tau, K, 1.0)))


@register(losses.BatchCrossEntropyLoss)
class BatchCrossEntropy(LossTheory):
    convex = True

    def phi(self, K: int) -> Phi:
        return Phi(K)

    def sphere_minimum(self, K: int, scale: float, *, free_bias: bool) -> float:
        return minima.normalized_cross_entropy(K, scale)

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        size = alignment.check_batch_size(self.name, batch_size)
        return Threshold(math.log(2.0) / size, 0.5 / size**2, 0.0, None, "batch")


@register(losses.BatchMaxMarginLoss)
class BatchMaxMargin(LossTheory):
    convex = True
    smooth = False

    def threshold(self, K: int, batch_size: int | None) -> Threshold:
        value = float(self.loss.margin) / alignment.check_batch_size(self.name, batch_size)
        return Threshold(value, value, 0.0, None, "batch")


@register(losses.LogitAdjustedLoss)
class LogitAdjusted(LossTheory):
    convex = True


@register(losses.LargeMarginLoss)
class LargeMargin(LossTheory):
    smooth = False


@register(losses.ArcMarginLoss)
class ArcMargin(LossTheory):
    smooth = False
