"""Augmentation of whole batches on the device.

Every function works on the whole batch and draws from the generator that it is given, on the device of the images. None
reads a value back or has a shape that depends on one, so that all can be captured in a CUDA graph.
Tests: tests/data/test_augment.py.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Mixed = tuple[Tensor, Tensor, Tensor]


def normalize(
    x: Tensor, mean: Tensor | None, std: Tensor | None, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Scale and standardise: (x / scale - mean) / std.

    Args:
        x: images (N, C, H, W) or features (N, d), any type; tokens, int32, are returned as they are.
        mean, std: (C,) or (d,); if both are None, x is only divided by the scale.
        scale: the value of full intensity.
        dtype: of the result.

    Example:
        >>> normalize(torch.tensor([[0.0, 10.0]]), torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.5]), 10.0)
        tensor([[0., 1.]])
    """
    if x.dtype == torch.int32:
        return x
    x = x.to(dtype)
    if mean is None or std is None:
        return x if scale == 1.0 else x / scale
    shape = (-1, 1, 1) if x.ndim == 4 else (-1,)
    # one multiplication and one addition per value; the constants are computed per channel
    factor = (1.0 / (scale * std)).to(dtype).view(shape)
    return x * factor - (mean / std).to(dtype).view(shape)


class Normalize(nn.Module):
    """`normalize` as a module that carries a data set's statistics.

    Example:
        >>> from lastlayer import data
        >>> digits = data.load("digits")
        >>> x = Normalize(digits.mean, digits.std, digits.scale)(digits.train.inputs)
        >>> x.dtype, abs(x.mean().item()) < 1e-4
        (torch.float32, True)
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise ValueError("give both mean and std or neither")
        self.scale = scale
        self.register_buffer("mean", None if mean is None else torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", None if std is None else torch.tensor(std, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.mean, self.std, self.scale)


def pad_crop(x: Tensor, padding: int, generator: torch.Generator | None = None) -> Tensor:
    """Pad each image with zeros on all sides, and cut a window of the old size out of it at random.

    Args:
        x: images (N, C, H, W), any type.
        padding: pixels on each side; each of the (2 padding + 1)^2 windows is equally likely.
        generator: source of randomness, on the device of x.

    Example:
        >>> x = torch.ones(2, 1, 4, 4)
        >>> pad_crop(x, 2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 4, 4])
    """
    n, _, height, width = x.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=x.device)
    rows = offsets[0] + torch.arange(height, device=x.device)  # (N, H)
    columns = offsets[1] + torch.arange(width, device=x.device)  # (N, W)
    return _window(F.pad(x, (padding,) * 4), rows, columns)


def _window(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x[n, :, rows[n], columns[n]] for every image n."""
    samples = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
    return x[samples, channels, rows[:, None, :, None], columns[:, None, None, :]]


