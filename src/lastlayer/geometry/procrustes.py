"""Whether two models learned the same geometry: the orthogonal Procrustes distance of class means or classifiers."""

import torch
from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry._inputs import check_classifier, check_features, prepare
from lastlayer.geometry._passes import first_pass, zero_safe_inverse
from lastlayer.geometry.collapse import centre_rows


def equivalence(features_a: Tensor, features_b: Tensor, target: Tensor, *, global_mean: str = "samples") -> Tensor:
    r"""How much the class means of two models differ, up to rotation and scale.

        min over s and orthogonal R of |A - s B R|_F^2 / |A|_F^2 = 1 - (|B'A|_* / (|A|_F |B|_F))^2

    Row k of A is model a's mean of class k minus its global mean, and B is the same for model b. R may be a reflection.
    The narrower of A and B is padded with zero columns. The value is 0 if they are equal up to rotation and scale, and
    1 if they have nothing in common. It is symmetric in a and b. `classifier_equivalence` compares two classifiers.

    Args:
        features_a: (N, d_a) features of one model.
        features_b: (N, d_b) features of the other model for the same N samples; d_b may differ from d_a.
        target: (N,) class labels of any integer dtype.
        global_mean: `"samples"` or `"classes"`, as in `neural_collapse`.

    Degenerate cases: if all class means of a are equal, for example with one class, the result is NaN. If only those of
    b are equal, it is 1.

    Paper: Schönemann 1966; it tests a claim of Zhou et al. 2022.
    Tests: tests/geometry/test_procrustes.py::test_agrees_with_a_search_over_the_plane

    Example:
        >>> target = torch.tensor([0, 1, 2])
        >>> a = torch.eye(3)
        >>> b = torch.tensor([[0.0, 2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -2.0]]) + 7
        >>> round(float(equivalence(a, b, target)), 6)
        0.0
    """
    check_features(features_a, "features_a")
    check_features(features_b, "features_b")
    if len(features_a) != len(features_b):
        raise ValueError(
            f"features_a has {len(features_a)} rows and features_b {len(features_b)}: give both for the same samples"
        )
    with full_precision(features_a):
        centred = []
        for features in (features_a, features_b):
            means = first_pass(prepare(features, target))
            centred.append(means.mean - means.center(global_mean))
        return _procrustes(*centred)


def classifier_equivalence(weight_a: Tensor, weight_b: Tensor) -> Tensor:
    r"""How much two classifiers differ, up to rotation and scale: `equivalence` of their centred rows.

    Args:
        weight_a: (K, d_a) classifier of one model.
        weight_b: (K, d_b) classifier of the other model, with the classes in the same order.

    Degenerate cases: if all rows of weight_a are equal, the result is NaN. If only those of weight_b are, it is 1.

    Paper: as in `equivalence`; Schönemann 1966.
    Tests: tests/geometry/test_procrustes.py::test_classifiers_are_compared_like_class_means

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        >>> round(float(classifier_equivalence(weight, 3 * weight.flip(1))), 6)
        0.0
    """
    for name, weight in (("weight_a", weight_a), ("weight_b", weight_b)):
        check_features(weight, name)
        check_classifier(weight, None, weight.shape[1])
    if len(weight_a) != len(weight_b) or len(weight_a) == 0:
        raise ValueError(
            f"weight_a has {len(weight_a)} rows and weight_b {len(weight_b)}: give one row per class in both"
        )
    with full_precision(weight_a):
        return _procrustes(*(centre_rows(weight.to(torch.float64)) for weight in (weight_a, weight_b)))


def _procrustes(a: Tensor, b: Tensor) -> Tensor:
    if len(a) < 2:
        return a.new_tensor(torch.nan)
    a, b = _within_span(a), _within_span(b)
    norm_a, norm_b = torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(b)
    # Scale each by its own norm first, because the product of the norms can underflow or overflow.
    overlap = torch.linalg.svdvals((b * zero_safe_inverse(norm_b)).T @ (a * zero_safe_inverse(norm_a))).sum()
    distance = (1 - overlap.square()).clamp(min=0)
    return torch.where(norm_a > 0, distance, torch.nan)


def _within_span(matrix: Tensor) -> Tensor:
    """The rows in coordinates of their span, if that is smaller: (K, d) becomes (K, min(K, d)).

    The gradient treats the basis of the span as constant. Rotating it changes no inner product, and a step out of the
    span changes the distance only in second order.
    """
    if matrix.shape[0] >= matrix.shape[1]:
        return matrix
    basis: Tensor = torch.linalg.qr(matrix.detach().T).Q  # (d, K)
    return matrix @ basis
