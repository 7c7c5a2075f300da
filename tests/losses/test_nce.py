"""Noise-contrastive estimation: drawn labels, and their mean."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lastlayer import losses

from . import reference
from .helpers import logits_of_least_loss

K = 3
Z = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.3, -0.2]], dtype=torch.float64)
Y = torch.tensor([2, 0])
Q = [0.5, 0.3, 0.2]


@pytest.mark.parametrize("include", [True, False])
def test_samples_of_each_row(include):
    drawn = torch.tensor([[0, 0, 2, 1], [1, 2, 2, 0]])
    found = losses.nce(
        Z, Y, noise=torch.tensor(Q, dtype=torch.float64), samples=drawn, include_target=include, reduction="none"
    )
    expected = [
        reference.nce(4, Q, include, drawn=row.tolist())(z, k) for z, row, k in zip(Z, drawn, Y.tolist(), strict=True)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_samples_shared_by_the_batch(dtype):
    shared = torch.tensor([1, 1, 0], dtype=dtype)
    found = losses.nce(Z, Y, samples=shared)
    assert found == losses.nce(Z, Y, samples=shared.expand(2, 3))
    expected = [reference.nce(3, None, drawn=[1, 1, 0])(z, k) for z, k in zip(Z, Y.tolist(), strict=True)]
    np.testing.assert_allclose(found.item(), np.mean(expected), rtol=1e-12)


def test_samples_with_probability_targets_and_pairs():
    drawn = torch.tensor([0, 2])
    L = np.array([[reference.nce(2, None, drawn=[0, 2])(z, k) for k in range(K)] for z in Z])
    t = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    np.testing.assert_allclose(losses.nce(Z, t, samples=drawn, reduction="none"), (t.numpy() * L).sum(1), rtol=1e-12)
    pair = (torch.tensor([2, 0]), torch.tensor([1, 1]), 0.3)
    mixed = reference.mixed([2, 0], [1, 1], 0.3, K)
    np.testing.assert_allclose(losses.nce(Z, pair, samples=drawn, reduction="none"), (mixed * L).sum(1), rtol=1e-12)


def test_the_exact_loss_is_the_mean_over_all_draws():
    """Every one of the K^t draws, with its probability."""
    t = 3
    q = torch.tensor(Q, dtype=torch.float64)
    for include in (True, False):
        options = {"noise": q, "include_target": include}
        mean = sum(
            np.prod([Q[j] for j in draw]) * losses.nce(Z, Y, samples=torch.tensor(draw), **options)
            for draw in itertools.product(range(K), repeat=t)
        )
        torch.testing.assert_close(losses.nce(Z, Y, num_noise=t, **options), mean, rtol=1e-12, atol=0.0)


def test_dense_positions_share_the_draws():
    z = Z.reshape(1, 2, K).permute(0, 2, 1)
    drawn = torch.tensor([0, 2])
    torch.testing.assert_close(losses.nce(z, Y.reshape(1, 2), samples=drawn), losses.nce(Z, Y, samples=drawn))
    torch.testing.assert_close(losses.nce(z, Y.reshape(1, 2), samples=drawn[None]), losses.nce(Z, Y, samples=drawn))
    torch.testing.assert_close(losses.nce(Z[0], Y[0], samples=drawn), losses.nce(Z[:1], Y[:1], samples=drawn))


def test_mistakes():
    with pytest.raises(TypeError, match="samples must be a tensor of class indices"):
        losses.nce(Z, Y, samples=[0, 1])
    with pytest.raises(TypeError, match="samples must be"):
        losses.nce(Z, Y, samples=torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"samples must have shape \(t,\) or \(2, t\), got \(3, 4\)"):
        losses.nce(Z, Y, samples=torch.zeros(3, 4, dtype=torch.long))
    for label in (-1, K):
        with pytest.raises(ValueError, match=f"samples has the label {label}"):
            losses.nce(Z, Y, samples=torch.tensor([0, label]))
    with pytest.raises(TypeError, match="num_noise must be an integer, got float"):
        losses.nce(Z, Y, num_noise=2.5)
    with pytest.raises(ValueError, match=r"noise must have shape \(3,\)"):
        losses.nce(Z, Y, noise=torch.ones(4))
    with pytest.raises(ValueError, match=r"noise must be probabilities.*divide counts by their sum.*sum 60$"):
        losses.nce(Z, Y, noise=torch.tensor([10.0, 20.0, 30.0]))
    with pytest.raises(ValueError, match=r"noise must be probabilities: none negative.*smallest -0.2"):
        losses.NceLoss(noise=torch.tensor([0.6, 0.6, -0.2])).probabilities(Z)


def test_probabilities_count_the_drawn_labels():
    drawn = torch.tensor([0, 1, 1, 2])
    found = losses.NceLoss(samples=drawn).probabilities(Z)
    torch.testing.assert_close(found, torch.sigmoid(Z - np.log(4 / 3)))


@pytest.mark.parametrize("include_target", [True, False])
@pytest.mark.parametrize("noise", [None, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)])
def test_a_logit_by_itself_states_the_probability_of_its_class(include_target, noise):
    """Whatever the noise is. The probabilities g are those of data against noise, and no posterior."""
    p = torch.tensor([0.6, 0.25, 0.1, 0.05], dtype=torch.float64)
    loss = losses.NceLoss(num_noise=7, noise=noise, include_target=include_target)
    z = logits_of_least_loss(loss, p)
    torch.testing.assert_close(loss.single(z)[0], p, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss.posterior(z)[0], p, rtol=1e-5, atol=0)
    expected = 7 * (0.25 if noise is None else noise)
    if include_target:
        torch.testing.assert_close(loss.probabilities(z)[0], p / (p + expected), rtol=1e-5, atol=0)
