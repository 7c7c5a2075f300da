"""The geometry of features over batches and ranks, as a torchmetrics Metric."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric

from lastlayer._core.labels import check_classes, read_labels
from lastlayer._core.precision import full_precision
from lastlayer.geometry import _moments
from lastlayer.geometry._inputs import Samples, check_classifier, check_features
from lastlayer.geometry._passes import Means, second_pass
from lastlayer.geometry.summary import Geometry, summarise


class GeometryMetrics(Metric):
    r"""Every measure of `lastlayer.geometry` over batches and ranks, also after an interruption, with the same result.

    One pass of `update` gives nc1, nc2, nc3, self_duality, separability, the uncentred cosines and
    class_distance_variance. The other measures need the means of all samples first: the centred cosines, compactness,
    intra_inter_ratio and nc4. They take a second pass over the same samples with `refine`, and are None until then. For
    nc4 the classifier must decide about each sample. So give the classifier to `refine`, or to a `compute` between the
    two passes, which remembers it. Without it nc4 stays None. The functions of the same names have the formulas.

    The state is d^2 + 4 K d float64 sums, whatever the number of samples. It can be split over batches and ranks,
    merged, pickled and saved with `state_dict`. Up to rounding, the result is that of one large batch.

    Args:
        num_classes: K; labels are 0..K-1. Classes without a sample are left out of every measure.
        dim: d, the number of columns of the features.
        center_weight, global_mean: as in `neural_collapse`.
        self_pairs: as in `cosine_collapse`.
        kwargs: options of `torchmetrics.Metric`. Results are not cached: they depend on the arguments of `compute`.

    Across ranks: `compute` gathers the sums of all ranks, and so does the first `refine` after an update. So every rank
    must call `refine` at least once; a rank without samples gives features of shape (0, d). If one rank adds samples
    after a second pass, all ranks must call `update`. Otherwise only some of them would gather again.

    Degenerate cases: as in the functions. `compute` raises if there are no samples.

    Raises:
        ValueError: by `update` and `refine` for wrong shapes and, on a CPU, for labels outside 0..K-1. By `compute` for
            NaN or infinite features, if there are no samples, or if the second pass saw other samples than the first.

    Paper: as in the functions of `lastlayer.geometry`; Chan et al. 1983, for merging sums about different shifts.
    Tests: tests/geometry/test_metrics.py::test_agrees_with_references

    Example:
        >>> target = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> batches = [(torch.eye(3)[part], part) for part in target.split(2)]
        >>> metrics = GeometryMetrics(num_classes=3, dim=3)
        >>> for features, labels in batches:
        ...     metrics.update(features, labels)
        >>> metrics.compute(weight=torch.eye(3) - 1 / 3).nc2 < 1e-6, metrics.compute().compactness
        (tensor(True), None)
        >>> for features, labels in batches:
        ...     metrics.refine(features, labels)
        >>> round(float(metrics.compute().compactness), 6)
        1.0
    """

    is_differentiable = False
    higher_is_better = None
    full_state_update = False

    sums: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        center_weight: bool = False,
        global_mean: str = "samples",
        self_pairs: bool = True,
        **kwargs: Any,
    ) -> None:
        if num_classes < 1 or dim < 1:
            raise ValueError(f"num_classes and dim must be at least 1, got {num_classes} and {dim}")
        if global_mean not in ("samples", "classes"):
            raise ValueError(f'global_mean must be "samples" or "classes", got {global_mean!r}')
        super().__init__(**(kwargs | {"compute_with_cache": False}))
        self.num_classes, self.dim = num_classes, dim
        self.center_weight, self.global_mean, self.self_pairs = center_weight, global_mean, self_pairs
        self._reference: tuple[Tensor, Means] | None = None
        self._classifier: tuple[Tensor, Tensor] | None = None  # weight and bias of all classes
        self.add_state(
            "sums",
            torch.zeros(_moments.size(num_classes, dim), dtype=torch.float64),
            dist_reduce_fx=partial(_moments.merge, num_classes=num_classes, dim=dim),
            persistent=True,
        )

    @property
    def update_called(self) -> bool:
        """Whether there are samples, including those from a state_dict or a merge."""
        return bool(super().update_called or self._parts().count.any())

    def update(self, features: Tensor, target: Tensor) -> None:
        """Add features (N, d) and labels (N,) to the first pass; N may be 0. A second pass made before is dropped."""
        label = self._check(features, target)
        moments = self._parts()
        if self._reference is not None:
            self._reference = None
            moments.drop_second_pass()
        with full_precision(features):
            _moments.add(moments, features.detach(), label)

    @torch.no_grad()
    def refine(
        self, features: Tensor, target: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> None:
        """Add a batch to the second pass, which must see the same samples as the first.

        Args:
            features, target: as in `update`.
            weight, bias: classifier (K, d) and (K,) for nc4, which depends on each sample. By default that of the last
                `compute` or `refine`. Without any, nc4 stays None.
        """
        label = self._check(features, target)
        if weight is not None:
            self._remember(weight, bias)
        if self._reference is None:
            self._reference = self._begin_second_pass()
        present, means = self._reference
        if len(features) == 0:
            return
        position = label.new_zeros(self.num_classes)
        position[present] = torch.arange(len(present), device=label.device)
        classifier = self._classifier and (self._classifier[0][present], self._classifier[1][present])
        with full_precision(features):
            # A class without a mean is counted at position 0. `seen` counts it at its own place, so compute notices.
            samples = Samples(features.detach(), position[label], present, means.count)
            spread = second_pass(samples, means, units=True, classifier=classifier, exact=True)
        assert spread.distance is not None
        assert spread.unit_sum is not None
        assert spread.nonzero is not None
        moments = self._parts()
        moments.seen.index_add_(0, label, torch.ones_like(label, dtype=torch.float64))
        moments.distance.index_add_(0, present, spread.distance)
        moments.centred_nonzero.index_add_(0, present, spread.nonzero)
        moments.centred_unit_sum.index_add_(0, present, spread.unit_sum)
        if spread.disagreements is not None:
            moments.decided.add_(len(features))
            moments.disagreements.add_(spread.disagreements)

    def compute(self, weight: Tensor | None = None, bias: Tensor | None = None) -> Geometry:
        """The measures of all samples so far, on all ranks.

        Args:
            weight: (K, d) classifier; without it nc2, nc3 and self_duality are None.
            bias: (K,) its bias; remembered with the weight for nc4 in `refine`.

        Returns:
            Geometry. nc4 is that of the classifier used in `refine`, and None if there was none.
        """
        moments = self._parts()
        present = moments.count.nonzero().flatten()
        if len(present) == 0:
            raise ValueError("no samples to measure: call update(features, target) before compute")
        self._check_finite(moments)
        rows = None
        if weight is not None:
            rows = self._remember(weight, bias, refined=bool(moments.decided > 0))[present]
        with full_precision(moments.count):
            means = _moments.means(moments, present)
            spread = _moments.spread(moments, present, means.mean - means.center(self.global_mean))
            if torch.equal(moments.reference, moments.count):
                self._check_second_pass(moments)
                spread = _moments.refined(moments, present, spread)
            return summarise(present, means, spread, rows, self.center_weight, self.global_mean, self.self_pairs)

    def reset(self) -> None:
        """Forget all samples, and the classifier."""
        super().reset()
        self._reference = None
        self._classifier = None

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add the samples of another metric. A second pass is kept only if both used the same means for it."""
        if isinstance(incoming_state, GeometryMetrics):
            ours, theirs = (self.num_classes, self.dim), (incoming_state.num_classes, incoming_state.dim)
            if ours != theirs:
                raise ValueError(f"cannot merge a metric of (num_classes, dim) = {theirs} into one of {ours}")
        super().merge_state(incoming_state)
        self._reference = None

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        """Move to a device, but stay in float64: `model.to(torch.bfloat16)` would round the sums of a metric in it."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device)

        if self._reference is not None:
            present, means = self._reference
            parts = {name: move(part) for name, part in vars(means).items() if part is not None}
            self._reference = (move(present), replace(means, **parts))
        if self._classifier is not None:
            self._classifier = (move(self._classifier[0]), move(self._classifier[1]))
        moved: Module = super()._apply(move, exclude_state)
        return moved

    def _parts(self) -> _moments.Moments:
        return _moments.view(self.sums, self.num_classes, self.dim)

    def _check(self, features: Tensor, target: Tensor) -> Tensor:
        check_features(features)
        if features.shape[1] != self.dim:
            raise ValueError(f"features must have dim = {self.dim} columns, got shape {tuple(features.shape)}")
        label = read_labels(target, len(features)).to(features.device)
        # On a GPU the CPU would have to wait, and an index out of range raises by itself.
        if label.device.type == "cpu":
            check_classes(label, self.num_classes)
        return label

    def _remember(self, weight: Tensor, bias: Tensor | None, refined: bool = False) -> Tensor:
        """Keep the classifier in float64 for `refine`, and return its weight."""
        check_classifier(weight, bias, self.dim)
        if len(weight) != self.num_classes:
            raise ValueError(f"weight must have num_classes = {self.num_classes} rows, got {len(weight)}")
        bias = self.sums.new_zeros(len(weight)) if bias is None else bias
        given = (weight.detach().to(self.sums, copy=True), bias.detach().to(self.sums, copy=True))
        if refined and self._classifier is not None and not all(map(torch.equal, given, self._classifier)):
            raise ValueError(
                "compute was given another classifier than refine, whose nc4 would not belong to it: "
                "take the second pass with this classifier, after reset or update"
            )
        self._classifier = given
        return given[0]

    def _begin_second_pass(self) -> tuple[Tensor, Means]:
        """The classes present on all ranks, and their means. A second pass over the same samples continues."""
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute):
            everyone = self._parts()
            self._check_finite(everyone)
            present = everyone.count.nonzero().flatten()
            if len(present) == 0:
                raise ValueError("no class means to refine about: call update(features, target) before refine")
            count = everyone.count.clone()
            means = _moments.means(everyone, present)
        moments = self._parts()
        if not torch.equal(moments.reference, count):
            moments.drop_second_pass()
            moments.reference.copy_(count)
        return present, means

    def _check_finite(self, moments: _moments.Moments) -> None:
        bad = (~torch.isfinite(moments.total).all(dim=1)).nonzero().flatten()
        if len(bad):
            raise ValueError(f"features hold NaN or infinite values, in samples of the labels {bad.tolist()[:10]}")
        if not bool(torch.isfinite(moments.square).all()):
            raise ValueError("features are finite but their squares overflow float64; divide them by a constant first")

    def _check_second_pass(self, moments: _moments.Moments) -> None:
        if not bool(torch.isfinite(moments.distance).all()):
            raise ValueError("features given to refine hold NaN or infinite values, those given to update did not")
        if not torch.equal(moments.seen, moments.count):
            raise ValueError(
                f"refine saw {int(moments.seen.sum())} samples and update {int(moments.count.sum())}, or other labels: "
                "the second pass must go over the same samples, on every rank"
            )
        decided = int(moments.decided)
        if decided not in (0, int(moments.count.sum())):
            raise ValueError(
                f"refine had a classifier for {decided} of {int(moments.count.sum())} samples: give it in every call"
            )

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the result, because torchmetrics writes to the tensors inside, which a frozen dataclass forbids."""
        box = wraps(compute)(lambda *args, **kwargs: SimpleNamespace(value=compute(*args, **kwargs)))
        sealed = super()._wrap_compute(box)
        return wraps(compute)(lambda *args, **kwargs: sealed(*args, **kwargs).value)
