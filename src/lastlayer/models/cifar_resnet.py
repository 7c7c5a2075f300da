"""The CIFAR ResNets of He et al. 2016: 6n+2 layers, 16-32-64 maps, parameter-free shortcuts (option A)."""

import torch.nn.functional as F
from torch import Tensor, nn

from .common import he_normal, image_shape, register


class _Block(nn.Module):
    def __init__(self, channels: int, maps: int, stride: int, final_relu: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, maps, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(maps)
        self.stride = stride
        self.padding = (maps - channels) // 2
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        if self.padding or self.stride != 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        x = x + residual
        return F.relu(x) if self.final_relu else x


class CifarResNet(nn.Module):
    """Three stages of n blocks with 16, 32 and 64 maps, global average pool: 6n+2 layers with the head.

    Args:
        channels: channels of the input.
        blocks: n, blocks of a stage.
        width: maps of the first stage, an even number; the others have twice and four times as many.
        final_relu: whether the last block ends in ReLU; without it features take both signs.
    """

    def __init__(self, channels: int, blocks: int, *, width: int = 16, final_relu: bool = True) -> None:
        super().__init__()
        if width < 2 or width % 2:  # the shortcut pads half of the new maps on either side
            raise ValueError(f"width must be an even number of at least 2, got {width}")
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        channels = width
        for maps in (width, 2 * width, 4 * width):
            for i in range(blocks):
                last = maps == 4 * width and i == blocks - 1
                stride = 2 if i == 0 and maps != width else 1
                layers.append(_Block(channels, maps, stride, final_relu or not last))
                channels = maps
        self.blocks = nn.Sequential(*layers)
        self.num_features = channels
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        features: Tensor = self.blocks(x).mean((2, 3))  # (N, 4 width)
        return features


def _register(depth: int, parameters: int) -> None:
    def factory(in_shape: tuple[int, ...], *, width: int = 16, final_relu: bool = True) -> CifarResNet:
        channels = image_shape(in_shape, f"resnet{depth}")[0]
        return CifarResNet(channels, (depth - 2) // 6, width=width, final_relu=final_relu)

    register(
        f"resnet{depth}",
        summary=f"CIFAR ResNet of {depth} layers, 64 features",
        paper="He, Zhang, Ren, Sun 2016, section 4.2; used by papers 000 and 003",
        in_shape=(3, 32, 32),
        num_classes=10,
        parameters=parameters,
    )(factory)


for _depth, _parameters in ((20, 269722), (32, 464154), (44, 658586), (56, 853018), (110, 1727962)):
    _register(_depth, _parameters)
