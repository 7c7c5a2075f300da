"""Small convolutional networks: the six-layer one of Keren et al. 2018 and ARPL's for open-set recognition."""

from torch import Tensor, nn

from .common import Backbone, GlobalPool, conv_norm, image_shape, register


class _ThreeChannels(nn.Module):
    """Makes grey images three equal channels, as in ARPL's data: with one, drop-out would erase whole images."""

    def forward(self, x: Tensor) -> Tensor:
        return x.expand(-1, 3, -1, -1)


@register(
    "cnn6",
    summary="six convolutions and a dense layer of 1024, the SVHN/CIFAR network of Keren et al. 2018",
    paper="Keren, Sabato, Schuller 2018, section 6",
    parameters=12854154,
)
def cnn6(in_shape: tuple[int, ...], *, widths: tuple[int, int, int] = (128, 256, 512), dense: int = 1024) -> Backbone:
    """The network of Keren et al. 2018: six convolutions (5x5 and 1x1 in turn), three 3x3/2 max pools, one dense layer.

    Each layer has batch norm and ReLU. The paper states no padding. Here convolutions keep the size, and pooling halves
    it, rounded up.

    Args:
        in_shape: (channels, height, width).
        widths: maps of the three pairs of convolutions.
        dense: units of the last layer, the features.

    Example:
        >>> cnn6((3, 32, 32)).num_features
        1024
    """
    channels, height, width = image_shape(in_shape, "cnn6")
    layers: list[nn.Module] = []
    for maps in widths:
        for kernel in (5, 1):
            layers += [*conv_norm(channels, maps, kernel), nn.ReLU()]
            channels = maps
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        height, width = (height + 1) // 2, (width + 1) // 2
    last = (nn.Linear(channels * height * width, dense, bias=False), nn.BatchNorm1d(dense), nn.ReLU())
    return Backbone(dense, convolutions=nn.Sequential(*layers), flatten=nn.Flatten(), dense=nn.Sequential(*last))


@register(
    "classifier32",
    summary="ARPL's small CNN for open-set recognition",
    paper="Chen et al. 2021 (ARPL); used by the paper on normalized spaces, tables 3 and 10",
    num_classes=6,
    parameters=999878,
)
def classifier32(in_shape: tuple[int, ...], *, dropout: float = 0.2) -> Backbone:
    """The network of the ARPL open-set protocol, with 128 features. Drop-out also acts on the input.

    Nine 3x3 convolutions with leaky ReLU in three stages that end with stride 2, then a global average pool.

    Args:
        in_shape: (channels, height, width).
        dropout: channel drop-out before each stage.

    Example:
        >>> classifier32((3, 32, 32)).num_features
        128
    """
    grey = image_shape(in_shape, "classifier32")[0] == 1
    channels = 3 if grey else in_shape[0]
    layers: list[nn.Module] = []
    for maps in ((64, 64, 128), (128, 128, 128), (128, 128, 128)):
        layers.append(nn.Dropout2d(dropout))
        for out, stride in zip(maps, (1, 1, 2), strict=True):
            layers += [*conv_norm(channels, out, 3, stride), nn.LeakyReLU(0.2)]
            channels = out
    for module in layers:
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, 0.05)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1.0, 0.02)
    colours = _ThreeChannels() if grey else nn.Identity()
    return Backbone(channels, colours=colours, layers=nn.Sequential(*layers), pool=GlobalPool())
