"""How well features tell classes apart that no training has seen: each sample against the means of all classes."""

import torch
from torch import Tensor

from lastlayer.geometry._inputs import check_finite, prepare
from lastlayer.geometry._passes import first_pass


def nearest_mean_right(features: Tensor, target: Tensor) -> Tensor:
    """Whether the mean of a sample's own class is the nearest one, if the sample is left out of that mean.

        r_n = [ |h_n - (n_k mu_k - h_n) / (n_k - 1)| < |h_n - mu_j| for all j != k ],   k = y_n

    Args:
        features: (N, d).
        target: (N,) labels.

    Returns:
        (N,) of bool. A sample that is alone in its class counts as wrong, since its class has no other sample.

    Paper: none; Galanti et al. 2022 measure transfer to new classes by the nearest class mean.
    Tests: tests/geometry/test_nearest.py::test_equals_leaving_each_sample_out

    Example:
        >>> features = torch.tensor([[0.0], [1.0], [5.0], [6.0]])
        >>> nearest_mean_right(features, torch.tensor([0, 0, 1, 1]))
        tensor([True, True, True, True])
    """
    samples = prepare(features, target)
    first = first_pass(samples)
    check_finite(first.mean, samples)
    x, means = samples.features.detach().double() - first.origin, first.mean
    right = torch.empty(len(x), dtype=torch.bool, device=x.device)
    for rows in torch.split(torch.arange(len(x), device=x.device), max(1, (1 << 22) // len(means))):
        part, label = x[rows], samples.label[rows]
        distance = torch.cdist(part, means, compute_mode="donot_use_mm_for_euclid_dist")  # (b, K)
        n = samples.count[label]
        own = distance.gather(1, label[:, None]).squeeze(1) * n / (n - 1)  # leaving out moves the mean away by this
        others = distance.scatter(1, label[:, None], float("inf")).amin(1)
        right[rows] = (n > 1) & (own < others)
    return right


def nearest_mean_accuracy(features: Tensor, target: Tensor) -> Tensor:
    """The share of samples for which `nearest_mean_right` holds.

    Args:
        features: (N, d), usually of classes that were not trained on.
        target: (N,) labels.

    Paper: none; Galanti et al. 2022 measure transfer to new classes by the nearest class mean.
    Tests: tests/geometry/test_nearest.py::test_equals_leaving_each_sample_out

    Example:
        >>> nearest_mean_accuracy(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])).item()
        1.0
    """
    return nearest_mean_right(features, target).double().mean()
