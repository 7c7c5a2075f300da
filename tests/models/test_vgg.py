"""VGG: the sizes of the published networks, and the two forms of their features."""

import pytest
import torch

from lastlayer import models


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # the ImageNet classifiers with 1000 classes whose weights are in common use
        ("vgg11", 132_863_336),
        ("vgg11_bn", 132_868_840),
        ("vgg19", 143_667_240),
        ("vgg19_bn", 143_678_248),
    ],
)
def test_imagenet_parameter_counts(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = models.create(name, (3, 224, 224), hidden=4096)
    assert model.num_features == 4096
    assert sum(p.numel() for p in model.parameters()) + 4097 * 1000 == parameters


def test_without_hidden_units_the_features_are_the_last_maps() -> None:
    model = models.create("vgg11", (3, 32, 32)).eval()
    x = torch.rand(2, 3, 32, 32)
    maps = model.layers[:-2](x)  # all but the pool and the flattening
    assert maps.shape == (2, 512, 1, 1)
    torch.testing.assert_close(model(x), maps.flatten(1))
