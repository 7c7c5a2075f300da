"""What the options of single architectures do, against small references written here."""

import pytest
import torch
import torch.nn.functional as F

from lastlayer import models


def test_mlp_batch_norm_last_is_after_the_last_relu() -> None:
    model = models.create("mlp4", (16,), width=8, batch_norm="last").train()
    features = model(torch.randn(64, 16))
    torch.testing.assert_close(features.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    assert (features < 0).any()
    assert not any(m.bias is not None for m in model.modules() if isinstance(m, torch.nn.Linear))


def test_mlp_without_batch_norm_is_relu_of_linear() -> None:
    model = models.create("mlp", (2, 3), width=5, depth=1)
    weight, bias = model.parameters()
    x = torch.randn(7, 2, 3)
    torch.testing.assert_close(model(x), (x.flatten(1) @ weight.T + bias).clamp(min=0))


def test_mlp_without_final_relu_ends_in_a_linear_layer() -> None:
    model = models.create("mlp", (2, 3), width=5, depth=2, final_relu=False)
    first, shift, second, offset = model.parameters()
    x = torch.randn(7, 2, 3)
    hidden = (x.flatten(1) @ first.T + shift).clamp(min=0)
    torch.testing.assert_close(model(x), hidden @ second.T + offset)


def test_mlp_refuses_bad_settings() -> None:
    with pytest.raises(ValueError, match="at least one hidden layer"):
        models.create("mlp", (4,), depth=0)
    with pytest.raises(ValueError, match='batch_norm is "none"'):
        models.create("mlp", (4,), batch_norm="first")


def test_identity_flattens() -> None:
    x = torch.randn(3, 2, 2)
    assert torch.equal(models.create("identity", (2, 2))(x), x.reshape(3, 4))


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


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "densenet121"])
def test_final_relu_decides_the_sign_of_features(name: str) -> None:
    options = {"growth": 4} if name == "densenet121" else {}
    torch.manual_seed(0)
    x = torch.randn(16, 3, 16, 16)
    assert (models.create(name, (3, 16, 16), **options)(x) >= 0).all()
    assert (models.create(name, (3, 16, 16), final_relu=False, **options)(x) < 0).any()


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


def test_he_initialisation_of_cifar_resnets() -> None:
    torch.manual_seed(0)
    weight = models.create("resnet20", (3, 32, 32)).blocks[-1].conv2.weight  # (64, 64, 3, 3)
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_vit_attention_matches_the_formula() -> None:
    torch.manual_seed(0)
    block = models.create("vit", (3, 8, 8), dim=8, heads=2, dropout=0.0, depth=1).blocks[0]
    x = torch.randn(2, 5, 8)
    query, key, value = block.qkv(F.layer_norm(x, (8,))).split(8, -1)
    out = torch.empty_like(x)
    for h in (slice(0, 4), slice(4, 8)):
        out[..., h] = (query[..., h] @ key[..., h].mT / 2.0).softmax(-1) @ value[..., h]
    after = x + block.out(out)
    expected = after + block.dense(F.layer_norm(after, (8,)))
    torch.testing.assert_close(block(x), expected)


def test_vit_refuses_sizes_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="patch=5 does not divide images of 32x32"):
        models.create("vit", (3, 32, 32), patch=5)
    with pytest.raises(ValueError, match="heads=3 does not divide dim=128"):
        models.create("vit", (3, 32, 32), heads=3)


def test_wrn_refuses_a_depth_that_is_not_6n_plus_4() -> None:
    with pytest.raises(ValueError, match="6n \\+ 4"):
        models.create("wrn", (3, 32, 32), depth=18)


@pytest.mark.parametrize("in_shape", [(1, 28, 28), (1, 8, 8), (3, 33, 20)])
def test_convolutional_models_take_other_image_sizes(in_shape: tuple[int, int, int]) -> None:
    for name, options in (
        ("resnet20", {}),
        ("cnn6", {"widths": (4, 4, 4), "dense": 8}),
        ("classifier32", {}),
    ):
        model = models.create(name, in_shape, **options)
        assert model(torch.zeros(2, *in_shape)).shape == (2, model.num_features)


def test_grey_images_are_seldom_dropped_whole_by_classifier32() -> None:
    torch.manual_seed(0)
    model = models.create("classifier32", (1, 8, 8), dropout=0.5)
    seen: list[torch.Tensor] = []
    model.layers[0].register_forward_hook(lambda module, given, made: seen.append(made))
    model.train()(torch.ones(400, 1, 8, 8))
    left = (seen[0] != 0).flatten(2).all(2)  # (N, 3)
    assert left.shape[1] == 3
    assert 0.05 < (~left).all(1).double().mean() < 0.2  # an eighth, not a half
    assert torch.equal(model.eval()(torch.ones(2, 1, 8, 8)), model(torch.ones(2, 3, 8, 8)))


@pytest.mark.parametrize("channels", [2, 3])
def test_classifier32_made_for_more_channels_refuses_grey_images(channels: int) -> None:
    with pytest.raises(RuntimeError, match=f"to have {channels} channels, but got 1"):
        models.create("classifier32", (channels, 8, 8))(torch.ones(2, 1, 8, 8))


def test_models_export_without_breaks_or_data_dependence() -> None:
    for name in ("mlp", "resnet20", "vit"):
        in_shape = (1, 8, 8)
        model = models.create(name, in_shape).eval()
        torch.export.export(model, (torch.zeros(2, *in_shape),))
