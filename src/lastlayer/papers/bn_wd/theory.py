"""Theorems of the batch-norm paper, computed: bounds on perturbed frames, minima reached through batch norm."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lastlayer.heads import BatchNormHead, simplex_etf
from lastlayer.papers.engine.descent import descend
from lastlayer.papers.engine.store import Record
from lastlayer.theory import bounds, minima

SAMPLES = 3  # per class
DELTAS = (0.1, 0.4)
USEFUL = ("intra", "self_duality", "inter")  # kinds of bounds
ROUNDING = 1e-13  # of the loss; it is added to the measured excess


def perturbed_frames(
    classes: Sequence[int], budgets: Sequence[float], noises: Sequence[float], draws: int
) -> Iterator[Record]:
    """How often frames with noise, scaled to their norm budgets, break the bounds that their own loss implies."""
    generator = torch.Generator().manual_seed(0)
    for C, budget, noise in itertools.product(classes, budgets, noises):
        found: Counter[str] = Counter()
        for _ in range(draws):
            found.update(_judge_frame(*_perturbed(C, budget, noise, generator), budget))
        values = {"computed.frames": float(draws), "computed.violations": float(found["violations"])}
        for name in USEFUL:
            values[f"computed.useful_{name}"] = found[name] / (draws * len(DELTAS))
        yield Record({"classes": str(C), "budget": f"{budget:g}", "noise": f"{noise:g}"}, 0, 0, values)


def _perturbed(C: int, budget: float, noise: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """W (C, C) with ||W||_F = sqrt C, and features (C, SAMPLES, C) of quadratic mean norm `budget`, near the frame."""
    frame = simplex_etf(C, C).double()
    frame = frame / frame.norm(dim=1, keepdim=True)
    weight = frame + noise * torch.randn(C, C, generator=generator, dtype=torch.float64)
    features = frame[:, None] + noise * torch.randn(C, SAMPLES, C, generator=generator, dtype=torch.float64)
    return weight * math.sqrt(C) / weight.norm(), features * budget / features.square().sum(-1).mean().sqrt()


def _judge_frame(weight: Tensor, features: Tensor, budget: float) -> Counter[str]:
    """How many bounds are broken, and how many of each kind say anything."""
    C = len(weight)
    logits = features @ weight.T  # (C, SAMPLES, C)
    true = logits.diagonal(dim1=0, dim2=2).T  # (C, SAMPLES)
    loss = float((logits.logsumexp(-1) - true).mean())
    excess = max(loss - minima.bounded_norms(C, budget), 0.0) + ROUNDING
    units = (features / features.norm(dim=-1, keepdim=True)).mean(1)  # nothing is centred, as in the theorem
    gram = units @ units.T
    centred, means = weight - weight.mean(0), features.mean(1)
    duality = (centred * means).sum(1) / (centred.norm(dim=1) * means.norm(dim=1))
    inter = gram[~torch.eye(C, dtype=torch.bool)]
    found: Counter[str] = Counter()
    for delta in DELTAS:
        bound = bounds.collapse(C, budget, excess, delta)
        holds = (gram.diagonal() >= bound.intra, duality >= bound.self_duality, inter <= bound.inter)
        found["violations"] += sum(float(ok.double().mean()) < 1 - delta for ok in holds)
        found.update({name: not getattr(bound.vacuous, name) for name in USEFUL})
    return found


def through_batch_norm(classes: Sequence[int], decays: Sequence[float], starts: int) -> Iterator[Record]:
    """Free features, gamma and W, optimised through batch norm in float64: the lowest regularised loss of all starts.

    Decays rise, and each begins where the one before ended. From a random start, a large decay would switch dimensions
    off before the frame has formed, and end in a local minimum. As printed, m_reg has a logarithm of the opposite sign.
    """
    for C in classes:
        ends = [_start(C, seed) for seed in range(starts)]
        for decay in sorted(decays):
            reached = [_optimise(C, decay, free) for free in ends]
            best = min(range(starts), key=lambda index: reached[index])
            _, gamma, weight = ends[best]
            minimum = minima.regularized_batch_norm(C, decay)
            values = {
                "computed.reached": reached[best],
                "computed.minimum": minimum,
                "computed.printed": minimum + 2 * math.log1p(-(C - 1) * decay / math.sqrt(C)),
                "computed.gamma_norm": float(gamma.detach().norm()),
                "computed.weight_norm": float(weight.detach().norm()),
            }
            yield Record({"classes": str(C), "decay": f"{decay:g}"}, 0, 0, values)


def _start(C: int, seed: int) -> list[Tensor]:
    """Random features, gamma and weight. They have spare dimensions, because some are switched off on the way."""
    generator = torch.Generator().manual_seed(seed)
    width = 6 * C
    raw = torch.randn(C * SAMPLES, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(C, width, generator=generator, dtype=torch.float64)
    return [one.requires_grad_() for one in (raw, torch.ones(width, dtype=torch.float64), weight)]


def _optimise(C: int, decay: float, free: list[Tensor]) -> float:
    """Move features, gamma and weight to where L-BFGS ends, and return the objective there."""
    raw, gamma, weight = free
    target = torch.arange(C).repeat(SAMPLES)

    def objective() -> Tensor:
        logits = _normalised(raw) * gamma @ weight.T
        loss = (logits.logsumexp(1) - logits[torch.arange(len(target)), target]).mean()
        return loss + decay / 2 * (gamma.square().sum() + weight.square().sum())

    descend(objective, free, steps=4000, tolerance=1e-10)
    return objective().item()


def _normalised(raw: Tensor) -> Tensor:
    return (raw - raw.mean(0)) / raw.var(0, unbiased=False).sqrt()


def quadratic_mean_norm(widths: Sequence[int], batches: Sequence[int]) -> Iterator[Record]:
    """How far sqrt(mean ||h||^2) over batches of unequal sizes is from ||gamma||.

    It is measured with exact normalisation, with eps, and with running statistics.
    """
    for width in widths:
        generator = torch.Generator().manual_seed(width)
        head = BatchNormHead(width, 2).double()
        gamma = torch.rand(width, generator=generator, dtype=torch.float64)
        head.norm.weight.data.copy_(gamma)
        inputs = [torch.randn(size, width, generator=generator, dtype=torch.float64) for size in batches]
        for _ in range(100):  # the running statistics forget their initial values
            training = [head.features(one).detach() for one in inputs]
        head.eval()
        made = {
            "error": [_normalised(one) * gamma for one in inputs],
            "error_eps": training,
            "error_evaluation": [head.features(one).detach() for one in inputs],
        }
        norm = float(gamma.norm())
        values = {
            f"computed.{name}": abs(float(torch.cat(features).square().sum(1).mean().sqrt()) / norm - 1)
            for name, features in made.items()
        }
        yield Record({"width": str(width)}, 0, 0, values)
