"""Small convolutional networks: the six-layer one of Keren et al. 2018 and ARPL's for open-set recognition."""

import torch
from torch import Tensor, nn

from .common import conv_norm, image_shape, register


class CNN6(nn.Module):
    """Six convolutions (5x5 and 1x1 in turn), three 3x3/2 max pools, one dense layer, each with batch norm and ReLU.

    The paper states no padding. Here convolutions keep the size, and pooling halves it, rounded up.
    """

    def __init__(self, in_shape: tuple[int, int, int], widths: tuple[int, int, int], dense: int) -> None:
        super().__init__()
        channels, height, width = in_shape
        layers: list[nn.Module] = []
        for maps in widths:
            for kernel in (5, 1):
                layers += [*conv_norm(channels, maps, kernel), nn.ReLU()]
                channels = maps
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            height, width = (height + 1) // 2, (width + 1) // 2
        self.convolutions = nn.Sequential(*layers)
        self.dense = nn.Sequential(
            nn.Linear(channels * height * width, dense, bias=False), nn.BatchNorm1d(dense), nn.ReLU()
        )
        self.num_features = dense

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolutions(x)  # (N, 512, H/8, W/8)
        features: Tensor = self.dense(x.flatten(1))  # (N, d)
        return features


class Classifier32(nn.Module):
    """Nine 3x3 convolutions with leaky ReLU in three stages that end with stride 2, then a global average pool.

    Grey images become three equal channels, as in ARPL's data. With one channel, drop-out would erase whole images.
    """

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.grey = channels == 1
        channels = 3 if self.grey else channels
        layers: list[nn.Module] = []
        for maps in ((64, 64, 128), (128, 128, 128), (128, 128, 128)):
            layers.append(nn.Dropout2d(dropout))
            for out, stride in zip(maps, (1, 1, 2), strict=True):
                layers += [*conv_norm(channels, out, 3, stride), nn.LeakyReLU(0.2)]
                channels = out
        self.layers = nn.Sequential(*layers)
        self.num_features = channels
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.normal_(0.0, 0.05)
                elif isinstance(module, nn.BatchNorm2d):
                    module.weight.normal_(1.0, 0.02)

    def forward(self, x: Tensor) -> Tensor:
        if self.grey:
            x = x.expand(-1, 3, -1, -1)
        return torch.mean(self.layers(x), (2, 3))  # (N, 128)


@register(
    "cnn6",
    summary="six convolutions and a dense layer of 1024, the SVHN/CIFAR network of Keren et al. 2018",
    paper="Keren, Sabato, Schuller 2018, section 6",
    parameters=12854154,
)
def cnn6(in_shape: tuple[int, ...], *, widths: tuple[int, int, int] = (128, 256, 512), dense: int = 1024) -> CNN6:
    """The network of Keren et al. 2018: 5x5 and 1x1 convolutions, then a dense layer.

    Args:
        in_shape: (channels, height, width).
        widths: maps of the three pairs of convolutions.
        dense: units of the last layer, the features.

    Example:
        >>> cnn6((3, 32, 32)).num_features
        1024
    """
    return CNN6(image_shape(in_shape, "cnn6"), widths, dense)


@register(
    "classifier32",
    summary="ARPL's small CNN for open-set recognition",
    paper="Chen et al. 2021 (ARPL); used by the paper on normalized spaces, tables 3 and 10",
    num_classes=6,
    parameters=999878,
)
def classifier32(in_shape: tuple[int, ...], *, dropout: float = 0.2) -> Classifier32:
    """The nine-layer network of the ARPL open-set protocol, with 128 features. Drop-out also acts on the input.

    Args:
        in_shape: (channels, height, width).
        dropout: channel drop-out before each stage.

    Example:
        >>> classifier32((3, 32, 32)).num_features
        128
    """
    return Classifier32(image_shape(in_shape, "classifier32")[0], dropout)
