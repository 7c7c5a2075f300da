"""Losses that also follow a teacher network: distillation, and distillation with normalised features."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer.losses.loss import Loss, register
from lastlayer.losses.selection import evaluate
from lastlayer.losses.target import Target, check_range, read, read_scores


def distillation(
    logits: Tensor,
    teacher_logits: Tensor,
    target: Target,
    *,
    temperature: float = 4.0,
    alpha: float = 0.9,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Knowledge distillation: the student's softened probabilities should match those of a teacher.

        L_k = alpha T^2 KL(softmax(z_teacher / T) || softmax(z / T)) + (1 - alpha) CE_k(z)

    The factor T^2 keeps the gradient of the first term at the same size when T changes. The teacher gets no gradient.

    Args:
        logits: the student's logits, (N, K), (N, K, ...) or (K,).
        teacher_logits: the teacher's logits, of the same shape.
        temperature: T > 0.
        alpha: share of the teacher's term, in [0, 1].
        target, weight, ignore_index, reduction, and the result: as in `cross_entropy`, for both terms.

    Paper: Hinton et al. 2015.
    Tests: tests/losses/test_distillation.py::test_torchs_divergence_agrees

    Example:
        >>> import torch
        >>> z = torch.tensor([[2.0, 0.0, 0.0]])
        >>> distillation(z, z, torch.tensor([0]))  # if student and teacher are equal, only the second term is left
        tensor(0.0240)
    """
    check_range("temperature", temperature, 0.0, open_low=True)
    check_range("alpha", alpha, 0.0, 1.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    teacher = _read_teacher(teacher_logits, logits, problem.logits)
    teacher_log = F.log_softmax(teacher / temperature, dim=1)
    teacher_p = teacher_log.exp()
    minus_entropy = (teacher_p * teacher_log).sum(1, keepdim=True)
    del teacher_log
    student_log = F.log_softmax(problem.logits / temperature, dim=1)
    divergence = minus_entropy - (teacher_p * student_log).sum(1, keepdim=True)
    log_p = F.log_softmax(problem.logits, dim=1)  # last, so that the backward pass frees it first
    return evaluate(problem, lambda at: alpha * temperature**2 * divergence - (1 - alpha) * at(log_p))


def feature_norm_distillation(
    logits: Tensor,
    features: Tensor,
    teacher_logits: Tensor,
    teacher_features: Tensor,
    target: Target,
    *,
    scale: float = 2.0,
    beta: float = 9.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Feature-normalised distillation: the feature norm of each sample serves as its temperature.

        q = softmax(scale z / ||h||),    q_teacher = softmax(scale z_teacher / ||h_teacher||)
        L_k = CE_k(z) - beta sum_j q_teacher,j log q_j

    A large feature norm is a sign that the network over-fits the sample's label. The defaults are those of the authors'
    public script. That script caps the norm of the features at `scale` and does not divide the bias. Here the logits,
    bias included, are divided by the norm, as the paper writes it. The teacher gets no gradient.

    Args:
        logits: the student's logits, (N, K).
        features: the student's last-layer features h, (N, d).
        teacher_logits: the teacher's logits, (N, K).
        teacher_features: the teacher's features, (N, d'), of any width.
        target: class indices (N,), class probabilities (N, K), or a mixed pair (y_a, y_b, lam).
        scale: > 0, the norm that the features of every sample are brought to.
        beta: weight of the teacher's term, >= 0.
        weight, ignore_index, reduction, and the result: as in `cross_entropy`, for both terms.

    Degenerate cases: a zero feature cannot be divided by its norm. Its teacher's term uses the uniform q, without
    gradient.

    Paper: Xu et al. 2020.
    Tests: tests/losses/test_distillation.py::test_feature_norm_distillation

    Example:
        >>> import torch
        >>> z, h = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[3.0, 4.0]])
        >>> feature_norm_distillation(z, h, z, h, torch.tensor([0]), beta=1.0)
        tensor(1.2593)
    """
    check_range("scale", scale, 0.0, open_low=True)
    check_range("beta", beta, 0.0)
    problem = read(logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction)
    if problem.logits.dim() != 2:
        raise ValueError(f"logits must have shape (N, K), got {tuple(logits.shape)}")
    teacher = _read_teacher(teacher_logits, logits, problem.logits)
    student_log = F.log_softmax(_by_feature_norm(problem.logits, features, "features", scale), dim=1)
    teacher_q = F.softmax(_by_feature_norm(teacher, teacher_features, "teacher_features", scale).detach(), dim=1)
    follow = (teacher_q * student_log).sum(1, keepdim=True)
    log_p = F.log_softmax(problem.logits, dim=1)  # last, so that the backward pass frees it first
    return evaluate(problem, lambda at: -at(log_p) - beta * follow)


def _read_teacher(teacher: Tensor, logits: Tensor, like: Tensor) -> Tensor:
    teacher = read_scores(teacher, "teacher_logits")
    if teacher.shape != logits.shape:
        raise ValueError(
            f"teacher_logits must have the student's shape {tuple(logits.shape)}, got {tuple(teacher.shape)}"
        )
    return teacher.detach().to(like.dtype).reshape(like.shape)


def _by_feature_norm(logits: Tensor, features: Tensor, name: str, scale: float) -> Tensor:
    features = read_scores(features, name)
    if features.dim() != 2 or features.shape[0] != logits.shape[0]:
        raise ValueError(f"{name} must have shape ({logits.shape[0]}, d), got {tuple(features.shape)}")
    norm = torch.linalg.vector_norm(features, dim=1, keepdim=True).to(logits.dtype)
    nonzero = norm > 0
    return torch.where(nonzero, scale * logits / torch.where(nonzero, norm, 1.0), 0.0)


@register("kd")
class DistillationLoss(Loss):
    """`distillation` as a Module, called with (logits, teacher_logits, target); `kd` by name."""

    function = staticmethod(distillation)


@register("fn-kd")
class FeatureNormDistillationLoss(Loss):
    """`feature_norm_distillation` as a Module, called with its five inputs; `fn-kd` by name."""

    function = staticmethod(feature_norm_distillation)
