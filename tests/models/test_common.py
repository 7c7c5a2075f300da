"""Every registered backbone: shapes, published parameter counts, gradients, determinism; names, options."""

import pytest
import torch
from torch import nn

from lastlayer import models

SMALL = {  # the same architecture, small enough for two CPU cores
    "cnn6": {"widths": (8, 8, 8), "dense": 16},
    "densenet121": {"growth": 4},
    "wrn": {"depth": 10, "factor": 1},
    "resnet34": {"width": 0.1},
    "resnet50": {"width": 0.1},
    "resnet101": {"width": 0.1},
    "wideresnet18": {"width": 0.25},
    "wideresnet50": {"width": 0.25},
}


def count(model: nn.Module, num_classes: int) -> int:
    width = model.num_features
    assert isinstance(width, int)
    return sum(p.numel() for p in model.parameters()) + (width + 1) * num_classes


@pytest.mark.parametrize("name", models.available())
def test_parameter_count_is_the_stated_one(name: str) -> None:
    info = models.describe(name)
    with torch.device("meta"):
        model = models.create(name, info.in_shape)
    assert count(model, info.num_classes) == info.parameters
    assert info.paper
    assert info.summary


@pytest.mark.parametrize(
    ("name", "in_shape", "num_classes", "options", "millions"),
    [
        # He et al. 2016, table 6
        ("resnet20", (3, 32, 32), 10, {}, 0.27),
        ("resnet32", (3, 32, 32), 10, {}, 0.46),
        ("resnet44", (3, 32, 32), 10, {}, 0.66),
        ("resnet56", (3, 32, 32), 10, {}, 0.85),
        ("resnet110", (3, 32, 32), 10, {}, 1.73),
        # Zagoruyko and Komodakis 2016, table 4
        ("wrn", (3, 32, 32), 10, {"depth": 16, "factor": 8}, 11.0),
        ("wrn", (3, 32, 32), 10, {"depth": 40, "factor": 4}, 8.95),
        ("wrn", (3, 32, 32), 10, {"depth": 28, "factor": 10}, 36.48),
    ],
)
def test_parameter_count_is_the_published_one(
    name: str, in_shape: tuple[int, ...], num_classes: int, options: dict[str, int], millions: float
) -> None:
    with torch.device("meta"):
        model = models.create(name, in_shape, **options)
    assert round(count(model, num_classes) / 1e6, 2) == pytest.approx(millions, abs=0.045)


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [
        # the ImageNet classifiers with 1000 classes whose weights are in common use
        ("resnet18", {}, 11_689_512),
        ("resnet34", {}, 21_797_672),
        ("resnet50", {}, 25_557_032),
        ("resnet101", {}, 44_549_160),
        ("wideresnet50", {"width": 2}, 68_883_240),
        ("densenet121", {}, 7_978_856),
    ],
)
def test_imagenet_parameter_counts(name: str, options: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):
        model = models.create(name, (3, 224, 224), **options)
    assert count(model, 1000) == parameters


def test_parameter_counts_by_hand() -> None:
    convolutions = 25 * (3 * 128 + 128 * 256 + 256 * 512) + 128**2 + 256**2 + 512**2
    norms = 2 * (2 * 128 + 2 * 256 + 2 * 512 + 1024)
    assert models.describe("cnn6").parameters == convolutions + norms + 4 * 4 * 512 * 1024 + 1025 * 10

    convolutions = 9 * (3 * 64 + 64 * 64 + 64 * 128 + 6 * 128 * 128)
    assert models.describe("classifier32").parameters == convolutions + 2 * (64 * 2 + 128 * 7) + 129 * 6

    block = 2 * 2 * 128 + 129 * 384 + 129 * 128 + 129 * 256 + 257 * 128
    embedding = (48 + 1) * 128 + 128 + 65 * 128
    assert models.describe("vit").parameters == embedding + 6 * block + 2 * 128 + 129 * 10

    assert models.describe("mlp4").parameters == 16 * 256 + 2 * 256**2 + 257 * 4
    assert models.describe("mlp6").parameters == 16 * 256 + 4 * 256**2 + 257 * 4
    assert models.describe("mlp500").parameters == 785 * 500 + 501 * 500 + 4 * 500 + 501 * 10

    wide = 9 * 3 * 64 + 128
    channels = 64
    for maps in (64, 128, 256, 512):
        for _ in range(2):
            wide += 9 * (channels * 2 * maps + 2 * maps * maps) + 2 * (2 * maps + maps)
            wide += channels * maps + 2 * maps if channels != maps else 0
            channels = maps
    assert models.describe("wideresnet18").parameters == wide + 513 * 10


@pytest.mark.parametrize("name", models.available())
def test_features_gradients_and_determinism(name: str) -> None:
    in_shape = models.describe(name).in_shape
    if len(in_shape) == 3 and "vgg" not in name:
        in_shape = (in_shape[0], 16, 16)
    torch.manual_seed(0)
    twin = models.create(name, in_shape, **SMALL.get(name, {})).state_dict()
    torch.manual_seed(0)
    model = models.create(name, in_shape, **SMALL.get(name, {}))
    assert twin.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(value, twin[key]), f"{key} differs though the seed is the same"
    x = torch.randn(4, *in_shape)
    features = model(x)
    assert features.shape == (4, model.num_features)
    assert features.dtype == torch.float32
    if list(model.parameters()):
        features.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name
    model.eval()
    with torch.no_grad():
        together, again = model(x), model(x)
        alone = torch.cat([model(row[None]) for row in x])
    torch.testing.assert_close(together, again, rtol=0, atol=0)
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'resnt20' is unknown \(did you mean 'resnet20'\?\)"):
        models.create("resnt20", (3, 32, 32))


def test_unknown_option_is_named_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"'mlp' has no option 'widht' \(did you mean 'width'\?\).*depth"):
        models.create("mlp", (8,), widht=3)


def test_image_model_refuses_features_and_small_images() -> None:
    with pytest.raises(ValueError, match=r"resnet20 takes images.*\(64,\)"):
        models.create("resnet20", (64,))
    with pytest.raises(ValueError, match="vgg11 needs images of at least 32x32, not 8x8"):
        models.create("vgg11", (1, 8, 8))


def test_registering_twice_is_refused() -> None:
    register = models.register("mlp", summary="", paper="", in_shape=(1,), num_classes=2, parameters=0)
    with pytest.raises(ValueError, match="registered twice"):
        register(nn.Identity)


@pytest.mark.parametrize("in_shape", [(1, 28, 28), (1, 8, 8), (3, 33, 20)])
def test_convolutional_models_take_other_image_sizes(in_shape: tuple[int, int, int]) -> None:
    for name, options in (
        ("resnet20", {}),
        ("cnn6", {"widths": (4, 4, 4), "dense": 8}),
        ("classifier32", {}),
    ):
        model = models.create(name, in_shape, **options)
        assert model(torch.zeros(2, *in_shape)).shape == (2, model.num_features)


def test_models_export_without_breaks_or_data_dependence() -> None:
    for name in ("mlp", "resnet20", "vit"):
        in_shape = (1, 8, 8)
        model = models.create(name, in_shape).eval()
        torch.export.export(model, (torch.zeros(2, *in_shape),))
