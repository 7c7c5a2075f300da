"""Augmentation of whole batches on the device. Tests: tests/data/test_augment.py.

A function that draws takes a `generator`, which must be on the device of x; None takes the global one of torch. No
function reads a value back or has a shape that depends on one, so that a CUDA graph can capture all of them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Mixed = tuple[Tensor, Tensor, Tensor]


def normalize(
    x: Tensor, mean: Tensor | None, std: Tensor | None, scale: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Scale and standardise images (N, C, H, W) or features (N, d) of any type: (x / scale - mean) / std.

    mean and std are (C,) or (d,). If they are None, x is only divided by the scale. Tokens (int32) are returned as they
    are.

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
    # with constants per channel, a value costs only one multiplication and one subtraction
    factor = (1.0 / (scale * std)).to(dtype).view(shape)
    return x * factor - (mean / std).to(dtype).view(shape)


class Normalize(nn.Module):
    """`normalize` as a module that holds the statistics of a data set.

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
    """Pad each image of x (N, C, H, W) with `padding` zeros on every side, and cut out a window of the old size.

    Each of the (2 padding + 1)^2 windows is equally likely. x may have any type.

    Example:
        >>> x = torch.ones(2, 1, 4, 4)
        >>> pad_crop(x, 2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 1, 4, 4])
    """
    n, _, height, width = x.shape
    offsets = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=x.device)
    rows = offsets[0] + torch.arange(height, device=x.device)  # (N, H)
    columns = offsets[1] + torch.arange(width, device=x.device)  # (N, W)
    samples = torch.arange(n, device=x.device).view(-1, 1, 1, 1)
    channels = torch.arange(x.shape[1], device=x.device).view(1, -1, 1, 1)
    return F.pad(x, (padding,) * 4)[samples, channels, rows[:, None, :, None], columns[:, None, None, :]]


def horizontal_flip(x: Tensor, p: float = 0.5, generator: torch.Generator | None = None) -> Tensor:
    """Mirror each image of x (N, C, H, W), of any type, left to right with probability p.

    Example:
        >>> horizontal_flip(torch.tensor([[[[1, 2, 3]]]]), p=1.0)
        tensor([[[[3, 2, 1]]]])
    """
    flipped = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < p
    return torch.where(flipped, x.flip(3), x)


def rotate(x: Tensor, degrees: float, generator: torch.Generator | None = None) -> Tensor:
    """Turn each image of x (N, C, H, W) about its centre by an angle uniform in [-degrees, degrees].

    The interpolation is bilinear. Zeros fill the corners. Bytes are rounded back to bytes.

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
    theta = torch.stack((cos, -sin * ratio, zero, sin / ratio, cos, zero), 1).view(n, 2, 3)
    images = x if x.is_floating_point() else x.float()
    grid = F.affine_grid(theta.to(images.dtype), list(x.shape), align_corners=False)
    turned = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned if x.is_floating_point() else turned.round().to(x.dtype)


def _beta(alpha: float, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """A draw of Beta(alpha, alpha) as a scalar tensor. In float32 a small alpha would give 0/0."""
    concentration = torch.full((2,), alpha, dtype=torch.float64, device=device)
    return torch._sample_dirichlet(concentration, generator=generator)[0].float()


def _permutation(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """A random order of the batch. A CUDA graph can always capture the sorting of random keys, but not randperm."""
    return torch.rand(len(x), generator=generator, device=x.device).argsort(stable=True)


def mixup(
    x: Tensor, target: Tensor, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Mixed]:
    """Blend each input with another of the batch: lam x + (1 - lam) x', lam ~ Beta(alpha, alpha) for the whole batch.

    Args:
        x: floating-point inputs (N, ...), normalised or not; bytes raise a TypeError.
        target: labels (N,).

    Returns:
        The blended inputs and (y_a, y_b, lam). The loss is lam L(y_a) + (1 - lam) L(y_b). lam is a scalar tensor.

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
    """Replace a box of each image by the same box of another image of the batch.

    Each side of the box is sqrt(1 - lam) times that of the image, with lam ~ Beta(alpha, alpha). The centre is uniform,
    and the box ends at the border. The lam that is returned is the share of pixels that stayed.

    Arguments and results are as for `mixup`, with images x (N, C, H, W) of any type.

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
    """Which of `length` pixels belong to an interval of share * length pixels around the centre, bool (length,)."""
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
    """Mix a batch of images by `mixup` or `cutmix`, with some probability. Arguments and results are as for these.

    A method whose alpha is 0 is not used. If both alphas are positive, the two methods are equally likely. A batch that
    is not mixed has lam = 1. The paper on normalized spaces uses 0.8, 1.0 and 0.8.

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
            first, pairs = draw[1] < 0.5, ((mixed, cut), (other, other_cut), (lam, lam_cut))
            mixed, other, lam = (torch.where(first, *pair) for pair in pairs)
    elif cutmix_alpha > 0:
        mixed, (_, other, lam) = cutmix(x, target, cutmix_alpha, generator)
    else:
        return x, (target, target, torch.ones((), device=x.device))
    applied = draw[0] < probability
    other, lam = torch.where(applied, other, target), torch.where(applied, lam, torch.ones_like(lam))
    return torch.where(applied, mixed, x), (target, other, lam)


def augment(
    x: Tensor, *, padding: int = 0, flip: float = 0.0, degrees: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Crop, flip and rotate a batch of images (N, C, H, W), in this order. Bytes stay bytes.

    The numbers are the `padding` of `pad_crop`, the probability of `horizontal_flip` and the `degrees` of `rotate`. A
    step whose number is 0 is skipped and draws nothing.

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
