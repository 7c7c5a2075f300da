"""The nearest class mean against a loop that leaves each sample out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lastlayer.geometry import nearest_mean_accuracy, nearest_mean_right


def left_out(features: Tensor, target: Tensor) -> Tensor:
    right = []
    for i in range(len(target)):
        rest = torch.arange(len(target)) != i
        distances = {}
        for label in target.unique().tolist():
            members = features[rest & (target == label)].double()
            if len(members):
                distances[label] = (features[i].double() - members.mean(0)).norm().item()
        own = distances.pop(int(target[i]), float("inf"))
        right.append(own < min(distances.values(), default=float("inf")))
    return torch.tensor(right)


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 25), st.integers(1, 4))
def test_equals_leaving_each_sample_out(seed: int, classes: int, samples: int, dim: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples,), generator=generator)
    features = torch.randn(samples, dim, generator=generator, dtype=torch.float64) + target[:, None]
    expected = left_out(features, target)
    assert torch.equal(nearest_mean_right(features, target), expected)
    assert nearest_mean_accuracy(features, target).item() == pytest.approx(expected.double().mean().item())


def test_an_offset_and_a_scale_change_nothing() -> None:
    target = torch.arange(40) % 4
    features = torch.randn(40, 6, dtype=torch.float64) + target[:, None]
    right = nearest_mean_right(features, target)
    assert 0 < right.sum() < 40
    assert torch.equal(nearest_mean_right(1e5 + features, target), right)
    assert torch.equal(nearest_mean_right(features * 1e-3, target), right)


def test_one_sample_of_a_class_counts_as_wrong() -> None:
    right = nearest_mean_right(torch.tensor([[0.0], [0.1], [9.0]]), torch.tensor([0, 0, 1]))
    assert right.tolist() == [True, True, False]


def test_one_class() -> None:
    assert nearest_mean_right(torch.randn(3, 2), torch.zeros(3, dtype=torch.int64)).all()


def test_bad_features_are_named() -> None:
    with pytest.raises(ValueError, match="NaN or infinite"):
        nearest_mean_right(torch.tensor([[0.0], [float("nan")]]), torch.tensor([0, 1]))
