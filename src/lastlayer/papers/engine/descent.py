"""L-BFGS on free tensors, for theorems that are checked by minimising what they speak of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def descend(objective: Callable[[], Tensor], free: Sequence[Tensor], *, steps: int, tolerance: float) -> None:
    """Move the free tensors in place to where L-BFGS ends: after the steps, or at the tolerance of gradient entries.

    `objective` is the scalar to minimise, of the free tensors as they are when it is called.
    """
    optimiser = torch.optim.LBFGS(
        free,
        max_iter=steps,
        history_size=30,
        line_search_fn="strong_wolfe",
        tolerance_grad=tolerance,
        tolerance_change=1e-16,
    )

    def closure() -> float:
        value = objective()
        for one, gradient in zip(free, torch.autograd.grad(value, free), strict=True):
            one.grad = gradient
        return value.item()

    optimiser.step(closure)  # type: ignore[no-untyped-call]
