"""The classic WRN-d-k for 32x32 images: pre-activation blocks, three stages of 16k, 32k and 64k maps."""

import torch.nn.functional as F
from torch import Tensor, nn

from .common import he_normal, image_shape, register


class _Block(nn.Module):
    def __init__(self, channels: int, maps: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, maps, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(channels, maps, 1, stride=stride, bias=False) if channels != maps or stride != 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        hidden = self.conv1(active)
        residual: Tensor = self.conv2(self.dropout(F.relu(self.bn2(hidden))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        return shortcut + residual


class WideResNet(nn.Module):
    """WRN-d-k: (d-4)/6 blocks a stage, `factor` k times as wide as the CIFAR ResNet."""

    def __init__(self, channels: int, depth: int, factor: int, dropout: float) -> None:
        super().__init__()
        if (depth - 4) % 6 or depth < 10:
            raise ValueError(f"the depth of a WRN is 6n + 4 (10, 16, 22, 28, 40, ...), not {depth}")
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
        channels = 16
        for stage in range(3):
            maps = 16 * factor * 2**stage
            for i in range((depth - 4) // 6):
                layers.append(_Block(channels, maps, 2 if i == 0 and stage > 0 else 1, dropout))
                channels = maps
        self.blocks = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(channels)
        self.num_features = channels
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = F.relu(self.bn(self.blocks(x))).mean((2, 3))  # (N, 64 k)
        return features


@register(
    "wrn",
    summary="WRN-d-k, by default WRN-28-10",
    paper="Zagoruyko, Komodakis 2016",
    in_shape=(3, 32, 32),
    num_classes=10,
    parameters=36479194,
)
def wrn(in_shape: tuple[int, ...], *, depth: int = 28, factor: int = 10, dropout: float = 0.0) -> WideResNet:
    """The wide residual network WRN-`depth`-`factor`.

    Args:
        in_shape: (channels, height, width).
        depth: 6n + 4.
        factor: k, how much wider than 16, 32, 64 maps.
        dropout: drop-out inside the blocks.

    Example:
        >>> wrn((3, 32, 32), depth=10, factor=1).num_features
        64
    """
    return WideResNet(image_shape(in_shape, "wrn")[0], depth, factor, dropout)
