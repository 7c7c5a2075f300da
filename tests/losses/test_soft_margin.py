"""Soft margin is CosFace on a normalized head, against pytorch-metric-learning."""

from __future__ import annotations

import pytest

from lastlayer import losses

from .helpers import (
    compare_with_peer,
)


@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.35), (8.0, 0.1), (1.0, 0.0)])
def test_soft_margin_on_a_normalized_head_is_cosface(scale, margin):
    peers = pytest.importorskip("pytorch_metric_learning.losses")
    peer = peers.CosFaceLoss(num_classes=5, embedding_size=7, margin=margin, scale=scale)
    compare_with_peer(peer, lambda logits, y: losses.soft_margin(logits, y, margin=scale * margin), scale)
