"""Residual networks: those of He et al. 2016 for CIFAR and for ImageNet, WRN-d-k, and ResNets with wide blocks.

All end in a global average pool.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .common import Backbone, GlobalPool, conv_norm, he_normal, image_shape, register

Stem = Literal["auto", "cifar", "imagenet"]
_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def _blocks(maps: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """The maps and the stride of each block, and whether it is the last. Each stage but the first halves the size."""
    for stage, (width, count) in enumerate(zip(maps, counts, strict=True)):
        for i in range(count):
            yield width, 2 if i == 0 and stage > 0 else 1, stage == len(maps) - 1 and i == count - 1


class _CifarBlock(nn.Module):
    """Two 3x3 convolutions. The shortcut has no parameters: it skips pixels and pads maps with zeros (option A)."""

    def __init__(self, channels: int, maps: int, stride: int, final_relu: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_norm(channels, maps, 3, stride)
        self.conv2, self.bn2 = conv_norm(maps, maps, 3)
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


def cifar_resnet(channels: int, blocks: int, *, width: int = 16, final_relu: bool = True) -> Backbone:
    """The CIFAR ResNet: three stages of n blocks with 16, 32 and 64 maps, so 6n + 2 layers with the head.

    Args:
        channels, blocks: channels of the input, and n.
        width: maps of the first stage, an even number. The other stages have twice and four times as many.
        final_relu: whether the last block ends in ReLU. Without it features take both signs.
    """
    if width < 2 or width % 2:  # the shortcut pads half of the new maps on either side
        raise ValueError(f"width must be an even number of at least 2, got {width}")
    conv1, bn1 = conv_norm(channels, width, 3)
    layers: list[nn.Module] = []
    channels = width
    for maps, stride, last in _blocks((width, 2 * width, 4 * width), (blocks,) * 3):
        layers.append(_CifarBlock(channels, maps, stride, final_relu or not last))
        channels = maps
    stages = {"conv1": conv1, "bn1": bn1, "relu": nn.ReLU(), "blocks": nn.Sequential(*layers), "pool": GlobalPool()}
    return he_normal(Backbone(channels, **stages))


class _WideBlock(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions. The shortcut is projected if the shapes differ."""

    def __init__(self, channels: int, maps: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1, self.bn2 = conv_norm(channels, maps, 3, stride)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        projected = channels != maps or stride != 1
        self.shortcut = nn.Conv2d(channels, maps, 1, stride=stride, bias=False) if projected else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        hidden = self.conv1(active)
        residual: Tensor = self.conv2(self.dropout(F.relu(self.bn2(hidden))))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
        return shortcut + residual


class _Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck: 1x1, 3x3 and 1x1 to 4 maps. The shortcut is projected if shapes differ."""

    def __init__(
        self, channels: int, maps: int, stride: int, *, bottleneck: bool, width: float, final_relu: bool
    ) -> None:
        super().__init__()
        inner = int(maps * width)
        out = 4 * maps if bottleneck else maps
        if bottleneck:
            layers = [*conv_norm(channels, inner, 1), nn.ReLU(), *conv_norm(inner, inner, 3, stride)]
        else:
            layers = [*conv_norm(channels, inner, 3, stride)]
        self.residual = nn.Sequential(*layers, nn.ReLU(), *conv_norm(inner, out, 1 if bottleneck else 3))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(*conv_norm(channels, out, 1, stride))
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.residual(x) + self.shortcut(x)
        return F.relu(x) if self.final_relu else x


def resnet(channels: int, depth: int, *, stem: Stem, width: float = 1.0, final_relu: bool = True) -> Backbone:
    """Four stages of residual blocks with 64, 128, 256 and 512 maps.

    Args:
        channels, depth: channels of the input; 18, 34, 50 or 101 layers.
        stem: "imagenet" (7x7/2 and 3x3/2 max pool) or "cifar" (3x3, no pool).
        width: factor on the maps inside a block. The outputs of the blocks, and so the features, keep their size.
        final_relu: as in `cifar_resnet`.
    """
    if not width > 0:
        raise ValueError(f"width must be positive, not {width}")
    bottleneck = depth >= 50
    first = imagenet_stem(channels, 64) if stem == "imagenet" else [*conv_norm(channels, 64, 3), nn.ReLU()]
    layers: list[nn.Module] = []
    channels = 64
    for maps, stride, last in _blocks((64, 128, 256, 512), _STAGES[depth]):
        relu = final_relu or not last
        layers.append(_Block(channels, maps, stride, bottleneck=bottleneck, width=width, final_relu=relu))
        channels = 4 * maps if bottleneck else maps
    stages = {"stem": nn.Sequential(*first), "blocks": nn.Sequential(*layers), "pool": GlobalPool()}
    return he_normal(Backbone(channels, **stages))


def imagenet_stem(channels: int, maps: int) -> list[nn.Module]:
    """The layers that bring a large image to a quarter of its size: 7x7/2 convolution, then 3x3/2 max pool."""
    return [*conv_norm(channels, maps, 7, 2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]


def resolve_stem(stem: Stem, height: int, width: int) -> Stem:
    """ "auto" means the CIFAR stem up to 64 pixels and the ImageNet stem above."""
    if stem == "auto":
        return "cifar" if min(height, width) <= 64 else "imagenet"
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f'stem is "auto", "cifar" or "imagenet", not {stem!r}')
    return stem


def _cifar_factory(depth: int) -> Callable[..., Backbone]:
    def factory(in_shape: tuple[int, ...], *, width: int = 16, final_relu: bool = True) -> Backbone:
        channels = image_shape(in_shape, f"resnet{depth}")[0]
        return cifar_resnet(channels, (depth - 2) // 6, width=width, final_relu=final_relu)

    return factory


def _factory(name: str, depth: int, usual_width: float) -> Callable[..., Backbone]:
    def factory(
        in_shape: tuple[int, ...], *, width: float = usual_width, stem: Stem = "auto", final_relu: bool = True
    ) -> Backbone:
        channels, rows, columns = image_shape(in_shape, name)
        return resnet(channels, depth, stem=resolve_stem(stem, rows, columns), width=width, final_relu=final_relu)

    return factory


for _depth, _parameters in ((20, 269722), (32, 464154), (44, 658586), (56, 853018), (110, 1727962)):
    register(
        f"resnet{_depth}",
        summary=f"CIFAR ResNet of {_depth} layers, 64 features",
        paper="He, Zhang, Ren, Sun 2016, section 4.2; used by papers 000 and 003",
        parameters=_parameters,
    )(_cifar_factory(_depth))
for _depth, _parameters in ((18, 11689512), (34, 21797672), (50, 25557032), (101, 44549160)):
    register(
        f"resnet{_depth}",
        summary=f"ResNet-{_depth}; stem by image size (CIFAR up to 64 pixels)",
        paper="He, Zhang, Ren, Sun 2016; used by papers 000, 001 and 003",
        in_shape=(3, 224, 224),
        num_classes=1000,
        parameters=_parameters,
    )(_factory(f"resnet{_depth}", _depth, 1.0))
for _depth, _parameters in ((18, 22163274), (50, 66847050)):
    register(
        f"wideresnet{_depth}",
        summary=f"ResNet-{_depth} with the maps inside each block times `width` (Zhou et al. 2022: 0.25, 0.5, 1, 2)",
        paper="Zagoruyko, Komodakis 2016; in this form used by Zhou et al. 2022",
        parameters=_parameters,
    )(_factory(f"wideresnet{_depth}", _depth, 2.0))


@register(
    "wrn",
    summary="WRN-d-k, by default WRN-28-10",
    paper="Zagoruyko, Komodakis 2016",
    parameters=36479194,
)
def wrn(in_shape: tuple[int, ...], *, depth: int = 28, factor: int = 10, dropout: float = 0.0) -> Backbone:
    """WRN-d-k, with d the depth and k the factor: three stages of (d - 4) / 6 blocks with 16k, 32k and 64k maps.

    Args:
        in_shape: (channels, height, width).
        depth: 6n + 4.
        factor: k, how much wider than 16, 32, 64 maps.
        dropout: drop-out inside the blocks.

    Example:
        >>> wrn((3, 32, 32), depth=10, factor=1).num_features
        64
    """
    if (depth - 4) % 6 or depth < 10:
        raise ValueError(f"the depth of a WRN is 6n + 4 (10, 16, 22, 28, 40, ...), not {depth}")
    layers: list[nn.Module] = [nn.Conv2d(image_shape(in_shape, "wrn")[0], 16, 3, padding=1, bias=False)]
    channels = 16
    for maps, stride, _ in _blocks((16 * factor, 32 * factor, 64 * factor), ((depth - 4) // 6,) * 3):
        layers.append(_WideBlock(channels, maps, stride, dropout))
        channels = maps
    stages = {"blocks": nn.Sequential(*layers), "bn": nn.BatchNorm2d(channels), "relu": nn.ReLU(), "pool": GlobalPool()}
    return he_normal(Backbone(channels, **stages))
