"""The two passes give the same whatever the chunks and the scale, and copy no more than a chunk."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer.geometry import measure

from .reference import clusters


@pytest.mark.parametrize("dim", [6, 2600, 40_000])
def test_chunks_change_nothing(dim):
    """A wide feature fills a chunk with few rows: here 75 rows, 50 and 25, or 16 at a time with an incomplete last one.

    If gradients are needed, all rows form a single chunk.
    """
    features, target = clusters(75, 4, dim)
    weight, bias = torch.randn(4, dim), torch.randn(4)
    parts, whole = measure(features, target, weight, bias), measure(features.requires_grad_(), target, weight, bias)
    for name in whole.__dataclass_fields__:
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name).detach(), rtol=1e-6, atol=1e-7, msg=name)


class Largest(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            shares = isinstance(tensor, torch.Tensor) and any(tensor.data_ptr() == t.data_ptr() for t in self.inputs)
            if isinstance(tensor, torch.Tensor) and not shares:
                self.elements = max(self.elements, tensor.numel())
        return result


def test_no_copy_of_the_features_is_made():
    """Least of all N outer products of d x d, as in some public code."""
    features, target = clusters(20_000, 4, 50)
    with Largest() as mode:
        mode.inputs = (features,)
        measure(features, target, torch.randn(4, 50), torch.randn(4))
    assert mode.elements <= max(len(features), 2**18)  # a chunk of 1 MiB in float32


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_scale_changes_nothing_even_at_the_ends_of_float32(scale):
    features, target = clusters(60, 4, 6, within=0.1)
    whole, scaled = measure(features, target), measure(features * scale, target)
    for name in ("nc1", "intra_mean", "inter", "compactness", "intra_inter_ratio", "class_distance_variance"):
        torch.testing.assert_close(getattr(scaled, name), getattr(whole, name), rtol=1e-5, atol=1e-6, msg=name)
