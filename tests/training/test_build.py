"""Optimisers against their textbook updates in float64; learning rates step by step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lastlayer.data import Normalize
from lastlayer.heads import LinearHead
from lastlayer.models import create
from lastlayer.training.build import Network, make_optimiser, rate_factor
from lastlayer.training.trial import Optimiser, Schedule

LR, DECAY, MOMENTUM = 0.1, 0.3, 0.8

Update = Callable[[Tensor, Tensor, dict[str, Tensor], int, float], Tensor]


def sgd(p: Tensor, g: Tensor, state: dict[str, Tensor], step: int, decay: float) -> Tensor:
    g = g + decay * p
    state["m"] = g if step == 1 else MOMENTUM * state["m"] + g
    return p - LR * state["m"]


def nesterov(p: Tensor, g: Tensor, state: dict[str, Tensor], step: int, decay: float) -> Tensor:
    moved = sgd(p, g, state, step, decay)
    return moved + LR * (state["m"] - (g + decay * p) - MOMENTUM * state["m"])


def adam(p: Tensor, g: Tensor, state: dict[str, Tensor], step: int, decay: float) -> Tensor:
    return _adam(p, g + decay * p, state, step)


def adamw(p: Tensor, g: Tensor, state: dict[str, Tensor], step: int, decay: float) -> Tensor:
    return _adam((1 - LR * decay) * p, g, state, step)


def _adam(p: Tensor, g: Tensor, state: dict[str, Tensor], step: int) -> Tensor:
    state["m"] = 0.9 * state.get("m", torch.zeros_like(p)) + 0.1 * g
    state["v"] = 0.999 * state.get("v", torch.zeros_like(p)) + 0.001 * g**2
    return p - LR * (state["m"] / (1 - 0.9**step)) / ((state["v"] / (1 - 0.999**step)).sqrt() + 1e-8)


@pytest.mark.parametrize("decays", ["all", "head"])
@pytest.mark.parametrize(
    ("name", "update"), [("sgd", sgd), ("sgd", nesterov), ("adam", adam), ("adamw", adamw)], ids=lambda x: str(x)[:14]
)
def test_updates(name: str, update: Update, decays: str) -> None:
    torch.manual_seed(0)
    network = Network(Normalize(), create("mlp", (3,), width=4, depth=1), LinearHead(4, 2))
    choice = Optimiser(name, LR, DECAY, MOMENTUM, nesterov=update is nesterov, decay=decays)
    optimiser = make_optimiser(choice, network, torch.tensor(LR))
    expected = {key: p.detach().double() for key, p in network.named_parameters()}
    states: dict[str, dict[str, Tensor]] = {key: {} for key in expected}
    for step in range(1, 5):
        for key, p in network.named_parameters():
            p.grad = torch.randn_like(p)
            decay = DECAY if decays == "all" or key.startswith("head.") else 0.0
            expected[key] = update(expected[key], p.grad.double(), states[key], step, decay)
        optimiser.step()
    for key, p in network.named_parameters():
        torch.testing.assert_close(p.detach().double(), expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_linear_falls_to_nothing_in_even_steps(warmup: float) -> None:
    schedule = Schedule("linear", epochs=10, warmup=warmup)
    rates = [rate_factor(schedule, step, 100) for step in range(100)]
    first = int(10 * warmup)
    assert rates[first] == 1.0
    assert rates[:first] == sorted(rates[:first])
    falls = [a - b for a, b in zip(rates[first:], [*rates[first + 1 :], 0.0], strict=True)]
    assert falls == pytest.approx([1 / (100 - first)] * (100 - first))
