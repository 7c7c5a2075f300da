"""The toy dynamics of the SLN paper: what each loss moves, and the first-order feature step."""

import math

import pytest
import torch

from lastlayer import losses
from lastlayer.theory import dynamics
from lastlayer.theory.dynamics import loss_of_features


def toy(seed: int, N: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    rows = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    return points, torch.arange(N) % 2, rows / rows.norm(dim=1, keepdim=True)


def test_cross_entropy_moves_across_the_boundary_alone() -> None:
    points, y, W = toy(0)
    path = dynamics.simulate("ce", points, y, W, steps=400)
    across = (W[0] - W[1]) / (W[0] - W[1]).norm()
    along = torch.stack([-across[1], across[0]])
    assert ((path.points - points) @ along).abs().max() < 1e-9
    assert path.loss[-1] < path.loss[0]


def test_logit_norm_goes_to_opposite_logits_and_keeps_its_distance_only_roughly() -> None:
    points, y, W = toy(1)
    path = dynamics.simulate(losses.LogitNormLoss(tau=1.0), points, y, W, steps=1500)
    balance = path.logits.sum(2).abs() / path.logits.norm(dim=2)
    assert balance[-1].median() < 0.05
    radius = path.points.norm(dim=2)  # zero logits at the origin
    assert (radius[1:] >= radius[:-1] - 1e-12).all()  # it never shrinks: paths are circles only in continuous time


def test_soft_logit_norm_compresses_in_both_directions_for_large_tau() -> None:
    points, y, W = toy(2)
    ratios = {
        name: dynamics.simulate(loss, points, y, W, steps=1500).ratio[-1].item()
        for name, loss in {
            "ce": losses.CrossEntropyLoss(temperature=1.0),
            "ln": losses.LogitNormLoss(tau=1.0),
            "sln": losses.SoftLogitNormLoss(tau=1.0),
        }.items()
    }
    assert ratios["sln"] < ratios["ce"]
    assert ratios["sln"] < ratios["ln"]


def test_one_step_by_hand_with_a_trained_classifier() -> None:
    points, y, W = toy(3, N=6)
    b = torch.tensor([0.2, -0.1], dtype=torch.float64)
    path = dynamics.simulate("ce", points, y, W, b, lr=0.5, train_weight=True, steps=1, snapshots=2)
    residual = torch.softmax(points @ W.T + b, 1)
    residual[torch.arange(6), y] -= 1
    torch.testing.assert_close(path.points[1], points - 0.5 * residual @ W, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(path.weight[1], W - 0.5 / 6 * residual.T @ points, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(path.bias[1], b - 0.5 / 6 * residual.sum(0), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(path.points[0], points)


def test_reductions_and_callables_agree() -> None:
    points, y, W = toy(4, N=8)
    expected = dynamics.simulate("bce", points, y, W, steps=20).points[-1]
    others = [
        losses.BinaryCrossEntropyLoss(reduction="sum"),
        losses.BinaryCrossEntropyLoss(reduction="none"),
        lambda z, t: losses.binary_cross_entropy(z, t, reduction="sum"),
    ]
    for loss in others:
        torch.testing.assert_close(dynamics.simulate(loss, points, y, W, steps=20).points[-1], expected)


def test_ratio_against_a_loop() -> None:
    points, y, W = toy(5, N=9)
    path = dynamics.simulate("ce", points, y, W, steps=4, snapshots=3)
    assert path.steps.tolist() == [0, 2, 4]
    for x, ratio in zip(path.points, path.ratio, strict=True):
        means = [x[y == k].mean(0) for k in (0, 1)]
        intra = sum((x[i] - means[int(y[i])]).norm() for i in range(9)) / 9
        assert ratio.item() == pytest.approx((intra / (means[0] - means[1]).norm()).item())


def test_three_dimensions_and_many_classes() -> None:
    torch.manual_seed(0)
    points, W = torch.randn(12, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    path = dynamics.simulate("batch-ce", points, torch.arange(12) % 4, W, steps=30, lr=0.05)
    assert path.logits.shape == (31, 12, 4)
    assert path.loss[-1] < path.loss[0]


def test_losses_that_take_more_than_logits() -> None:
    points, y, W = toy(7, N=10)
    path = dynamics.simulate(losses.create("large-margin", margin=2), points, y, W, steps=50, train_weight=True)
    true, size = (points * W[y]).sum(1), points.norm(dim=1) * W[y].norm(dim=1)
    turned = size * torch.where(true >= 0, 2 * (true / size) ** 2 - 1, -1 - 2 * (true / size) ** 2)  # psi for m = 2
    false = (points * W[1 - y]).sum(1)
    assert path.loss[0].item() == pytest.approx(torch.log1p((false - turned).exp()).sum().item(), rel=1e-12)
    assert path.loss[-1] < path.loss[0]

    y = torch.tensor([0] * 7 + [1] * 3)
    path = dynamics.simulate("logit-adjusted", points, y, W, steps=50)
    z = points @ W.T + torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    expected = (torch.logsumexp(z, 1) - z[torch.arange(10), y]).sum().item()
    assert path.loss[0].item() == pytest.approx(expected, rel=1e-12)
    for name, word in (("kd", "teacher"), ("fn-kd", "teacher"), ("arc-margin", "cosines")):
        with pytest.raises(ValueError, match=word):
            dynamics.simulate(name, points, y, W)
    with pytest.raises(ValueError, match="no bias"):
        dynamics.simulate("large-margin", points, y, W, torch.zeros(2, dtype=torch.float64))


def test_no_steps_and_wrong_shapes() -> None:
    points, y, W = toy(6, N=4)
    path = dynamics.simulate("ce", points, y, W, steps=0)
    assert path.points.shape == (1, 4, 2)
    with pytest.raises(ValueError, match="points"):
        dynamics.simulate("ce", points, y, W[:, :1])
    with pytest.raises(ValueError, match="target"):
        dynamics.simulate("ce", points, y[:2], W)
    with pytest.raises(ValueError, match="snapshots"):
        dynamics.simulate("ce", points, y, W, snapshots=1)
    with pytest.raises(ValueError, match="one point and two classes"):
        dynamics.simulate("ce", points[:0], y[:0], W)
    with pytest.raises(ValueError, match="one point and two classes"):
        dynamics.simulate("ce", points, 0 * y, W[:1])
    with pytest.raises(ValueError, match="lr"):
        dynamics.simulate("ce", points, y, W, lr=float("nan"))


def test_feature_step_of_a_network() -> None:
    """One small gradient step of a two-layer network moves the features by -lr J J' g to first order."""
    torch.manual_seed(0)
    x = torch.randn(4, dtype=torch.float64)
    theta = torch.randn(23, dtype=torch.float64)

    def features(p: torch.Tensor) -> torch.Tensor:
        return p[20:] * torch.tanh(p[:12].view(3, 4) @ x) + p[12:15] * p[15:18]

    g = torch.randn(3, dtype=torch.float64)
    J = torch.autograd.functional.jacobian(features, theta)
    for lr in (1e-3, 1e-4):
        moved = features(theta - lr * J.T @ g) - features(theta)
        predicted = dynamics.feature_step(J, g, lr)
        assert (moved - predicted).norm() <= 20 * lr**2 * g.square().sum()
        assert predicted @ -g >= 0
    # at most 90 degrees, and 90 is possible: a Jacobian that annihilates the gradient
    blind = dynamics.feature_step(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 1.0]), 0.1)
    assert (blind == 0).all()


def test_the_loss_of_features_under_a_given_classifier() -> None:
    torch.manual_seed(0)
    h, W, b = torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)
    y = torch.tensor([0, 1, 2, 3, 0])
    z = 2.0 * h @ W.T + b
    expected = (torch.logsumexp(z, 1) - z[torch.arange(5), y]).mean().item()
    for loss in (losses.CrossEntropyLoss(), torch.nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy):
        assert loss_of_features(loss, h, y, W, b, 2.0).item() == pytest.approx(expected, rel=1e-6)
    large = loss_of_features(losses.LargeMarginLoss(margin=2), h, y, W, None)
    assert large.item() == pytest.approx(losses.large_margin(h, W, y, margin=2).item())
    assert math.isfinite(large.item())
