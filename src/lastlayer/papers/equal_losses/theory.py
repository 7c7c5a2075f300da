"""Theorems of the unconstrained feature model, computed: minimisers, profiles, landscape, curvature."""

import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lastlayer import losses
from lastlayer.papers.engine.descent import descend
from lastlayer.papers.engine.store import Record
from lastlayer.theory import UnconstrainedFeatures, contrastive, landscape, minima

NAMES = {"CE": "ce", "LS": "ls", "FL": "focal", "MSE": "mse"}
CONTRASTIVE = ("CE", "LS", "FL")
REACHED = 1e-6  # from the global value, within which a start has found it
SAME = 1e-9  # of two values of phi(t) + c|t|


def _loss(label: str, K: int, reduction: str = "mean") -> nn.Module:
    options = {"label_smoothing": 0.1} if label == "LS" else {}
    return losses.create(NAMES[label], K, reduction=reduction, **options)


def _model(label: str, K: int, n: int, d: int, c: float) -> UnconstrainedFeatures:
    """The model whose bias has no penalty and whose equal penalties of W and H weigh |t| by c."""
    penalty = c / math.sqrt(n)
    return UnconstrainedFeatures(K, n, d, _loss(label, K), penalty, penalty, 0.0)


def minimisers(shapes: Sequence[Sequence[int]], n: int, strength: float) -> Iterator[Record]:
    """The best of some random starts against the closed form of Theorem 1, with n samples per class.

    Shapes are (classes, starts). The strength is K c. It must be so small that the minimum is not at 0.
    """
    problems = ((K, starts, d) for K, starts in shapes for d in (K - 1, K, 2 * K))
    for (K, starts, d), label in itertools.product(problems, CONTRASTIVE):
        model = _model(label, K, n, d, strength / K)
        found = model.solve(starts=starts, tolerance=1e-11, curvature=False)
        closed = minima.unconstrained(model.loss, K, n, model.lambda_w, model.lambda_h)
        frame = abs(closed.rho) * math.sqrt(n) * (torch.eye(K, dtype=torch.float64) - 1 / K)
        means = found.features.view(K, n, d).mean(1)
        values = {
            "computed.gap": abs(found.loss - closed.loss),
            "computed.frame_error": float((found.weight @ found.weight.T - frame).abs().max()),
            "computed.mean_sum": float(means.sum(0).norm()),
            "computed.bias_spread": float(found.bias.std()),
            "computed.self_duality_error": float((found.weight - math.sqrt(n) * means).abs().max()),
        }
        yield Record({"loss": label, "classes": str(K), "width": str(d)}, 0, 0, values)


def profiles(classes: Sequence[int], logits: int, weights: int) -> Iterator[Record]:
    """The lower bound phi on so many rows of random logits, and how many global minimisers phi(t) + c|t| has.

    c takes so many values as `weights` says, evenly spaced in logarithm from 1e-4 / K to 2 / K.
    """
    for K, label in itertools.product(classes, CONTRASTIVE):
        values = _bound(label, K, logits) | _minima(label, K, weights)
        yield Record({"loss": label, "classes": str(K)}, 0, 0, values)


