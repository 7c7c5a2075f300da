"""Augmentation against per-sample loops written here."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from lastlayer import data


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, c: int = 3, h: int = 7, w: int = 5, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    x = torch.randint(1, 256, (n, c, h, w), generator=generator(9))
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16])
def test_pad_crop_is_a_window_of_the_padded_image(dtype: torch.dtype) -> None:
    x = images(dtype=dtype)
    cropped = data.pad_crop(x, 2, generator())
    assert cropped.dtype == dtype
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    seen = set()
    for n in range(len(x)):
        windows = [
            (i, j) for i in range(5) for j in range(5) if np.array_equal(padded[n, :, i : i + 7, j : j + 5], cropped[n])
        ]
        assert len(windows) == 1
        seen.add(windows[0])
    assert len(seen) > 1


def test_pad_crop_windows_are_equally_likely() -> None:
    x = torch.zeros(20_000, 1, 3, 3)
    x[:, 0, 1, 1] = 1
    cropped = data.pad_crop(x, 1, generator())
    where = cropped.flatten(1).argmax(1)
    counts = where.bincount(minlength=9)
    assert (cropped.sum((1, 2, 3)) == 1).all()
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_horizontal_flip_per_image() -> None:
    x = images(n=200)
    flipped = data.horizontal_flip(x, 0.5, generator())
    turned = [bool(torch.equal(b, a.flip(2))) for a, b in zip(x, flipped, strict=True)]
    kept = [bool(torch.equal(b, a)) for a, b in zip(x, flipped, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 60 < sum(turned) < 140
    assert torch.equal(data.horizontal_flip(x, 0.0, generator()), x)
    assert torch.equal(data.horizontal_flip(x, 1.0, generator()), x.flip(3))


@pytest.mark.parametrize("shape", [(9, 9), (12, 7)])
def test_rotate_matches_scipy(shape: tuple[int, int]) -> None:
    x = torch.rand(1, 1, *shape, generator=generator(1), dtype=torch.float64)
    rotated = data.rotate(x, 40.0, generator(3))
    angle = (2 * torch.rand(1, generator=generator(3)).item() - 1) * 40.0
    height, width = shape
    turn = math.radians(angle)
    rows, columns = np.mgrid[:height, :width].astype(float)
    y, z = rows - (height - 1) / 2, columns - (width - 1) / 2
    source_columns = math.cos(turn) * z - math.sin(turn) * y + (width - 1) / 2
    source_rows = math.sin(turn) * z + math.cos(turn) * y + (height - 1) / 2
    padded = np.pad(x[0, 0].numpy(), 1)
    expected = ndimage.map_coordinates(padded, [source_rows + 1, source_columns + 1], order=1, mode="constant")
    np.testing.assert_allclose(rotated[0, 0].numpy(), expected, atol=1e-5)


def test_rotate_keeps_bytes_and_is_bounded() -> None:
    x = images(h=8, w=8)
    assert data.rotate(x, 15, generator()).dtype == torch.uint8
    assert torch.equal(data.rotate(x, 0.0, generator()), x)
    quarter = torch.zeros(1, 1, 5, 5)
    quarter[0, 0, 2, 4] = 1
    centre_kept = data.rotate(torch.ones(500, 1, 5, 5), 15, generator())[:, 0, 2, 2]
    torch.testing.assert_close(centre_kept, torch.ones(500))
    angles = data.rotate(quarter.expand(500, -1, -1, -1), 15, generator())
    assert (angles[:, 0, 2, 0] == 0).all()


def test_mixup_blends_with_a_permutation() -> None:
    x = torch.randn(8, 5, generator=generator(1))
    target = torch.arange(8)
    mixed, (a, b, lam) = data.mixup(x, target, 0.4, generator())
    assert torch.equal(a, target)
    assert sorted(b.tolist()) == list(range(8))
    torch.testing.assert_close(mixed, lam * x + (1 - lam) * x[b])
    assert lam.shape == ()
    assert lam.dtype == torch.float32
    with pytest.raises(TypeError, match=r"not torch.uint8: normalise"):
        data.mixup(images(), torch.arange(6))


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 4.0])
def test_lam_follows_the_beta_distribution(alpha: float) -> None:
    g = generator()
    x, target = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    draws = [data.mixup(x, target, alpha, g)[1][2].item() for _ in range(1500)]
    assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_tiny_alpha_gives_no_nan() -> None:
    g = generator()
    x, target = torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64)
    draws = torch.stack([data.mixup(x, target, 0.02, g)[1][2] for _ in range(500)])
    assert draws.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_cutmix_replaces_a_box_and_lam_is_its_share(dtype: torch.dtype) -> None:
    x = images(n=8, h=9, w=6, dtype=dtype)
    target = torch.arange(8)
    for seed in range(20):
        mixed, (_, b, lam) = data.cutmix(x, target, 1.0, generator(seed))
        from_other = (mixed == x[b]).all(1) & ~(mixed == x).all(1)
        box = from_other.any(0)
        stayed = (mixed == x).all(1)
        assert (from_other | stayed).all()
        rows, columns = box.any(1).nonzero().flatten(), box.any(0).nonzero().flatten()
        if len(rows):
            expected = torch.zeros(9, 6, dtype=torch.bool)
            expected[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
            assert torch.equal(box, expected)
        assert lam.item() == pytest.approx(1 - box.float().mean().item(), abs=1e-6)


def test_cutmix_boxes_have_the_asked_size_on_average() -> None:
    g = generator()
    x = torch.zeros(1, 1, 32, 32)
    share = torch.stack([1 - data.cutmix(x, torch.zeros(1, dtype=torch.int64), 1.0, g)[1][2] for _ in range(1500)])
    # for a unit image: E[side^2 cut at the border] with side^2 uniform = E[s^2 (1 - s/4)^2]
    s = np.sqrt((np.arange(100_000) + 0.5) / 100_000)
    assert share.mean().item() == pytest.approx(float((s**2 * (1 - s / 4) ** 2).mean()), abs=0.03)


def test_mix_chooses_among_methods() -> None:
    x = torch.randn(6, 2, 8, 8, generator=generator(2))
    target = torch.arange(6)
    kinds = {"none": 0, "mixup": 0, "cutmix": 0}
    g = generator()
    for _ in range(300):
        mixed, (a, b, lam) = data.mix(x, target, mixup_alpha=0.8, cutmix_alpha=1.0, probability=0.8, generator=g)
        assert torch.equal(a, target)
        if lam == 1 and torch.equal(mixed, x):
            kinds["none"] += 1
        elif torch.allclose(mixed, lam * x + (1 - lam) * x[b], atol=1e-6):
            kinds["mixup"] += 1
        else:
            assert ((mixed == x) | (mixed == x[b])).all()
            kinds["cutmix"] += 1
    assert 30 < kinds["none"] < 110
    assert 80 < kinds["mixup"] < 160
    assert 70 < kinds["cutmix"] < 160


def test_mix_without_methods_changes_nothing() -> None:
    x, target = torch.randn(3, 1, 4, 4), torch.arange(3)
    mixed, (a, b, lam) = data.mix(x, target)
    assert mixed is x
    assert a is b is target
    assert lam == 1


def test_normalize_matches_the_formula() -> None:
    x = images()
    mean, std = (0.2, 0.5, 0.7), (0.1, 0.3, 0.5)
    reference = torch.stack([(x[:, k].double() / 255 - mean[k]) / std[k] for k in range(3)], 1)
    module = data.Normalize(mean, std, 255.0)
    torch.testing.assert_close(module(x).double(), reference, atol=1e-5, rtol=1e-5)
    assert set(module.state_dict()) == {"mean", "std"}
    assert torch.equal(data.Normalize()(torch.ones(2, 3)), torch.ones(2, 3))
    torch.testing.assert_close(data.Normalize(scale=16.0)(x), x / 16.0)
    with pytest.raises(ValueError, match=r"both mean and std"):
        data.Normalize(mean)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, g: data.augment(x, padding=2, flip=0.5, degrees=15, generator=g),
        lambda x, g: data.mix(x.float(), torch.arange(6), mixup_alpha=0.8, cutmix_alpha=1.0, generator=g)[0],
    ],
)
def test_same_generator_same_result(function) -> None:  # type: ignore[no-untyped-def]
    x = images()
    assert torch.equal(function(x, generator(5)), function(x, generator(5)))
    assert not torch.equal(function(x, generator(5)), function(x, generator(6)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_augmentation_can_be_captured_in_a_cuda_graph() -> None:
    device = torch.device("cuda")
    x = images(h=8, w=8).to(device)
    target = torch.arange(6, device=device)
    normalize = data.Normalize((0.5,) * 3, (0.2,) * 3, 255.0).to(device)

    def step() -> torch.Tensor:
        y = normalize(data.augment(x, padding=2, flip=0.5, degrees=15))
        return data.mix(y, target, mixup_alpha=0.8, cutmix_alpha=1.0)[0]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    first = out.clone()
    graph.replay()
    assert first.isfinite().all()
    assert not torch.equal(first, out)
