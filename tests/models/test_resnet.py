"""Residual networks: stems, shortcuts, widths, depths, initialisation, the sign of features."""

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


def test_cifar_resnet_shortcut_is_strided_and_zero_padded() -> None:
    model = models.create("resnet20", (3, 32, 32)).eval()
    block = model.blocks[3]  # the first of the second stage, 16 to 32 maps
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 8, 8)
    expected = torch.zeros(2, 32, 4, 4)
    expected[:, 8:24] = x[:, :, ::2, ::2]
    torch.testing.assert_close(block(x), expected)


def test_cifar_resnets_of_another_width() -> None:
    x = torch.rand(2, 3, 32, 32)
    half, whole = (models.create("resnet20", (3, 32, 32), width=width) for width in (8, 16))
    assert half(x).shape == (2, 32)
    sizes = [sum(p.numel() for p in model.parameters() if p.dim() == 4) for model in (half, whole)]
    first = 27 * 8  # the stem's input keeps its three channels
    assert sizes[1] - 2 * first == 4 * (sizes[0] - first)
    with pytest.raises(ValueError, match=r"even number .* got 7"):
        models.create("resnet20", (3, 32, 32), width=7)


def test_he_initialisation_of_cifar_resnets() -> None:
    torch.manual_seed(0)
    weight = models.create("resnet20", (3, 32, 32)).blocks[-1].conv2.weight  # (64, 64, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_wrn_refuses_a_depth_that_is_not_6n_plus_4() -> None:
    with pytest.raises(ValueError, match="6n \\+ 4"):
        models.create("wrn", (3, 32, 32), depth=18)


@pytest.mark.parametrize("name", ["resnet18", "resnet20"])
def test_final_relu_decides_the_sign_of_features(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3, 16, 16)
    assert (models.create(name, (3, 16, 16))(x) >= 0).all()
    assert (models.create(name, (3, 16, 16), final_relu=False)(x) < 0).any()
