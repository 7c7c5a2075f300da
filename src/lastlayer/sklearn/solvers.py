"""How an estimator is fitted: L-BFGS over all rows, or AdamW over batches.

A linear head with a convex loss on a small table is solved in 10 to 30 iterations of L-BFGS, which needs no learning
rate. Larger tables and hidden layers take AdamW. Both minimise `Model.objective`.

Tests: tests/sklearn/test_solvers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lastlayer.sklearn.inputs import Array
from lastlayer.sklearn.model import Model
from lastlayer.training.recipes import PROBE_BATCH, PROBE_EPOCHS, PROBE_STEPS

HIDDEN_RATE = 0.3  # with hidden layers, the learning rate as a share of the one for a linear head

Objective = Callable[[Array], tuple[float, Array]]


class Watch:
    """Looks on after each iteration: notes the objective and, with early stopping, keeps the best numbers.

    Args:
        model: what is fitted.
        tol: stop if so many iterations improve the objective by less.
        patience: how many.
        validation: rows and labels held out, if there are any. Then their accuracy decides in place of the objective.
    """

    def __init__(self, model: Model, tol: float, patience: int, validation: tuple[Any, Array] | None = None) -> None:
        self.model, self.tol, self.patience, self.validation = model, tol, patience, validation
        self.curve: list[float] = []
        self.scores: list[float] = []
        self._best: dict[str, Tensor] = {}

    def stops(self, objective: float) -> bool:
        """Note an iteration. Returns whether to stop."""
        self.curve.append(float(objective))
        if self.validation is None:
            before = min(self.curve[: -self.patience], default=math.inf)
            return before - min(self.curve[-self.patience :]) < self.tol
        X, labels = self.validation
        self.model.eval()
        score = float((self.model.logits(X).argmax(1).numpy() == labels).mean())
        self.model.train()
        if score > max(self.scores, default=-1.0):
            self._best = self.model.tensors()
        self.scores.append(score)
        return len(self.scores) - 1 - int(np.argmax(self.scores)) >= self.patience

    def finish(self) -> None:
        """Bring back the best numbers, and leave training mode."""
        if self._best:
            self.model.take(self._best)
        self.model.eval()


def by_lbfgs(
    model: Model, X: Any, labels: Array, weight: Array, *, alpha: float, steps: int, tol: float, watch: Watch
) -> bool:
    """Minimise over all rows at once, until an iteration improves the objective by less than `tol`.

    Returns:
        Whether it has converged, or was stopped.
    """
    inputs, target, weights = model.inputs(X), torch.from_numpy(labels), torch.from_numpy(weight)
    learnt = [p for p in model.parameters() if p.requires_grad]
    objective = _one_layer if model.is_one_layer() else _any_model
    model.train()

    def after(intermediate_result: OptimizeResult) -> None:
        if watch.validation is not None:
            vector_to_parameters(torch.from_numpy(intermediate_result.x), learnt)
        if watch.stops(intermediate_result.fun):
            raise StopIteration

    found = minimize(
        objective(model, inputs, target, weights, alpha),
        parameters_to_vector(learnt).detach().numpy(),
        jac=True,
        method="L-BFGS-B",
        callback=after,
        options={"maxiter": steps, "maxfun": 100 * steps, "ftol": tol, "gtol": min(tol, 1e-5)},
    )
    vector_to_parameters(torch.tensor(found.x), learnt)
    if not math.isfinite(found.fun):
        raise ValueError(f"the loss became {found.fun}: give inputs of smaller values, or another loss")
    return bool(found.status != 1)


def _any_model(model: Model, inputs: Tensor, target: Tensor, weight: Tensor, alpha: float) -> Objective:
    learnt = [p for p in model.parameters() if p.requires_grad]
    mean, total = float(weight.mean()), float(weight.sum())

    def value(x: Array) -> tuple[float, Array]:
        vector_to_parameters(torch.from_numpy(x), learnt)
        objective = model.objective(inputs, target, weight, mean, total, alpha)
        return objective.item(), torch.cat([g.flatten() for g in torch.autograd.grad(objective, learnt)]).numpy()

    return value


def _one_layer(model: Model, inputs: Tensor, target: Tensor, weight: Tensor, alpha: float) -> Objective:
    """The same for logits X W^T + b, in less time: two products, and logits that lie as (K, N).

    Softmax over classes that are not side by side in memory is three times as fast, if there are few.
    """
    classes, width = model.head.weight.shape
    loss, rows, target = model.loss, inputs.T, target.unsqueeze(0)
    share, penalty = (weight / weight.sum()).unsqueeze(0), alpha / float(weight.sum())
    shares = share.squeeze(0).numpy()
    zero = torch.zeros(classes, dtype=torch.float64)

    def value(x: Array) -> tuple[float, Array]:
        numbers = torch.from_numpy(x)
        matrix, bias = numbers[: classes * width].view(classes, width), numbers[classes * width :]
        logits = torch.addmm((bias if len(bias) else zero).unsqueeze(1), matrix, rows).unsqueeze(0)  # (1, K, N)
        values = loss(logits.requires_grad_(), target)  # (1, N)
        gradient = torch.autograd.grad(values, logits, share)[0].squeeze(0)
        of_numbers = torch.empty_like(numbers)
        torch.addmm(matrix, gradient, inputs, beta=penalty, out=of_numbers[: classes * width].view(classes, width))
        if len(bias):
            torch.sum(gradient, 1, out=of_numbers[classes * width :])
        weights = x[: classes * width]
        mean = float(values.detach().numpy()[0] @ shares)
        return mean + 0.5 * penalty * float(weights @ weights), of_numbers.numpy()

    return value


def batch_of(rows: int, size: int | None) -> int:
    """Rows per step of AdamW: `size`, or as many as a linear probe takes."""
    return min(rows, size or max(PROBE_BATCH[0], min(PROBE_BATCH[1], rows // 80)))


def make_adamw(model: Model, rate: float | None) -> torch.optim.AdamW:
    """The optimiser. The penalty is a part of the objective, so AdamW does not let the weights decay once more."""
    if rate is None:
        rate = model.loss.probe_rate * (1.0 if isinstance(model.backbone, nn.Identity) else HIDDEN_RATE)
    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)


def by_adamw(
    model: Model,
    X: Any,
    labels: Array,
    weight: Array,
    *,
    alpha: float,
    epochs: int | None,
    batch: int,
    rate: float | None,
    watch: Watch,
) -> None:
    """Minimise over batches, with a learning rate that falls to 0 along a cosine."""
    steps = math.ceil(len(labels) / batch)
    if epochs is None:
        epochs = max(PROBE_EPOCHS[0], round(PROBE_STEPS / steps))
    watch.patience = max(watch.patience, epochs // 10)  # an epoch of a small table is a step or two
    optimiser = make_adamw(model, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * steps)
    for _ in range(epochs):
        objective = one_epoch(
            model, optimiser, X, labels, weight, alpha=alpha, batch=batch, total=weight.sum(), after=schedule.step
        )
        if watch.stops(objective):
            break


def one_epoch(
    model: Model,
    optimiser: torch.optim.Optimizer,
    X: Any,
    labels: Array,
    weight: Array,
    *,
    alpha: float,
    batch: int,
    total: float,
    after: Callable[[], None] = lambda: None,
) -> float:
    """Go once over the rows in random order. Returns the mean objective.

    Args:
        total: weight of all rows seen so far, which the penalty is divided by.
        after: called after each step.
    """
    model.train()
    parts = math.ceil(len(labels) / batch)
    mean, sum_of_objectives = float(weight.mean()), 0.0
    for index in np.array_split(torch.randperm(len(labels)).numpy(), parts):  # equal parts: none has a single row
        target, weights = torch.from_numpy(labels[index]), torch.from_numpy(weight[index])
        objective = model.objective(model.inputs(X[index]), target, weights, mean, float(total), alpha)
        optimiser.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        after()
        sum_of_objectives += objective.item() * len(index)
    if not math.isfinite(sum_of_objectives):
        raise ValueError("the loss is no longer finite: give a smaller learning_rate")
    return sum_of_objectives / len(labels)
