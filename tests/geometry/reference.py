"""The measures written again, plainly: float64, loops over classes, all pairs of samples, explicit inverses."""

import torch
from torch import Tensor

from lastlayer.geometry import GeometryMetrics


def class_means(features: Tensor, target: Tensor) -> tuple[list[int], Tensor]:
    features = features.double()
    labels = sorted({int(label) for label in target})
    return labels, torch.stack([features[target == label].mean(dim=0) for label in labels])


def global_mean(features: Tensor, target: Tensor, how: str = "samples") -> Tensor:
    return features.double().mean(dim=0) if how == "samples" else class_means(features, target)[1].mean(dim=0)


def nc1(features: Tensor, target: Tensor, how: str = "samples") -> Tensor:
    """tr(S_W S_B^+) / K with S_B^+ from the eigenvalues of the K x K Gram matrix, which has the same non-zero ones."""
    labels, means = class_means(features, target)
    centred = means - global_mean(features, target, how)
    size = len(labels)
    values, vectors = torch.linalg.eigh(centred @ centred.T / size)
    within = torch.zeros((), dtype=torch.float64)
    directions = [
        (value, centred.T @ vector / (size * value).sqrt())
        for value, vector in zip(values, vectors.T, strict=True)
        if value > 1e-10 * values[-1]
    ]
    for label, mean in zip(labels, means, strict=True):
        residual = features[target == label].double() - mean
        within += sum((residual @ direction).square().sum() / value for value, direction in directions)
    return within / len(features) / size


def to_simplex(gram: Tensor) -> Tensor:
    size = len(gram)
    simplex = (torch.eye(size, dtype=torch.float64) - torch.full((size, size), 1 / size, dtype=torch.float64)) / (
        size - 1
    ) ** 0.5
    return ((gram / gram.square().sum().sqrt() - simplex) ** 2).sum().sqrt()


def nc2(features: Tensor, target: Tensor, weight: Tensor, center_weight: bool = False) -> Tensor:
    weight = weight.double()[class_means(features, target)[0]]
    weight = weight - weight.mean(dim=0) if center_weight else weight
    return to_simplex(weight @ weight.T)


def nc3(features: Tensor, target: Tensor, weight: Tensor, center_weight: bool = False, how: str = "samples") -> Tensor:
    labels, means = class_means(features, target)
    weight = weight.double()[labels]
    weight = weight - weight.mean(dim=0) if center_weight else weight
    return to_simplex(weight @ (means - global_mean(features, target, how)).T)


def nc4(features: Tensor, target: Tensor, weight: Tensor, bias: Tensor | None = None) -> float:
    labels, means = class_means(features, target)
    differ = 0
    for row in features.double():
        logits = weight.double()[labels] @ row + (0 if bias is None else bias.double()[labels])
        differ += int(logits.argmax()) != int((means - row).norm(dim=1).argmin())
    return differ / len(features)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm())) if a.norm() > 0 and b.norm() > 0 else 0.0


def cosine_table(features: Tensor, target: Tensor, center: bool = True, self_pairs: bool = True) -> Tensor:
    """Average cosine over every pair of samples of every two classes, one pair at a time."""
    labels, _ = class_means(features, target)
    features = features.double() - (global_mean(features, target) if center else 0)
    groups = [features[target == label] for label in labels]
    table = torch.zeros(len(labels), len(labels), dtype=torch.float64)
    for i, first in enumerate(groups):
        for j, second in enumerate(groups):
            pairs = [
                cosine(a, b)
                for m, a in enumerate(first)
                for n, b in enumerate(second)
                if i != j or self_pairs or m != n
            ]
            table[i, j] = sum(pairs) / len(pairs) if pairs else torch.nan
    return table


def off_diagonal(table: Tensor) -> Tensor:
    return table[~torch.eye(len(table), dtype=torch.bool)]


def compactness(features: Tensor, target: Tensor) -> Tensor:
    return (1 + cosine_table(features, target).diagonal().mean()) / 2


def separability(features: Tensor, target: Tensor) -> Tensor:
    return (1 - off_diagonal(cosine_table(features, target, center=False)).mean()) / 2


def self_duality(features: Tensor, target: Tensor, weight: Tensor, how: str = "samples") -> Tensor:
    labels, means = class_means(features, target)
    rows = weight.double()[labels]
    centred = means - global_mean(features, target, how)
    return torch.tensor(
        [cosine(w, m) for w, m in zip(rows - rows.mean(dim=0), centred, strict=True)], dtype=torch.float64
    )


def intra_inter_ratio(features: Tensor, target: Tensor) -> float:
    labels, means = class_means(features, target)
    own = [(row - means[labels.index(int(label))]).norm() for row, label in zip(features.double(), target, strict=True)]
    pairs = [(a - b).norm() for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
    return float(torch.stack(own).mean() / torch.stack(pairs).mean())


def class_distance_variance(features: Tensor, target: Tensor) -> float:
    labels, means = class_means(features, target)
    variance = [
        (features[target == label].double() - mean).square().sum(dim=1).mean()
        for label, mean in zip(labels, means, strict=True)
    ]
    terms = [
        (variance[i] + variance[j]) / (2 * (means[i] - means[j]).square().sum())
        for j in range(len(labels))
        for i in range(j)
    ]
    return float(torch.stack(terms).mean())


def clusters(
    samples: int, classes: int, dim: int, *, within: float = 0.5, offset: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Float32 features scattered about random class means, unbalanced, at a common offset."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.cat([torch.arange(classes), torch.randint(classes, (samples - classes,), generator=generator)])
    means = torch.randn(classes, dim, generator=generator)
    shift = torch.nn.functional.normalize(torch.randn(dim, generator=generator), dim=0) * offset * dim**0.5
    noise = within * torch.randn(samples, dim, generator=generator)
    return (means[target].double() + noise.double() + shift.double()).float(), target


def streamed(features, target, weight=None, bias=None, *, batch=7, classes=None, refine=True, **options):
    """A GeometryMetrics that has seen the samples in batches, and by default in both passes."""
    metrics = GeometryMetrics(classes or int(target.max()) + 1, features.shape[1], **options)
    for rows, labels in zip(features.split(batch), target.split(batch), strict=True):
        metrics.update(rows, labels)
    if refine:
        for rows, labels in zip(features.split(batch + 3), target.split(batch + 3), strict=True):
            metrics.refine(rows, labels, weight, bias)
    return metrics


def assert_same(got, expected, rtol=1e-12, atol=1e-14, names=None):
    for name in names or expected.__dataclass_fields__:
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=rtol, atol=atol, msg=name)
