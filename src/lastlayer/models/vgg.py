"""VGG-11 and VGG-19 with and without batch norm."""

from torch import nn

from .common import Backbone, he_normal, image_shape, register

_MAPS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    19: ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
}


def vgg(channels: int, depth: int, *, batch_norm: bool, hidden: int, dropout: float) -> Backbone:
    """Five stages of 3x3 convolutions, each ended by a 2x2 max pool.

    With `hidden=0` a global average pool gives 512 features. For 32x32 images these are the last maps themselves.
    With `hidden` > 0 two dense layers of the original's classifier follow: average pool to 7x7, then twice `hidden`
    units with ReLU and drop-out. The features then have `hidden` entries.
    """
    layers: list[nn.Module] = []
    for stage in _MAPS[depth]:
        for maps in stage:
            layers.append(nn.Conv2d(channels, maps, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(maps))
            layers.append(nn.ReLU())
            channels = maps
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7 if hidden else 1), nn.Flatten()]
    if hidden:
        layers += [nn.Linear(channels * 49, hidden), nn.ReLU(), nn.Dropout(dropout)]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout)]
    model = he_normal(Backbone(hidden or channels, layers=nn.Sequential(*layers)))
    for module in layers:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0.0, 0.01)
            nn.init.zeros_(module.bias)
    return model


def _register(depth: int, batch_norm: bool, parameters: int) -> None:
    name = f"vgg{depth}_bn" if batch_norm else f"vgg{depth}"

    def factory(in_shape: tuple[int, ...], *, hidden: int = 0, dropout: float = 0.5) -> Backbone:
        channels = image_shape(in_shape, name, smallest=32)[0]
        return vgg(channels, depth, batch_norm=batch_norm, hidden=hidden, dropout=dropout)

    register(
        name,
        summary=f"VGG-{depth} with{'' if batch_norm else 'out'} batch norm (hidden=4096: as published)",
        paper="Simonyan, Zisserman 2015; used by Pan and Cao 2023",
        parameters=parameters,
    )(factory)


_register(11, False, 9225610)
_register(11, True, 9231114)
_register(19, False, 20029514)
_register(19, True, 20040522)
