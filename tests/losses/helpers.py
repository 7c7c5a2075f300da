"""What several tests of losses share: random logits, the search for a small loss without separation, a peer."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import settings
from hypothesis import strategies as st

from lastlayer.heads import NormalizedHead

PEER_LABELS = torch.tensor([0, 2, 1, 1, 4, 3])
LOG2 = math.log(2)


def separated(z, y):
    """Whether every true logit is larger than every false one of any sample."""
    true = [row[k] for row, k in zip(z.tolist(), y.tolist(), strict=True)]
    false = [v for row, k in zip(z.tolist(), y.tolist(), strict=True) for j, v in enumerate(row) if j != k]
    return min(true) > max(false)


def counterexample(a):
    """z(x1) = (2a, a) with label 0, z(x2) = (-2a, -a) with label 1."""
    return torch.tensor([[2 * a, a], [-2 * a, -a]], dtype=torch.float64), torch.tensor([0, 1])


def least_without_separation(loss, N=2, K=2, starts=12, steps=300, seed=0):
    """Search for the least loss of logits that are not separated: one true logit is held at or below a false one.

    All starts are searched at once. Adam treats each number by itself, so they do not influence each other.
    """
    y = torch.arange(N) % K
    generator = torch.Generator().manual_seed(seed)
    pairs = [(i, n, j) for i, n, j in itertools.product(range(N), range(N), range(K)) if j != y[n]]
    i, n, j = torch.tensor([pairs[start % len(pairs)] for start in range(starts)]).T
    each = torch.arange(starts)
    mask = torch.zeros(starts, N, K, dtype=torch.bool)
    mask[each, i, y[i]] = True
    free = 3 * torch.stack([torch.randn(N, K, dtype=torch.float64, generator=generator) for _ in range(starts)])
    free.requires_grad_()
    values = torch.func.vmap(loss, (0, None))
    optimizer = torch.optim.Adam([free], lr=0.2)

    def held():
        return torch.where(mask, torch.minimum(free, free[each, n, j][:, None, None]), free)

    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / steps) + 1e-3
        optimizer.zero_grad()
        values(held(), y).sum().backward()
        optimizer.step()
    found = held().detach()
    assert not any(separated(z, y) for z in found)
    return min(loss(z, y).item() for z in found)


seeds = st.integers(0, 2**32 - 1)
sizes = st.floats(-6, 6).map(lambda x: 10**x)
quick = settings(max_examples=30, deadline=None)


def normal(seed, *shape, scale=3.0):
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def peer_problem(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 7, dtype=torch.float64, generator=generator)
    W = torch.randn(5, 7, dtype=torch.float64, generator=generator)
    # The last sample points away from its class, so that ArcFace's margin would make the angle larger than pi.
    x[-1] = -W[3] + 0.01 * x[-1]
    return x, W


def compare_with_peer(peer, ours, scale=1.0):
    """Value, and gradients to features and classifier rows."""
    x, W = peer_problem()
    with torch.no_grad():
        peer.W.copy_(W.T)
    peer = peer.double()
    x_peer, x_ours = (x.clone().requires_grad_() for _ in range(2))
    head = NormalizedHead(7, 5, scale=scale, bias=False).double()
    with torch.no_grad():
        head.weight.copy_(W)
    expected, found = peer(x_peer, PEER_LABELS), ours(head(x_ours), PEER_LABELS)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    expected.backward()
    found.backward()
    torch.testing.assert_close(x_ours.grad, x_peer.grad, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(head.weight.grad, peer.W.grad.T, rtol=1e-5, atol=1e-7)


def logits_of_least_loss(loss, probabilities):
    """The logits at which the mean loss is smallest if the classes have these probabilities, (1, K), by L-BFGS."""
    z = torch.zeros(1, len(probabilities), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [z], max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-13, tolerance_change=0
    )

    def closure():
        optimizer.zero_grad()
        value = loss(z, probabilities[None])
        value.backward()
        return value

    optimizer.step(closure)
    return z.detach()