def horizontal_flip(x: Tensor, p: float = 0.5, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image left to right with probability p.

    Args:
        x: images (N, C, H, W), any type.
        p: probability.
        generator: source of randomness, on the device of x.

    Example:
        >>> horizontal_flip(torch.tensor([[[[1, 2, 3]]]]), p=1.0)
        tensor([[[[3, 2, 1]]]])
    """
    flipped = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < p
    return torch.where(flipped, x.flip(3), x)


def rotate(x: Tensor, degrees: float, generator: torch.Generator | None = None) -> Tensor:
    """Turn each image about its centre by an angle uniform in [-degrees, degrees]; zeros fill the corners.

    The interpolation is bilinear. Bytes are rounded back to bytes.

    Args:
        x: images (N, C, H, W).
        degrees: largest angle.
        generator: source of randomness, on the device of x.

    Example:
        >>> x = torch.rand(2, 3, 8, 8)
        >>> torch.allclose(rotate(x, 0.0), x, atol=1e-6)
        True
    """
    n, _, height, width = x.shape
    angle = (2 * torch.rand(n, generator=generator, device=x.device) - 1) * math.radians(degrees)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    # grid coordinates run from -1 to 1 on both axes, so a turn in pixels needs the ratio of the sides
    ratio = height / width
    theta = torch.stack(
        (torch.stack((cos, -sin * ratio, zero), 1), torch.stack((sin / ratio, cos, zero), 1)), 1
    )  # (N, 2, 3)
    images = x if x.is_floating_point() else x.float()
    grid = F.affine_grid(theta.to(images.dtype), list(x.shape), align_corners=False)
    turned = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned if x.is_floating_point() else turned.round().to(x.dtype)


def _beta(alpha: float, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """A draw of Beta(alpha, alpha) as a scalar tensor. In float32 a small alpha would underflow to 0/0."""
    concentration = torch.full((2,), alpha, dtype=torch.float64, device=device)
    return torch._sample_dirichlet(concentration, generator=generator)[0].float()


def _permutation(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random order of the batch, by sorting random keys: a CUDA graph can always capture that, unlike randperm."""
    return torch.rand(len(x), generator=generator, device=x.device).argsort(stable=True)


def mixup(
    x: Tensor, target: Tensor, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Mixed]:
    """Blend each input with another of the batch: lam x + (1 - lam) x', lam ~ Beta(alpha, alpha) for the whole batch.

    Args:
        x: floating-point inputs (N, ...), normalised or not.
        target: labels (N,).
        alpha: shape of the Beta distribution, positive.
        generator: source of randomness, on the device of x.

    Returns:
        The blended inputs and (y_a, y_b, lam); the loss is lam L(y_a) + (1 - lam) L(y_b). lam is a scalar tensor.

    Raises:
        TypeError: x holds bytes; normalise first.

    Paper: Zhang et al. 2018.

    Example:
        >>> x, (a, b, lam) = mixup(torch.eye(3), torch.arange(3), generator=torch.Generator().manual_seed(0))
        >>> x.sum(1)
        tensor([1., 1., 1.])
    """
    if not x.is_floating_point():
        raise TypeError(f"mixup blends floating-point inputs, not {x.dtype}: normalise them first")
    other = _permutation(x, generator)
    lam = _beta(alpha, x.device, generator)
    return torch.lerp(x[other], x, lam.to(x.dtype)), (target, target[other], lam)


def cutmix(
    x: Tensor, target: Tensor, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Mixed]:
    """Replace a box of each image by the same box of another of the batch.

    Each side of the box is sqrt(1 - lam) times that of the image, with lam ~ Beta(alpha, alpha). The centre is uniform,
    and the box ends at the border. The lam that is returned is the share of pixels that stayed.

    Args:
        x: images (N, C, H, W), any type.
        target: labels (N,).
        alpha: shape of the Beta distribution, positive.
        generator: source of randomness, on the device of x.

    Returns:
        The images and (y_a, y_b, lam), as `mixup`.

    Paper: Yun et al. 2019.

    Example:
        >>> x, (a, b, lam) = cutmix(torch.zeros(4, 1, 8, 8), torch.arange(4))
        >>> x.shape, lam.shape
        (torch.Size([4, 1, 8, 8]), torch.Size([]))
    """
    height, width = x.shape[2:]
    other = _permutation(x, generator)
    side = (1 - _beta(alpha, x.device, generator)).sqrt()
    centre = torch.rand(2, generator=generator, device=x.device)
    inside_rows = _interval(height, centre[0], side)
    inside_columns = _interval(width, centre[1], side)
    box = inside_rows[:, None] & inside_columns[None, :]  # (H, W)
    lam = 1 - box.float().mean()
    return torch.where(box, x[other], x), (target, target[other], lam)


def _interval(length: int, centre: Tensor, share: Tensor) -> Tensor:
    """Which of `length` pixels lie within share / 2 of the centre pixel."""
    middle = (centre * length).floor()
    half = (share * length).floor() / 2
    positions = torch.arange(length, device=centre.device)
    return (positions >= (middle - half).floor()) & (positions < (middle + half).floor())


def mix(
    x: Tensor,
    target: Tensor,
    *,
    mixup_alpha: float = 0.0,
    cutmix_alpha: float = 0.0,
    probability: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Mixed]:
    """Mixup or cutmix, for a share of the batches.

    A batch is mixed with probability `probability`. If both alphas are positive, mixup and cutmix are equally likely.
    A batch that is not mixed has lam = 1. Paper 003 uses 0.8, 1.0 and 0.8.

    Args:
        x: floating-point images (N, C, H, W).
        target: labels (N,).
        mixup_alpha, cutmix_alpha: shapes of the Beta distributions; with 0 the method is not used.
        probability: share of batches that are mixed.
        generator: source of randomness, on the device of x.

    Returns:
        The images and (y_a, y_b, lam), as `mixup`.

    Example:
        >>> x, (a, b, lam) = mix(torch.zeros(4, 1, 8, 8), torch.arange(4), mixup_alpha=0.8, probability=0.0)
        >>> lam
        tensor(1.)
    """
    draw = torch.rand(2, generator=generator, device=x.device)
    if mixup_alpha > 0:
        mixed, (_, other, lam) = mixup(x, target, mixup_alpha, generator)
        if cutmix_alpha > 0:
            cut, (_, other_cut, lam_cut) = cutmix(x, target, cutmix_alpha, generator)
            first = draw[1] < 0.5
            mixed, other, lam = (
                torch.where(first, mixed, cut),
                torch.where(first, other, other_cut),
                torch.where(first, lam, lam_cut),
            )
    elif cutmix_alpha > 0:
        mixed, (_, other, lam) = cutmix(x, target, cutmix_alpha, generator)
    else:
        return x, (target, target, torch.ones((), device=x.device))
    applied = draw[0] < probability
    return (
        torch.where(applied, mixed, x),
        (target, torch.where(applied, other, target), torch.where(applied, lam, torch.ones_like(lam))),
    )


def augment(
    x: Tensor,
    *,
    padding: int = 0,
    flip: float = 0.0,
    degrees: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Crop, flip and rotate a batch, in this order. A step whose number is 0 is skipped and draws nothing.

    Args:
        x: images (N, C, H, W); bytes stay bytes.
        padding: of `pad_crop`.
        flip: probability of `horizontal_flip`.
        degrees: of `rotate`.
        generator: source of randomness, on the device of x.

    Example:
        >>> x = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        >>> augment(x, padding=1, flip=0.5, degrees=15).dtype
        torch.uint8
    """
    if padding:
        x = pad_crop(x, padding, generator)
    if flip:
        x = horizontal_flip(x, flip, generator)
    if degrees:
        x = rotate(x, degrees, generator)
    return x
