"""What is refused, and how the message names it. Every function checks its inputs in the same place."""

import pytest
import torch

from lastlayer.geometry import neural_collapse

from .reference import clusters


def test_errors_say_what_to_do():
    features, target = clusters(10, 2, 3)
    with pytest.raises(ValueError, match="empty"):
        neural_collapse(features[:0], target[:0])
    with pytest.raises(ValueError, match="negative label -1"):
        neural_collapse(features, target - 1)
    with pytest.raises(ValueError, match="label 1 but weight has only 1 rows"):
        neural_collapse(features, target, torch.randn(1, 3))
    with pytest.raises(ValueError, match="weight has 4 columns"):
        neural_collapse(features, target, torch.randn(2, 4))
    with pytest.raises(ValueError, match="bias must have one entry"):
        neural_collapse(features, target, torch.randn(2, 3), torch.randn(3))
    with pytest.raises(TypeError, match="bias must be a tensor, got list"):
        neural_collapse(features, target, torch.randn(2, 3), [0.0, 0.0])
    with pytest.raises(ValueError, match="shape"):
        neural_collapse(features[0], target)
    with pytest.raises(ValueError, match=r"target must have shape \(10,\), one label per row"):
        neural_collapse(features, target[:5])
    with pytest.raises(TypeError, match="integer dtype"):
        neural_collapse(features, target.float())
    with pytest.raises(TypeError, match="features must be a tensor, got ndarray"):
        neural_collapse(features.numpy(), target)
    with pytest.raises(TypeError, match="floating point"):
        neural_collapse(target[:, None], target)
    with pytest.raises(ValueError, match="global_mean"):
        neural_collapse(features, target, global_mean="median")
    with pytest.raises(ValueError, match="weight holds NaN"):
        neural_collapse(features, target, torch.full((2, 3), torch.nan))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_features_are_named(value):
    features, target = clusters(10, 2, 3)
    features[4, 1] = value
    with pytest.raises(ValueError, match=r"in 1 of 10 rows, first in row 4"):
        neural_collapse(features, target)


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_features_whose_squares_leave_float64_are_refused(scale):
    features, target = clusters(10, 2, 3)
    with pytest.raises(ValueError, match="squares leave the range of float64"):
        neural_collapse(features.double() * scale, target)
    assert neural_collapse(torch.zeros(10, 3, dtype=torch.float64), target).nc1.isnan()


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64]
)
def test_labels_of_every_integer_dtype(dtype):
    features, target = clusters(30, 3, 4)
    assert neural_collapse(features, target.to(dtype)).nc1 == neural_collapse(features, target).nc1
