"""The unconstrained feature model: features and classifier as free variables, solved for any loss and certified.

`UnconstrainedFeatures` is the model. Below it stand the search from many starts, and the certificate of a point.
Tests: tests/theory/test_unconstrained.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from lastlayer import losses
from lastlayer.geometry import Geometry, measure
from lastlayer.theory import minima, numbers
from lastlayer.theory.dynamics import loss_of_features
from lastlayer.theory.landscape import Curvature, smallest_curvature
from lastlayer.theory.loss_theory import LossTheory, NoFormula, has_class_weights, theory_of
from lastlayer.theory.numbers import check_count, check_nonnegative, check_positive, threads_for

Parts = tuple[Tensor, Tensor, Tensor]  # W (..., K, d), H (..., N, d), b (..., K)

GLOBAL_TOLERANCE = 1e-8  # of the gap to a closed form, relative to 1 + |value|
BOUND_TOLERANCE = 1e-7  # of the gap to a lower bound, which is only as tight as the point is critical
CRITICAL_TOLERANCE = 1e-6  # of a gradient norm
NEGATIVE = -1e-8  # curvature below this is negative


@dataclass(frozen=True)
class Certificate:
    """What is known about a point.

    `kind` is one of

    - "global minimum": within 1e-8 of the closed form, or within 1e-7 of a lower bound
    - "strict saddle": there is a direction of negative curvature
    - "spurious": critical, without negative curvature, and above the global minimum
    - "local minimum": critical, without negative curvature, and no global value is known
    - "critical point": the curvature was not computed
    - "not critical"
    - "not smooth": the loss is piecewise. Gradient norm and curvature say nothing, only the gap counts.

    On spheres with a large scale the minimum itself is below 1e-8, and the values of points far from collapse are that
    close to it. Then only `geometry` tells them apart.
    """

    kind: str
    value: float  # the objective
    gradient_norm: float  # norm of its gradient; on spheres, of the tangent gradient
    closed_form: float | None  # the global minimum in closed form, if it is known
    # value minus `closed_form`, or without one, value minus `lower_bound`. None without either, or if the bound is 0.
    gap: float | None
    # A value that no W, H, b of any dimension can go below, for a loss that is convex in the logits. It comes from the
    # dual of the nuclear norm. A bound of 0 is vacuous. None for other losses.
    lower_bound: float | None
    curvature: Curvature | None  # smallest Hessian eigenvalue with its direction, if it was computed
    escape: Parts | None  # unit direction (dW, dH, db) along which a strict saddle falls
    geometry: Geometry  # every measure of lastlayer.geometry at this point
    starts: int  # how many starts ended at this value


@dataclass(frozen=True)
class Solution:
    """The best of all starts, and what became of the others."""

    loss: float  # the objective there, penalties included
    weight: Tensor  # classifier rows W, [K, d], float64; unit rows on spheres
    features: Tensor  # H, [N, d], sorted by class; unit rows on spheres
    bias: Tensor  # b, [K]. It is added to the logits, but on spheres it is subtracted from the scores.
    target: Tensor  # labels of the features, [N]
    certificate: Certificate  # what is known of this point
    values: Tensor  # objective at the end of each start, [S]
    gradient_norms: Tensor  # gradient norm there, [S]
    iterations: Tensor  # iterations of each start, [S]
    # one for each distinct value that a start ended at, lowest first. `certificate` is the first.
    certificates: tuple[Certificate, ...]


class UnconstrainedFeatures:
    r"""Classification with free features: minimise over W [K, d], H [N, d] and b [K].

    Euclidean: (1/N) sum_i L(W h_i + b, y_i) + lambda_w/2 ||W||^2 + lambda_h/2 ||H||^2 + lambda_b/2 ||b||^2.
    On spheres (`normalized=True`): (1/N) sum_i L(scale * w_j.h_i - b_j, y_i) + lambda_b/2 ||b||^2 with unit rows of
    W and H. There the terms of lambda_w and lambda_h are constant and left out.

    Args:
        K: number of classes, at least 2.
        n: samples per class, or K numbers for unbalanced classes.
        d: dimension of the features.
        loss: a create name or a loss Module, or a differentiable Module that maps (logits, target) to a mean.
            `large-margin` has no bias. `arc-margin` needs `normalized=True`, and has its own scale. The distillation
            losses need a teacher, so they raise ValueError. `ln` has no minimum: it does not see the norms, the
            penalties drive them to 0, and no start converges.
        lambda_w, lambda_h, lambda_b: penalties. In the Euclidean model the first two must be above 0, because without
            them most losses do not attain their infimum.
        normalized: whether rows lie on spheres.
        scale: the scale of the sphere model, above 0. None means 16, the default of NormalizedHead.
        bias: whether there is a bias.

    Paper: 001, Section 3 (Euclidean); 003, Section 3 (spheres, the bias subtracted).
    Tests: tests/theory/test_unconstrained.py::test_global_minimum_of_theorem_one

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
        self.loss: nn.Module = losses.create_for(torch.tensor(counts), loss) if isinstance(loss, str) else loss
        self.theory = theory_of(self.loss)

        takes = self.loss.takes if isinstance(self.loss, losses.Loss) else ("logits",)
        if isinstance(self.loss, losses.Loss) and self.loss.needs_teacher:
            raise ValueError(f"{self.theory.name} needs a teacher, which the unconstrained feature model does not have")
        if "cosines" in takes and not normalized:
            raise ValueError(f"{self.theory.name} takes cosines; give normalized=True (a scale on the command line)")
        self.bias = bias and "cosines" not in takes and "weight" not in takes
        self._loss_scale = 1.0 if "cosines" in takes else self.scale
        # A formula for the loss holds if each class weighs the same: no class weights, and no class is ignored.
        self._classes_weigh_the_same = (
            isinstance(self.loss, losses.Loss)
            and not has_class_weights(self.loss)
            and not 0 <= self.loss.hyperparameters().get("ignore_index", -100) < K
        )
        self._sizes = [K * d, sum(counts) * d, K]  # number of entries of W, H and b
        self._entries = sum(self._sizes)

    def objective(self, weight: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        """The objective at W [K, d], H [N, d], b [K]. On spheres the rows are normalized first.

        Example:
            >>> model = UnconstrainedFeatures(2, 1, 2, "ce", 0.1, 0.1)
            >>> model.objective(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2))
            tensor(0.6931)
        """
        penalty = 0.5 * self.lambda_b * bias.square().sum()
        if self.normalized:
            weight, features = _unit(weight), _unit(features)
        else:
            penalty = penalty + 0.5 * self.lambda_w * weight.square().sum()
            penalty = penalty + 0.5 * self.lambda_h * features.square().sum()
        return self._mean_loss(weight, features, bias) + penalty

    def _mean_loss(self, weight: Tensor, features: Tensor, bias: Tensor) -> Tensor:
        target = self.target.to(features.device)
        offset = (-1.0 if self.normalized else 1.0) * bias if self.bias else None
        value = loss_of_features(self.loss, features, target, weight, offset, self._loss_scale)
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

        This runs L-BFGS in float64 on all starts together. It uses nothing of the symmetry of the solution. A start
        that cannot reach the tolerance keeps its last point; see `gradient_norms`.

        Args:
            starts, seed: number of random starts, at least 1, and their seed. The loss must be finite there.
            tolerance: gradient norm at which a start has converged.
            max_iterations: limit for each start. None means 3000, or 300 for piecewise losses, whose gradient does not
                vanish at a minimum. They come within about 1e-3 of it, and `gap` says how close.
            spread: typical norm of a starting row (Euclidean model).
            curvature: whether to compute the smallest Hessian eigenvalue. It is never computed for piecewise losses.
        """
        check_count("starts", starts, least=1)
        check_positive(tolerance=tolerance, spread=spread)
        limit = max_iterations if max_iterations is not None else 3000 if self.theory.smooth else 300
        search = _Search(self)
        ends = search.run(starts, seed=seed, spread=spread, tolerance=tolerance, max_iterations=limit)
        with threads_for(self._entries):
            return self._certified(search.parts(ends.points), ends, search.norm(ends.points, ends.gradients), curvature)

    def certify(
        self, weight: Tensor, features: Tensor, bias: Tensor | None = None, *, curvature: bool = True
    ) -> Certificate:
        """What is known of any point, such as a saddle made by hand.

        Args:
            weight, features, bias: W, [K, d]; H, [N, d], sorted by class like `target`; b, [K], or None for zero.
            curvature: as in `solve`.

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
        with threads_for(self._entries):
            return self._certify((weight.double(), features.double(), b.double()), curvature=curvature)

    def closed_form(self) -> float | None:
        """The global minimum, if a formula is known: for balanced classes and enough dimensions, else None."""
        if not self._classes_weigh_the_same or len(set(self.counts)) != 1 or self.d < self.K - 1:
            return None
        try:
            if self.normalized:
                return self.theory.sphere_minimum(self.K, self.scale, free_bias=self.bias and self.lambda_b == 0)
            K, n = self.K, self.counts[0]
            found = minima.unconstrained(
                self.loss, K, n, self.lambda_w, self.lambda_h, bias=self.bias, lambda_b=self.lambda_b
            )
        except NoFormula:
            return None
        needed = self.K if found.common != 0.0 else self.K - 1
        return found.loss if self.d >= needed else None

    def lower_bound(self, parts: Parts) -> float | None:
        """A value below which the objective cannot fall, from the tangent of a convex loss at these W, H, b.

        Let G and g be the gradients of the mean loss in Z = H W' and in b. Then every Z' and b' have
        L(Z' + b') >= L + <G, Z' - Z> + g.(b' - b). The penalties of W and H are at least l ||Z'||_*, where
        l = sqrt(lambda_w lambda_h), and <G, Z'> >= -||G|| ||Z'||_*. So if ||G|| <= l, the best Z' gains nothing.
        Otherwise it gains at most (||G|| - l) ||Z'||_*, where ||Z'||_* <= value/l at the minimum of a non-negative
        loss. With a free bias the bound is exact up to ||g||, which vanishes at a critical point. If the tangent says
        less than 0, the bound is 0.
        """
        if self.normalized or not self.theory.convex or not self._classes_weigh_the_same:
            return None
        weight, features, bias = (part.detach() for part in parts)
        logits = (features @ weight.mT).requires_grad_(True)
        offset = bias.clone().requires_grad_(True)
        # The loss as a function of free logits: the identity takes the place of the classifier.
        with torch.enable_grad():
            value = self._mean_loss(torch.eye(len(bias), dtype=logits.dtype), logits, offset)
        tangent, pull = torch.autograd.grad(value, [logits, offset], allow_unused=True)
        total = float(self.objective(weight, features, bias))
        price = math.sqrt(self.lambda_w * self.lambda_h)
        excess = max(0.0, float(torch.linalg.matrix_norm(tangent, 2)) / price - 1.0)
        bound = float(value.detach()) - float((tangent * logits.detach()).sum()) - excess * total
        if pull is not None and self.bias:
            bound -= float(pull @ bias)
            if self.lambda_b > 0:
                bound -= float(pull @ pull) / (2.0 * self.lambda_b)
        return max(bound, 0.0)

    def _certify(self, parts: Parts, *, curvature: bool, starts: int = 1) -> Certificate:
        leaves = [part.detach().clone().requires_grad_(True) for part in parts]
        with torch.enable_grad():
            total = self.objective(*leaves)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients if g is not None))
        value = float(total.detach())

        formula, bound = self.closed_form(), self.lower_bound(parts)
        # A lower bound of 0 holds everywhere and says nothing about this point.
        reference = formula if formula is not None else bound or None
        gap = None if reference is None else value - reference
        found = smallest_curvature(self.objective, parts) if curvature and self.theory.smooth else None

        tolerance = GLOBAL_TOLERANCE if formula is not None else BOUND_TOLERANCE
        # A value well below the formula would show that the formula is not the minimum here.
        if gap is not None and abs(gap) <= tolerance * (1.0 + abs(value)):
            kind = "global minimum"
        elif not self.theory.smooth:
            kind = "not smooth"
        elif norm > CRITICAL_TOLERANCE:
            kind = "not critical"
        elif found is None:
            kind = "critical point"
        elif found.value < NEGATIVE:
            kind = "strict saddle"
        else:
            kind = "local minimum" if formula is None else "spurious"
        escape = cast(Parts, found.direction) if found is not None and kind == "strict saddle" else None
        weight, features, bias = (part.detach() for part in parts)
        sign = -1.0 if self.normalized else 1.0
        geometry = measure(features, self.target, weight, sign * bias)
        return Certificate(kind, value, norm, formula, gap, bound, found, escape, geometry, starts)

    def _certified(self, parts: Parts, ends: numbers.Ends, norms: Tensor, curvature: bool) -> Solution:
        """Certify one start of each group that ended at the same value."""
        groups: list[list[int]] = []
        for index in torch.argsort(ends.values).tolist():
            value = float(ends.values[index])
            if groups and value - float(ends.values[groups[-1][0]]) <= 1e-7 * (1.0 + abs(value)):
                groups[-1].append(index)
            else:
                groups.append([index])
        # The most critical point speaks for its group. A loss without a minimum may leave as many groups as starts.
        chosen = [min(group, key=lambda i: float(norms[i])) for group in groups[:8]]
        weight, features, bias = parts
        certificates = tuple(
            self._certify((weight[i], features[i], bias[i]), curvature=curvature, starts=len(group))
            for i, group in zip(chosen, groups, strict=False)
        )
        best = chosen[0]
        return Solution(
            loss=float(ends.values[best]),
            weight=weight[best],
            features=features[best],
            bias=bias[best],
            target=self.target,
            certificate=certificates[0],
            values=ends.values,
            gradient_norms=norms,
            iterations=ends.iterations,
            certificates=certificates,
        )


