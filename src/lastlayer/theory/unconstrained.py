"""The unconstrained feature model: features and classifier as free variables, solved for any loss and certified."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lastlayer import losses
from lastlayer.theory._certificate import Certificate, certify
from lastlayer.theory._losses import describe, name_of
from lastlayer.theory._problem import Problem, unit
from lastlayer.theory._scalar import check_count, check_nonnegative, check_positive
from lastlayer.theory._search import Found, search
from lastlayer.theory._threads import threads_for

# losses whose derivative jumps: their gradient does not vanish at a minimum and they have no curvature there
PIECEWISE = ("max-margin", "batch-max-margin", "large-margin", "arc-margin")


@dataclass(frozen=True)
class Solution:
    """The best of all starts, and what became of the others.

    Attributes:
        loss: the objective there, penalties included.
        weight: classifier rows W, [K, d], float64; unit rows on spheres.
        features: H, [N, d], sorted by class; unit rows on spheres.
        bias: b, [K]: added to the logits in the Euclidean model, subtracted from the scores on spheres.
        target: labels of the features, [N].
        certificate: gradient norm, gap, curvature, geometry and class of this point.
        values: objective at the end of every start, [S].
        gradient_norms: gradient norm there, [S].
        iterations: iterations of every start, [S].
        certificates: one for every distinct value that a start converged to, lowest first; `certificate` is the first.
    """

    loss: float
    weight: Tensor
    features: Tensor
    bias: Tensor
    target: Tensor
    certificate: Certificate
    values: Tensor
    gradient_norms: Tensor
    iterations: Tensor
    certificates: tuple[Certificate, ...]


class UnconstrainedFeatures:
    r"""Classification with free features: minimise over W [K, d], H [N, d] and b [K].

    Euclidean: (1/N) sum_i L(W h_i + b, y_i) + lambda_w/2 ||W||^2 + lambda_h/2 ||H||^2 + lambda_b/2 ||b||^2.
    On spheres (`normalized=True`): (1/N) sum_i L(scale * w_j.h_i - b_j, y_i) + lambda_b/2 ||b||^2 with unit rows of
    W and H; lambda_w and lambda_h, whose terms are constant there, are left out.

    Args:
        K: number of classes, at least 2.
        n: samples per class, or K numbers for unbalanced classes.
        d: dimension of the features.
        loss: a loss Module or a create name. `large-margin` takes features and weight and so has no bias;
            `arc-margin` takes cosines, so it needs `normalized=True` and brings its own scale; the distillation
            losses need a teacher and are refused. `ln` has no minimum: it does not see the norms, the penalties
            drive them to 0 and no start converges. A Module outside the library works if it maps (logits, target) to
            a mean and is differentiable.
        lambda_w, lambda_h, lambda_b: penalties; the first two above 0 in the Euclidean model, without which the
            infimum of most losses is not attained.
        normalized: on spheres.
        scale: the scale of the sphere model, above 0; None there means 16, the default of NormalizedHead.
        bias: whether there is a bias.

    Paper: 001, Section 3 (Euclidean); 003, Section 3 (spheres, the bias subtracted).

    Example:
        >>> model = UnconstrainedFeatures(3, 2, 4, "ce", 5e-3, 5e-3, 0.0)
        >>> found = model.solve(starts=4)
        >>> found.certificate.kind, bool(found.certificate.gap < 1e-10)
        ('global minimum', True)
    """

    def __init__(
        self,
        K: int,
        n: int | Sequence[int],
        d: int,
        loss: str | nn.Module,
        lambda_w: float = 0.0,
        lambda_h: float = 0.0,
        lambda_b: float = 0.0,
        normalized: bool = False,
        scale: float | None = None,
        *,
        bias: bool = True,
    ) -> None:
        check_count("K", K)
        check_count("d", d, least=1)
        counts = [n] * K if isinstance(n, int) else [int(x) for x in n]
        if len(counts) != K or min(counts) < 1:
            raise ValueError(f"n must be a positive int or K = {K} positive ints, got {n}")
        check_nonnegative(lambda_b=lambda_b)
        if not normalized:
            check_positive(lambda_w=lambda_w, lambda_h=lambda_h)
            if scale is not None:
                raise ValueError(f"scale belongs to the sphere model; give normalized=True with scale={scale}")
        self.K, self.d, self.counts = K, d, tuple(counts)
        self.lambda_w, self.lambda_h, self.lambda_b = lambda_w, lambda_h, lambda_b
        self.normalized = normalized
        self.scale = 1.0 if not normalized else 16.0 if scale is None else float(scale)
        check_positive(scale=self.scale)
        self.target = torch.repeat_interleave(torch.arange(K), torch.tensor(counts))  # (N,)
        if isinstance(loss, str):
            extra = {"counts": torch.tensor(counts)} if loss == "logit-adjusted" else {}
            loss = losses.create(loss, num_classes=K, **extra)
        self.loss = loss
        self.described = describe(loss) if isinstance(loss, losses.Loss) and _counts_all_alike(loss, K) else None
        name = name_of(loss)
        if getattr(loss, "needs_teacher", False):
            raise ValueError(f"{name} needs a teacher, which the unconstrained feature model does not have")
        if name == "arc-margin" and not normalized:
            raise ValueError("arc-margin takes cosines; give normalized=True (a scale on the command line)")
        self.bias = bias and name not in ("large-margin", "arc-margin")
        self.smooth = name not in PIECEWISE
        self._input = "features" if name == "large-margin" else "cosines" if name == "arc-margin" else "logits"

    def objective(self, weight: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """The objective at W [K, d], H [N, d], b [K]; on spheres the rows are normalised first.

        Args:
            weight: W, [K, d].
            features: H, [N, d].
            bias: b, [K].

        Example:
            >>> model = UnconstrainedFeatures(2, 1, 2, "ce", 0.1, 0.1)
            >>> model.objective(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2))
            tensor(0.6931)
        """
        if self.normalized:
            weight, features = unit(weight), unit(features)
        penalty = 0.5 * self.lambda_b * bias.square().sum()
        if not self.normalized:
            penalty = penalty + 0.5 * self.lambda_w * weight.square().sum()
            penalty = penalty + 0.5 * self.lambda_h * features.square().sum()
        return self._mean_loss(weight, features, bias) + penalty

    def _mean_loss(self, weight: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        target = self.target.to(features.device)
        if self._input == "features":
            value: Tensor = self.loss(features, weight, target)
        elif self._input == "cosines":
            value = self.loss(features @ weight.mT, target)
        else:
            sign = -1.0 if self.normalized else 1.0
            logits = features @ weight.mT
            logits = logits if self.scale == 1.0 else self.scale * logits
            value = self.loss(logits + sign * bias if self.bias else logits, target)
        if value.ndim:
            return value.mean()
        return value / len(target) if getattr(self.loss, "reduction", "mean") == "sum" else value

    def solve(
        self,
        *,
        starts: int = 16,
        tolerance: float = 1e-9,
        max_iterations: int | None = None,
        seed: int = 0,
        spread: float = 1.0,
        curvature: bool = True,
    ) -> Solution:
        r"""Minimise from many random starts at once and certify where they ended.

        L-BFGS in float64 on all starts together, in coordinates in which the penalties of W and H weigh the same.
        Nothing of the symmetry of the solution is used.

        Args:
            starts: number of random starts.
            tolerance: gradient norm at which a start has converged.
            max_iterations: limit for every start; None for 3000, and 300 for piecewise losses, whose gradient does not
                vanish: they come within about 1e-3 of the minimum, and `gap` says how close.
            seed: of the starts.
            spread: typical norm of a starting row (Euclidean model).
            curvature: whether to compute the smallest Hessian eigenvalue; never done for piecewise losses.

        Returns:
            Solution. A start that cannot reach the tolerance keeps its last point; see `gradient_norms`.

        Raises:
            ValueError: for fewer than one start, or a loss that is not finite at a random start.
        """
        check_count("starts", starts, least=1)
        check_positive(tolerance=tolerance, spread=spread)
        limit = max_iterations if max_iterations is not None else 3000 if self.smooth else 300
        problem = self._problem()
        found = search(problem, starts, seed=seed, spread=spread, tolerance=tolerance, max_iterations=limit)
        with threads_for(sum(problem.sizes)):
            return self._certified(found, curvature)

    def certify(
        self, weight: Tensor, features: Tensor, bias: Tensor | None = None, *, curvature: bool = True
    ) -> Certificate:
        """Classify any point, such as a saddle made by hand.

        Args:
            weight: W, [K, d].
            features: H, [N, d], sorted by class like `target`.
            bias: b, [K]; zero if None.
            curvature: whether to compute the smallest Hessian eigenvalue; never done for piecewise losses.

        Returns:
            Certificate.

        Example:
            >>> model = UnconstrainedFeatures(4, 2, 4, "ce", 5e-3, 5e-3)
            >>> model.certify(torch.zeros(4, 4), torch.zeros(8, 4)).kind
            'strict saddle'
        """
        if weight.shape != (self.K, self.d) or features.shape != (len(self.target), self.d):
            raise ValueError(
                f"weight must be {[self.K, self.d]} and features {[len(self.target), self.d]}, got "
                f"{list(weight.shape)} and {list(features.shape)}"
            )
        b = torch.zeros(self.K) if bias is None else bias
        parts = (weight.double(), features.double(), b.double())
        problem = self._problem()
        with threads_for(sum(problem.sizes)):
            return certify(problem, parts, curvature=curvature)

    def _certified(self, found: Found, curvature: bool) -> Solution:
        """Certify one start of every group that ended at the same value."""
        groups: list[list[int]] = []
        for index in torch.argsort(found.values).tolist():
            value = float(found.values[index])
            if groups and value - float(found.values[groups[-1][0]]) <= 1e-7 * (1.0 + abs(value)):
                groups[-1].append(index)
            else:
                groups.append([index])
        # the most critical point speaks for its group; a loss without a minimum may leave as many groups as starts
        chosen = [min(group, key=lambda i: float(found.gradient_norms[i])) for group in groups[:8]]
        weight, features, bias = found.parts
        certificates = tuple(
            certify(self._problem(), (weight[i], features[i], bias[i]), curvature=curvature, starts=len(group))
            for i, group in zip(chosen, groups, strict=False)
        )
        best = chosen[0]
        return Solution(
            loss=float(found.values[best]),
            weight=weight[best],
            features=features[best],
            bias=bias[best],
            target=self.target,
            certificate=certificates[0],
            values=found.values,
            gradient_norms=found.gradient_norms,
            iterations=found.iterations,
            certificates=certificates,
        )

    def _problem(self) -> Problem:
        return Problem(
            objective=self.objective,
            mean_loss=self._mean_loss,
            described=self.described,
            counts=self.counts,
            dim=self.d,
            target=self.target,
            lambda_w=self.lambda_w,
            lambda_h=self.lambda_h,
            lambda_b=self.lambda_b,
            normalized=self.normalized,
            scale=self.scale,
            bias=self.bias,
            smooth=self.smooth,
        )


def _counts_all_alike(loss: losses.Loss, K: int) -> bool:
    """Whether every class weighs the same: no class weights, and none of the classes ignored."""
    options = loss.hyperparameters()
    weighted = options.get("weight") is not None or options.get("class_weight") is not None
    return not weighted and not 0 <= options.get("ignore_index", -100) < K
