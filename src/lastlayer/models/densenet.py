"""DenseNet-121 with the ImageNet or the CIFAR stem."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .common import Backbone, GlobalPool, conv_norm, he_normal, image_shape, register
from .resnet import Stem, imagenet_stem, resolve_stem


class _Layer(nn.Module):
    """Batch norm, ReLU, 1x1 to 4k maps, batch norm, ReLU, 3x3 to k maps. These are appended to the input's maps."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1, self.bn2 = conv_norm(channels, 4 * growth, 1)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv1(F.relu(self.bn1(x)))
        new = self.conv2(F.relu(self.bn2(new)))
        return torch.cat((x, new), 1)


@register(
    "densenet121",
    summary="DenseNet-121; stem by image size (CIFAR up to 64 pixels)",
    paper="Huang, Liu, van der Maaten, Weinberger 2017; used by the paper on normalized spaces",
    in_shape=(3, 224, 224),
    num_classes=1000,
    parameters=7978856,
)
def densenet121(
    in_shape: tuple[int, ...], *, growth: int = 32, stem: Stem = "auto", final_relu: bool = True
) -> Backbone:
    """Dense blocks of 6, 12, 24 and 16 layers, transitions that halve maps and size, a global average pool.

    Args:
        in_shape: (channels, height, width).
        growth: k, the maps that each layer adds.
        stem: "imagenet" (7x7/2 and 3x3/2 max pool), "cifar" (3x3) or "auto" (CIFAR up to 64 pixels).
        final_relu: whether a ReLU comes before the pool. Without it features take both signs.

    Example:
        >>> densenet121((3, 32, 32), growth=4).num_features
        128
    """
    channels, height, width = image_shape(in_shape, "densenet121", smallest=8)
    maps = 2 * growth
    layers: list[nn.Module] = []
    if resolve_stem(stem, height, width) == "imagenet":
        layers += imagenet_stem(channels, maps)
    else:
        layers.append(nn.Conv2d(channels, maps, 3, padding=1, bias=False))
    for number, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            layers.append(_Layer(maps, growth))
            maps += growth
        if number < 3:
            halving = nn.Conv2d(maps, maps // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(maps), nn.ReLU(), halving, nn.AvgPool2d(2)]
            maps //= 2
    layers += [nn.BatchNorm2d(maps), nn.ReLU()] if final_relu else [nn.BatchNorm2d(maps)]
    return he_normal(Backbone(maps, layers=nn.Sequential(*layers), pool=GlobalPool()))
