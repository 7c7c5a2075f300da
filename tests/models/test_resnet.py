"""ResNets with the ImageNet or the CIFAR stem, and their wide versions."""

import pytest
import torch

from lastlayer import models


def test_resnet_stem_follows_the_image_size() -> None:
    def stride(size: int, stem: str) -> int:
        with torch.device("meta"):
            stem_layers = models.create("resnet18", (3, size, size), stem=stem).stem
        return size // int(stem_layers(torch.zeros(1, 3, size, size, device="meta")).shape[-1])

    assert stride(32, "auto") == stride(64, "auto") == stride(128, "cifar") == 1
    assert stride(128, "auto") == stride(64, "imagenet") == 4
    with pytest.raises(ValueError, match="stem is"):
        models.create("resnet18", (3, 32, 32), stem="tiny")


def test_wide_resnet_width_changes_the_inside_only() -> None:
    with torch.device("meta"):
        narrow, wide = (models.create("wideresnet50", (3, 32, 32), width=w) for w in (0.25, 2))
    assert narrow.num_features == wide.num_features == 2048
    assert narrow.blocks[0].residual[0].out_channels == 16
    assert wide.blocks[0].residual[0].out_channels == 128


def test_final_relu_decides_the_sign_of_features() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3, 16, 16)
    assert (models.create("resnet18", (3, 16, 16))(x) >= 0).all()
    assert (models.create("resnet18", (3, 16, 16), final_relu=False)(x) < 0).any()
