"""L-BFGS on free tensors."""

import pytest
import torch

from lastlayer.papers.engine.descent import descend


def test_descent_ends_at_the_minimum_of_a_narrow_valley():
    free = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (-1.2, 1.0)]

    def rosenbrock():
        x, y = free
        return (1 - x) ** 2 + 100 * (y - x**2) ** 2

    descend(rosenbrock, free, steps=200, tolerance=1e-12)
    assert [one.item() for one in free] == pytest.approx([1.0, 1.0], abs=1e-9)
    few = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    descend(lambda: few**4, [few], steps=1, tolerance=1e-12)
    assert 0 < few.item() < 5
