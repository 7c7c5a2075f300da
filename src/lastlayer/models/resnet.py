"""ResNet-18/34/50/101 and their wide versions, with the ImageNet or the CIFAR stem."""

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .common import he_normal, image_shape, register

Stem = Literal["auto", "cifar", "imagenet"]
_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class _Block(nn.Module):
    """Basic (two 3x3) or bottleneck (1x1, 3x3, 1x1 to 4 maps) block, projected where shapes differ."""

    def __init__(
        self, channels: int, maps: int, stride: int, *, bottleneck: bool, width: float, final_relu: bool
    ) -> None:
        super().__init__()
        inner = int(maps * width)
        out = 4 * maps if bottleneck else maps
        if bottleneck:
            self.residual = nn.Sequential(
                nn.Conv2d(channels, inner, 1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(),
                nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(),
                nn.Conv2d(inner, out, 1, bias=False),
                nn.BatchNorm2d(out),
            )
        else:
            self.residual = nn.Sequential(
                nn.Conv2d(channels, inner, 3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(),
                nn.Conv2d(inner, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
            )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))
        self.final_relu = final_relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.residual(x) + self.shortcut(x)
        return F.relu(x) if self.final_relu else x


class ResNet(nn.Module):
    """Four stages of residual blocks with 64, 128, 256 and 512 maps, global average pool.

    Args:
        channels: channels of the input.
        depth: 18, 34, 50 or 101.
        stem: "imagenet" (7x7/2 and 3x3/2 max pool) or "cifar" (3x3, no pool).
        width: factor on the maps inside a block; what a block hands on, and so the features, keep their size.
        final_relu: whether the last block ends in ReLU; without it features take both signs.
    """

    def __init__(self, channels: int, depth: int, *, stem: Stem, width: float = 1.0, final_relu: bool = True) -> None:
        super().__init__()
        if not width > 0:
            raise ValueError(f"width must be positive, not {width}")
        bottleneck = depth >= 50
        if stem == "imagenet":
            self.stem = nn.Sequential(
                nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
                nn.BatchNorm2d(64),
                nn.ReLU(),
                nn.MaxPool2d(3, stride=2, padding=1),
            )
        else:
            self.stem = nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        layers: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(_STAGES[depth]):
            maps = 64 * 2**stage
            for i in range(count):
                last = stage == 3 and i == count - 1
                layers.append(
                    _Block(
                        channels,
                        maps,
                        2 if i == 0 and stage > 0 else 1,
                        bottleneck=bottleneck,
                        width=width,
                        final_relu=final_relu or not last,
                    )
                )
                channels = 4 * maps if bottleneck else maps
        self.blocks = nn.Sequential(*layers)
        self.num_features = channels
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))  # (N, 512 or 2048)
        return features


def resolve_stem(stem: Stem, height: int, width: int) -> Stem:
    """ "auto" means the CIFAR stem up to 64 pixels and the ImageNet stem above."""
    if stem == "auto":
        return "cifar" if min(height, width) <= 64 else "imagenet"
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f'stem is "auto", "cifar" or "imagenet", not {stem!r}')
    return stem


def _factory(name: str, depth: int, usual_width: float) -> Callable[..., ResNet]:
    def factory(
        in_shape: tuple[int, ...], *, width: float = usual_width, stem: Stem = "auto", final_relu: bool = True
    ) -> ResNet:
        channels, rows, columns = image_shape(in_shape, name)
        return ResNet(channels, depth, stem=resolve_stem(stem, rows, columns), width=width, final_relu=final_relu)

    return factory


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
        in_shape=(3, 32, 32),
        num_classes=10,
        parameters=_parameters,
    )(_factory(f"wideresnet{_depth}", _depth, 2.0))
