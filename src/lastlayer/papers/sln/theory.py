"""What paper 000 says without a trained network: the decomposition of its gradient and the toy dynamics."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer import losses
from lastlayer.papers.engine.store import Record
from lastlayer.theory.dynamics import Trajectory, simulate
from lastlayer.theory.gradients import decompose, zero_logits_point

RESOLVED = 1e-3  # of its terms, below which the direction of a gradient is not looked at
BATCH = 100  # cases that share their classifier, gamma and tau
TOY_LOSSES = ("CE", "LN", "SLN")
LOGIT_DIFFERENCES = {"0.5": "logit_difference_50", "0.7": "logit_difference", "1": "logit_difference_100"}  # by gamma


def theorem1(cases: int, classes: Sequence[int]) -> Iterator[Record]:
    """Propositions 1 and 2 and Theorem 1 on random classifiers, features, gammas and temperatures, in float64.

    A row has the largest relative error of the combination of pieces and of Proposition 1 against autograd; the
    smallest coefficient; and the largest cosine of the gradient of LN, whole or a piece, with x - x*. A gradient of LN
    is a difference of two terms. If it is less than a thousandth of them, they nearly cancel, and its direction is
    rounding. Such gradients are left out of the cosines and counted.
    """
    for K in classes:
        generator = torch.Generator().manual_seed(K)
        batches = [_batch(K, generator) for _ in range(math.ceil(cases / BATCH))]
        values = {f"theory.{name}": max(batch[name] for batch in batches) for name in batches[0]}
        values["theory.smallest_coefficient"] = min(batch["smallest_coefficient"] for batch in batches)
        values["theory.cancelled"] = sum(batch["cancelled"] for batch in batches)
        yield Record({"classes": str(K)}, 0, 0, {**values, "theory.cases": float(cases)})


def _batch(K: int, generator: torch.Generator) -> dict[str, float]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    weight, bias = normal(K, K + 2), normal(K)
    gamma, tau = between(0.0, 1.0), between(0.1, 1.0)
    features = normal(BATCH, K + 2).requires_grad_(True)
    target = torch.randint(K, (BATCH,), generator=generator)
    logits = features @ weight.T + bias

    def slope(value: Tensor) -> Tensor:
        return torch.autograd.grad(value.sum(), features, retain_graph=True)[0]

    norm = logits.norm(dim=1, keepdim=True)
    sln, ce, ln = (slope(_loss(logits / scale, target)) for scale in (tau * norm**gamma, 1.0, tau * norm))
    parts = decompose(logits.detach(), target, gamma, tau)
    ln_pieces, ce_pieces = parts.on_features(weight)  # (N, K, d)
    away = features.detach() - zero_logits_point(weight, bias)
    other = torch.ones(BATCH, K, dtype=torch.bool).scatter_(1, target.unsqueeze(1), False)
    coefficients = torch.stack([parts.c1[other], parts.c2[other]])
    turning = torch.cat([ln.unsqueeze(1), ln_pieces], 1)  # (N, 1 + K, d)
    p = torch.softmax(logits.detach() / (tau * norm.detach()), 1) * other
    terms = torch.cat([p.sum(1, keepdim=True), p], 1) / (tau * norm.detach())  # their size in the logits, (N, 1 + K)
    left = torch.cat([parts.ln.sum(1, keepdim=True), parts.ln], 1).norm(dim=2)
    resolved = left > RESOLVED * terms
    return {
        "decomposition_error": _relative(parts.combination @ weight, sln),
        "ce_error": _relative(ce_pieces.sum(1), ce),
        "ln_cosine": float(_cosine(turning, away.unsqueeze(1))[resolved].max()),
        "cancelled": float((~resolved & (terms > 0)).sum()),
        "smallest_coefficient": float(coefficients.min()),
    }


def _loss(scores: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy as log(1 + sum of exp of differences). Its gradient is right even where p_y rounds to 1."""
    index = target.unsqueeze(1)
    apart = scores - scores.gather(1, index)
    return F.softplus(apart.scatter(1, index, -math.inf).logsumexp(1), threshold=math.inf)


def _relative(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    norms = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(norms > 0, (a * b).sum(-1).abs() / norms, torch.zeros_like(norms))


def toy(
    loss: str, tau: float, seeds: Sequence[int], *, trained: bool, points: int, steps: int, snapshots: int
) -> list[Trajectory]:
    """The runs of Figures 2 to 5 with one loss. Each seed starts from the same points under every loss.

    If the weights are fixed, no point influences another. So all seeds are then simulated as one cloud.
    """
    weight = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64) / math.sqrt(2)
    made = losses.create("ce") if loss == "CE" else losses.create("sln", tau=tau, gamma=1.0 if loss == "LN" else 0.7)
    starts = [
        torch.randn(points, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds
    ]
    target = torch.arange(points) % 2
    bias = torch.zeros(2, dtype=torch.float64)
    if trained:
        return [
            simulate(made, start, target, weight, bias, train_weight=True, steps=steps, snapshots=snapshots)
            for start in starts
        ]
    whole = simulate(made, torch.cat(starts), target.repeat(len(seeds)), weight, bias, steps=steps, snapshots=snapshots)
    parts = whole.points.reshape(-1, len(seeds), points, 2).unbind(1)  # (T, N, 2) each
    return [dataclasses.replace(whole, points=part, target=target) for part in parts]


def dynamics(steps: int, points: int, seeds: int, taus: Sequence[float], snapshots: int) -> Iterator[Record]:
    """Figures 2 to 5: a row per loss, tau, fixed or trained weights, seed and snapshot.

    ratio is the distance within classes over the distance between them. drift is the largest movement of a point along
    the line f1 = f2 of the start. off_line is the largest |f1 + f2| / ||f|| of a point; its median is given too.
    """
    for weights in ("fixed", "trained"):
        for loss in TOY_LOSSES:
            for tau in ["-"] if loss == "CE" else taus:
                paths = toy(
                    loss, 1.0 if tau == "-" else float(tau), range(seeds), trained=weights == "trained",
                    points=points, steps=steps, snapshots=snapshots,
                )  # fmt: skip
                labels = {"weights": weights, "loss": loss, "tau": str(tau)}
                for seed, path in enumerate(paths):
                    yield from _moments(path, labels, seed)


def _moments(path: Trajectory, labels: dict[str, str], seed: int) -> Iterator[Record]:
    first, second = path.weight[0]
    normal = (first - second) / (first - second).norm()
    along = torch.stack([-normal[1], normal[0]])
    drift = ((path.points - path.points[0]) @ along).abs().amax(1)  # (T,)
    off = path.logits.sum(2).abs() / path.logits.norm(dim=2)  # (T, N)
    ratio = path.ratio
    for t, step in enumerate(path.steps):
        values = {
            "toy.ratio": float(ratio[t]),
            "toy.drift": float(drift[t]),
            "toy.off_line": float(off[t].max()),
            "toy.off_line_median": float(off[t].median()),
        }
        yield Record(labels, seed, int(step), values)