def _unit(rows: Tensor) -> Tensor:
    """Rows of norm 1. The model starts from random rows and never reaches zero."""
    normed: Tensor = rows / rows.norm(dim=-1, keepdim=True)
    return normed


class _Search:
    """Minimises a model from many random starts, in coordinates of its own.

    W, H and b are `metric` times the coordinates, which gives all coordinates curvatures of the same order.
    """

    def __init__(self, model: UnconstrainedFeatures) -> None:
        self.model = model
        K, N = model.K, len(model.target)
        if model.normalized:
            self.metric = math.sqrt(K), math.sqrt(N), math.sqrt(K)
        else:
            theory = model.theory if model._classes_weigh_the_same else LossTheory(model.loss)
            curvature = theory.bias_curvature(K, math.sqrt(N / K * model.lambda_w * model.lambda_h)) + model.lambda_b
            self.metric = model.lambda_w**-0.5, model.lambda_h**-0.5, curvature**-0.5

    def run(self, starts: int, *, seed: int, spread: float, tolerance: float, max_iterations: int) -> numbers.Ends:
        model, metric, size = self.model, self.metric, self.model._entries
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(starts, size, generator=generator, dtype=torch.float64)
        weight, features, bias = self.split(points)
        if model.normalized:
            weight, features = _unit(weight), _unit(features)
        else:
            typical = spread / math.sqrt(model.d)
            weight, features = weight * typical, features * typical
        flat = [(weight / metric[0]).flatten(-2), (features / metric[1]).flatten(-2), 0.0 * bias]
        points = torch.cat(flat, dim=-1)
        evaluate = self.evaluator()

        # A longer memory saves iterations. If the starts together outgrow the cache, we split them into groups.
        memory = 20 if size < 20_000 else 6
        group = min(starts, max(1, 2_000_000 // (2 * memory * size)))

        def minimise(some: Tensor) -> numbers.Ends:
            if not torch.isfinite(evaluate(some)[0]).all():
                raise ValueError("the loss is not finite at a random start")
            return numbers.lbfgs(
                evaluate, some, norm=self.norm, tolerance=tolerance, max_iterations=max_iterations, memory=memory
            )

        return numbers.join(numbers.side_by_side(minimise, torch.split(points, group), group * size))

    def parts(self, points: Tensor) -> Parts:
        """W, H and b at points in the coordinates of the search."""
        weight, features, bias = self.split(points)
        weight, features, bias = weight * self.metric[0], features * self.metric[1], bias * self.metric[2]
        return (_unit(weight), _unit(features), bias) if self.model.normalized else (weight, features, bias)

    def split(self, flat: Tensor) -> Parts:
        """W, H and b from their flat form, with any leading dimensions."""
        weight, features, bias = torch.split(flat, self.model._sizes, dim=-1)
        lead, d = flat.shape[:-1], self.model.d
        return weight.reshape(*lead, -1, d), features.reshape(*lead, -1, d), bias

    def evaluator(self) -> numbers.Evaluate:
        """Objective and gradient of many points at once."""
        model, (to_w, to_h, to_b) = self.model, self.metric
        to_rows = (0.0, 0.0) if model.normalized else (model.lambda_w * to_w**2, model.lambda_h * to_h**2)
        factors = torch.tensor((*to_rows, model.lambda_b * to_b**2), dtype=torch.float64)
        penalty = factors.repeat_interleave(torch.tensor(model._sizes))

        def single(flat: Tensor) -> Tensor:
            weight, features, bias = self.split(flat)
            if model.normalized:
                return model._mean_loss(_unit(weight), _unit(features), bias * to_b)
            # Every loss sees W and H only through their product, so both factors may go to the smaller of the two.
            return model._mean_loss(weight * (to_w * to_h), features, bias * to_b)

        many: Callable[[Tensor], Tensor] = torch.func.vmap(single)
        try:
            with torch.no_grad():
                many(torch.ones(2, model._entries, dtype=torch.float64))
        except RuntimeError:  # a loss that reads values in Python cannot be vectorised

            def many(x: Tensor) -> Tensor:
                return torch.stack([single(row) for row in x])

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_(True)
            values = many(x)
            (gradients,) = torch.autograd.grad(values.sum(), x)
            # We add the quadratic part by hand: through autograd it would cost as much as the loss.
            x, pull = x.detach(), penalty * x.detach()
            return values.detach() + 0.5 * torch.linalg.vecdot(pull, x), gradients + pull

        return evaluate

    def norm(self, x: Tensor, gradient: Tensor) -> Tensor:
        """Norm of the gradient in W, H and b, not in our coordinates; on spheres, of the tangent at the unit rows."""
        by_weight, by_features, by_bias = self.split(gradient)
        if self.model.normalized:
            # The gradient of f(w/||w||) is the tangent gradient at the unit row, divided by ||w||.
            weight, features, _ = self.split(x)
            rows = [by_weight.norm(dim=-1) * weight.norm(dim=-1), by_features.norm(dim=-1) * features.norm(dim=-1)]
            squares = [row.square().sum(-1) for row in rows]
        else:
            squares = [
                torch.linalg.vector_norm(part, dim=(-2, -1)).square() / factor**2
                for part, factor in ((by_weight, self.metric[0]), (by_features, self.metric[1]))
            ]
        total: Tensor = squares[0] + squares[1] + by_bias.square().sum(-1) / self.metric[2] ** 2
        return total.sqrt()
