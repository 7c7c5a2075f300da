"""The quadratic mean of norms, against numpy."""

import numpy as np
import pytest
import torch

from lastlayer.geometry import quadratic_mean_norm
from lastlayer.heads import BatchNormHead


def test_equals_numpy() -> None:
    rows = torch.randn(50, 7)
    expected = np.sqrt((np.linalg.norm(rows.double().numpy(), axis=1) ** 2).mean())
    assert quadratic_mean_norm(rows).item() == pytest.approx(expected, rel=1e-12)
    half = rows.half()
    assert quadratic_mean_norm(half).item() == pytest.approx(quadratic_mean_norm(half.double()).item(), rel=1e-12)


def test_behind_batch_norm_it_is_the_norm_of_gamma() -> None:
    head = BatchNormHead(5, 3, gamma=0.7, eps=1e-300).double()
    features = head.features(torch.randn(40, 5, dtype=torch.float64))
    gamma = head.norm_weight()
    assert quadratic_mean_norm(features).item() == pytest.approx(gamma.norm().item(), rel=1e-12)


def test_wrong_rows_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating dtype, got torch\.int64"):
        quadratic_mean_norm(torch.ones(2, 2, dtype=torch.int64))
    for shape in ((3,), (0, 2)):
        with pytest.raises(ValueError, match=r"rows must have shape \(N, d\)"):
            quadratic_mean_norm(torch.ones(shape))
