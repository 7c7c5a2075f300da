"""Alignment with logit separation, computed: counter-examples, and a search for violations of the thresholds."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lastlayer import losses, tasks
from lastlayer.papers.engine.artifact import artifact
from lastlayer.papers.engine.store import Record
from lastlayer.theory import alignment

# The losses of Table 1 by label. Its eighth line has columns of its own and shares the runs of another loss.
NAMES = {
    label: point["loss.name"]
    for label, point in artifact("logit_separation.table1").axes["loss"].items()
    if "columns" not in point
}
ALIGNED = {label: name for label, name in NAMES.items() if losses.create(name, 2).aligned}
NOT_ALIGNED = {label: name for label, name in NAMES.items() if label not in ALIGNED}
LARGEST_STEP = 1 << 18  # logits moved at once


def counterexamples(exponents: Sequence[int]) -> Iterator[Record]:
    """Loss and gap of the two samples of section 3, for a loss of at most 10^-exponent, in float64."""
    for label, name in NOT_ALIGNED.items():
        for exponent in exponents:
            found = alignment.counterexample(name, 10.0**-exponent)
            loss = losses.create(name, 2, reduction="sum")(found.logits, found.target)
            gap = tasks.logit_separation(found.logits, found.target).gap
            values = {"computed.loss": float(loss), "computed.gap": float(gap)}
            yield Record({"loss": label, "epsilon": f"1e-{exponent}"}, 0, 0, values)


def search_violations(sets: int, steps: int, shapes: Sequence[Sequence[int]]) -> Iterator[Record]:
    """Minimise each aligned loss over logit sets that violate separation, by Adam from many random starts.

    The starts are split evenly between the shapes: (classes, samples) of a set, or of a batch if the loss couples its
    samples. A row says how many sets ended below the threshold, and the least loss over the threshold.
    """
    for label, name in ALIGNED.items():
        for seed, (classes, samples) in enumerate(shapes):
            limit = alignment.threshold(name, num_classes=classes, batch_size=samples)
            assert isinstance(limit.infimum, float)  # uniform noise
            excess = functools.partial(_excess, name, infimum=limit.infimum, couples=limit.couples)
            least, below, count = math.inf, 0, sets // len(shapes)
            size = max(1, LARGEST_STEP // (classes * samples))
            for start in range(0, count, size):
                reached = _minimise(excess, min(size, count - start), samples, classes, steps, 1000 * seed + start)
                least = min(least, float(reached.min()))
                below += int((reached < limit.value * (1 - 1e-9)).sum())
            values = {
                "computed.sets": float(count),
                "computed.below": float(below),
                "computed.ratio": least / limit.value,
                "computed.threshold": limit.value,
            }
            yield Record({"loss": label, "classes": str(classes), "samples": str(samples)}, 0, 0, values)


def _excess(name: str, logits: Tensor, target: Tensor, *, infimum: float, couples: str) -> Tensor:
    """Loss of each set above its infimum: (S, n, K) and (S, n) to (S,)."""
    classes = logits.shape[2]
    if couples == "batch":
        of_batch: Tensor = torch.func.vmap(losses.create(name, classes))(logits, target)
        return of_batch
    each: Tensor = losses.create(name, classes, reduction="none")(logits.flatten(0, 1), target.flatten())
    return each.view(target.shape).sum(1) - target.shape[1] * infimum


def _minimise(
    excess: Callable[[Tensor, Tensor], Tensor], sets: int, samples: int, classes: int, steps: int, seed: int
) -> Tensor:
    """The excess of each set after Adam. In each set one false logit is kept at or above one true logit."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (sets, samples), generator=generator)
    low, high = (torch.randint(samples, (sets,), generator=generator) for _ in range(2))
    rows = torch.arange(sets)
    false = (target[rows, high] + torch.randint(1, classes, (sets,), generator=generator)) % classes
    spread = 3 * torch.rand(sets, 1, 1, generator=generator, dtype=torch.float64)
    free = torch.randn(sets, samples, classes, generator=generator, dtype=torch.float64) * spread
    free.requires_grad_()

    def violating() -> Tensor:
        true = free[rows, low, target[rows, low]]
        at_least = true + (free[rows, high, false] - true).clamp(min=0)
        return free.index_put((rows, high, false), at_least)

    optimiser = torch.optim.Adam([free], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        (free.grad,) = torch.autograd.grad(excess(violating(), target).sum(), [free])
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return excess(violating(), target)