def _random_logits(K: int, count: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Logits (count, K) and labels, and the generator behind them."""
    generator = torch.Generator().manual_seed(K)
    spread = 5 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    z = torch.randn(count, K, generator=generator, dtype=torch.float64) * spread
    return z, torch.randint(K, (count,), generator=generator), generator


def _bound(label: str, K: int, count: int) -> dict[str, float]:
    z, target, _ = _random_logits(K, count)
    each = _loss(label, K, reduction="none")
    phi = contrastive.phi(_loss(label, K), K)

    def above(logits: Tensor) -> Tensor:
        true = logits[torch.arange(count), target]
        excess: Tensor = each(logits, target) - phi(logits.sum(1) - K * true)
        return excess

    true = z[torch.arange(count), target]
    others = (z.sum(1) - true) / (K - 1)
    even = others[:, None].expand(count, K).scatter(1, target[:, None], true[:, None])
    off, on = above(z), above(even)
    return {
        "computed.logits": float(count),
        "computed.violations": float((off < -1e-12 * (1 + z.abs().amax(1))).sum()),
        "computed.smallest_excess": float(off.min()) if K > 2 else 0.0,
        "computed.excess_at_equal": float(on.abs().max()),
    }


def _minima(label: str, K: int, count: int) -> dict[str, float]:
    loss = _loss(label, K)
    phi = contrastive.phi(loss, K)
    # in x = t/(K-1), finely spaced; t > 0 too, where no minimiser should be
    grid = torch.linspace(-40.0, 5.0, 180_001, dtype=torch.float64) * (K - 1)
    height = phi(grid)
    several = positive = wrong = 0
    for c in torch.logspace(math.log10(1e-4 / K), math.log10(2 / K), count, dtype=torch.float64).tolist():
        total = height + c * grid.abs()
        low = total[1:-1]
        local = (low <= total[:-2]) & (low <= total[2:])
        found = contrastive.minimisers(loss, K, c)
        best = float(total.min())
        several += int((local & (low <= best + SAME)).sum()) > 1 and _apart(grid[1:-1][local & (low <= best + SAME)], K)
        positive += float(grid[total.argmin()]) > 0 or found.t > 0
        wrong += abs(found.value - best) > 1e-6
    tie = contrastive.tie_level(K) if label == "FL" else None
    return {
        "computed.several_minimisers": float(several),
        "computed.positive_minimisers": float(positive),
        "computed.disagreements": float(wrong),
        **({"computed.tie_at": tie} if tie is not None else {}),
    }


def _apart(places: Tensor, K: int) -> bool:
    """Whether they are not all of one flat bottom."""
    return bool(places.max() - places.min() > 0.01 * (K - 1))


def random_starts(cases: Sequence[Sequence[float]], focal: Sequence[Sequence[float]], starts: int) -> Iterator[Record]:
    """The share of random starts that end at the global value.

    Cases are (classes, samples per class, c). Those in `focal` are for focal loss only.
    """
    problems = [*((label, case) for case in cases for label in NAMES), *(("FL", case) for case in focal)]
    for label, (classes, per_class, c) in problems:
        K, n = int(classes), int(per_class)
        model = _model(label, K, n, K, c)
        found = model.solve(starts=starts, tolerance=1e-8, curvature=False)
        gaps = found.values - minima.unconstrained(model.loss, K, n, model.lambda_w, model.lambda_h).loss
        values = {
            "computed.starts": float(starts),
            "computed.share": float((gaps < REACHED).double().mean()),
            "computed.worst_gap": float(gaps.max()),
        }
        yield Record({"loss": label, "classes": str(K), "c": f"{c:g}"}, 0, 0, values)


def curvature(classes: Sequence[int], n: int, strength: float, logits: int) -> Iterator[Record]:
    """The smallest Hessian eigenvalue at two saddles, and of focal loss in the logits where the label has p >= 0.2032.

    The strength is c over phi'(0), below 1. There are n samples per class, and so many rows of logits per K.
    """
    for K in classes:
        for label in CONTRASTIVE:
            c = strength * contrastive.phi(_loss(label, K), K).derivative(0.0)
            model = _model(label, K, n, K, c)
            origin = (torch.zeros(K, K), torch.zeros(n * K, K), torch.zeros(K))
            for point, parts in (("origin", origin), ("two classes merged", _merged(model, n))):
                found = model.certify(*(part.double() for part in parts))
                assert found.curvature is not None
                values = {"computed.curvature": found.curvature.value, "computed.gradient": found.gradient_norm}
                yield Record({"loss": label, "classes": str(K), "point": point}, 0, 0, values)
        values = {"computed.logit_curvature": _logit_curvature(K, logits), "computed.logits": float(logits)}
        yield Record({"loss": "FL", "classes": str(K), "point": "logits, p >= 0.2032"}, 0, 0, values)


def _merged(model: UnconstrainedFeatures, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The minimum among points where the first two classes share weight, features and bias.

    By symmetry of the two classes it is a critical point without that restriction too.
    """
    K, d = model.K, model.d
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(K).clamp(min=1) - 1
    samples = (rows[:, None] * n + torch.arange(n)).flatten()
    shapes = ((K - 1, d), ((K - 1) * n, d), (K - 1,))
    free = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]

    def objective() -> Tensor:
        return model.objective(free[0][rows], free[1][samples], free[2][rows])

    descend(objective, free, steps=3000, tolerance=1e-11)
    weight, features, bias = (one.detach() for one in free)
    return weight[rows], features[samples], bias[rows]


def _logit_curvature(K: int, count: int) -> float:
    """The smallest eigenvalue of focal loss's Hessian over random logits whose label has 0.2032 <= p < 1."""
    z, target, generator = _random_logits(K, count)
    true = torch.zeros(count, K, dtype=torch.bool).scatter_(1, target[:, None], True)
    p = 0.2032 + 0.7968 * (1 - 1e-9) * torch.rand(count, generator=generator, dtype=torch.float64)
    p[0] = 0.2032
    level = torch.logit(p) + z.masked_fill(true, -math.inf).logsumexp(1)
    z = torch.where(true, level[:, None], z)
    lowest = [
        float(torch.linalg.eigvalsh(landscape.logit_hessian("focal", z[rows], target[rows])).min())
        for rows in torch.arange(count).tensor_split(max(1, count // 10_000))
    ]
    return min(lowest)


def focal_profile(classes: Sequence[int], weights: Sequence[float], places: int) -> Iterator[Record]:
    """phi(t) + c|t| of focal loss over t/(K-1), for c = weight/K and for the c at which two minima tie."""
    for K in classes:
        phi = contrastive.phi("focal", K)
        tie = contrastive.tie_level(K)
        for c in [*(weight / K for weight in weights), *([] if tie is None else [tie])]:
            for x in torch.linspace(-6.0, 2.0, places, dtype=torch.float64).tolist():
                labels = {"classes": str(K), "c": f"{c:.6g}", "t / (K-1)": f"{round(x, 6) + 0.0:g}"}
                t = x * (K - 1)
                yield Record(labels, 0, 0, {"computed.psi": phi(t) + c * abs(t)})
