"""Binary cross-entropy by tiles of classes: no row couples its classes, so a tile is done with when it is left."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lastlayer.linear_loss._classes import Tiles, times_share
from lastlayer.linear_loss._function import Gradients, Layer
from lastlayer.linear_loss._products import wide
from lastlayer.losses.selection import softplus


class BinaryCrossEntropy:
    """sum_j [a_j t_j softplus(-z_j) + (1 - t_j) softplus(z_j)] of each sample over the classes held here, (N,)."""

    def __init__(self, tiles: Tiles, pos_weight: Tensor | None) -> None:
        self.tiles, self.pos_weight = tiles, pos_weight

    def forward(self, layer: Layer) -> tuple[Tensor, None]:
        total = torch.zeros(layer.features.shape[0], dtype=wide(layer.weight.dtype), device=layer.weight.device)
        for low, high in self.tiles:
            z, _ = self.tiles.scores(layer, None, low, high)
            total += self._combine(low, high, softplus(z), lambda at: softplus(-at), z).sum(1)
        return total, None

    def backward(self, layer: Layer, kept: None, upstream: Tensor) -> Gradients:
        gradients = Gradients.by_classes(layer)
        for low, high in self.tiles:
            z, _ = self.tiles.scores(layer, None, low, high)
            slope = self._combine(low, high, torch.sigmoid(z), lambda at: -torch.sigmoid(-at), z)
            gradients.put_classes(layer, self.tiles.own(low, high), slope.mul_(upstream.unsqueeze(1)))
        return gradients

    def _combine(
        self, low: int, high: int, negative: Tensor, positive: Callable[[Tensor], Tensor], z: Tensor
    ) -> Tensor:
        """a_j t_j positive(z_j) + (1 - t_j) negative_j over a tile, (N, high - low); overwrites the negative part."""
        batch, smoothing, K = self.tiles.batch, self.tiles.smoothing, self.tiles.K
        factor = None if self.pos_weight is None else self.pos_weight[low:high].to(z.dtype)
        if batch.probabilities is not None:
            t = (1 - smoothing) * batch.probabilities_of(low, high, z.dtype) + smoothing / K
            return t * (positive(z) if factor is None else factor * positive(z)) + (1 - t) * negative
        mass = batch.mass(z.dtype).unsqueeze(1)
        own = [
            (index, (1 - smoothing) * share, negative.gather(1, index), positive(z.gather(1, index)))
            for index, share in batch.entries(low, high, K, z.dtype)
        ]
        terms = negative.mul_((1 - smoothing / K) * mass)
        if smoothing:
            terms += smoothing / K * mass * (positive(z) if factor is None else factor * positive(z))
        # One after the other: the false term goes out exactly before the true one, which may be far smaller, comes in.
        for index, share, false, _ in own:
            terms.scatter_add_(1, index, -times_share(share, false))
        for index, share, _, true in own:
            terms.scatter_add_(1, index, times_share(share, true if factor is None else true * factor[index]))
        return terms
