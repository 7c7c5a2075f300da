"""ArcFace against pytorch-metric-learning, and at the ends of the angle."""

from __future__ import annotations

import math

import pytest
import torch

from lastlayer import losses

from . import reference
from .helpers import (
    compare_with_peer,
)


@pytest.mark.parametrize(("scale", "degrees"), [(64.0, 28.6), (8.0, 10.0), (4.0, 60.0)])
def test_arc_margin_is_arcface(scale, degrees):
    peers = pytest.importorskip("pytorch_metric_learning.losses")
    peer = peers.ArcFaceLoss(num_classes=5, embedding_size=7, margin=degrees, scale=scale)
    compare_with_peer(peer, lambda cosines, y: losses.arc_margin(cosines, y, margin=math.radians(degrees), scale=scale))


class TestArcMarginAtTheEnds:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0 + 1e-3, -1.0 - 1e-3, 1 - 1e-3, 0.0])
    @pytest.mark.parametrize("margin", [0.0, 0.5, math.pi / 2, math.pi])
    def test_finite(self, cosine, margin, dtype):
        c = torch.tensor([[cosine, 0.2, -cosine]], dtype=dtype, requires_grad=True)
        for target in (torch.tensor([0]), torch.tensor([[0.5, 0.25, 0.25]], dtype=dtype)):
            loss = losses.arc_margin(c, target, margin=margin)
            assert loss.isfinite()
            assert torch.autograd.grad(loss, c)[0].isfinite().all()

    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_past_one_counts_as_one(self, sign):
        at, past = (torch.tensor([[sign * c, 0.2]], dtype=torch.float64) for c in (1.0, 1.0 + 1e-9))
        value = losses.arc_margin(at, torch.tensor([0]))
        torch.testing.assert_close(losses.arc_margin(past, torch.tensor([0])), value, rtol=1e-14, atol=0.0)
        assert value.item() == pytest.approx(reference.arc_margin(0.5, 64.0)(at[0], 0), rel=1e-12)

    def test_second_derivative_is_finite(self):
        c = torch.tensor([[1.0, -1.0]], dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(losses.arc_margin(c, torch.tensor([0])), c, create_graph=True)
        assert torch.autograd.grad(gradient.sum(), c)[0].isfinite().all()
