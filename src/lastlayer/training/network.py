"""Backbone and head as one module: raw inputs to logits, with the features in between at hand."""

from __future__ import annotations

from torch import Tensor, nn

from lastlayer import heads
from lastlayer.data import Normalize

LOSS = "loss."  # before the names of the loss's own tensors, where they are written beside the network's


class Network(nn.Module):
    """A classifier from inputs as stored (8-bit images, features) to logits.

    Attributes:
        normalize: inputs as stored to what the backbone takes.
        backbone: normalised inputs to features.
        head: features to logits.
    """

    def __init__(self, normalize: Normalize, backbone: nn.Module, head: heads.Head) -> None:
        super().__init__()
        self.normalize = normalize
        self.backbone = backbone
        self.head = head

    def features(self, inputs: Tensor) -> Tensor:
        """What the head's weight multiplies, (N, d): where geometry is measured."""
        return self.head.features(self.backbone(self.normalize(inputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (N, K) of inputs as stored."""
        logits: Tensor = self.head(self.backbone(self.normalize(inputs)))
        return logits
