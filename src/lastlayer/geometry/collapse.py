"""Neural collapse: the measures NC1 to NC4, and how well classifier and class means agree."""

from dataclasses import dataclass

from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry import _formulas
from lastlayer.geometry._inputs import prepare, select_classifier
from lastlayer.geometry._passes import first_pass, second_pass


@dataclass(frozen=True)
class NeuralCollapse:
    """Float64 scalars that are all 0 at neural collapse. Without a weight, nc2, nc3 and nc4 are None."""

    nc1: Tensor
    nc2: Tensor | None
    nc3: Tensor | None
    nc4: Tensor | None


def neural_collapse(
    features: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    center_weight: bool = False,
    global_mean: str = "samples",
) -> NeuralCollapse:
    r"""How far features and classifier are from neural collapse, in the four measures NC1 to NC4.

    With class means h_k, global mean h_G, J = 11'/K and K the number of classes present:

        NC1 = tr(S_W S_B^+) / K,  S_W = 1/N \sum (h - h_y)(h - h_y)',  S_B = 1/K \sum_k (h_k - h_G)(h_k - h_G)'
        NC2 = || W W' / |W W'|_F - (I - J) / sqrt(K - 1) ||_F
        NC3 = || W M' / |W M'|_F - (I - J) / sqrt(K - 1) ||_F,  row k of M is h_k - h_G
        NC4 = share of samples where argmax(W h + b) is not the class with the nearest mean

    NC1 is computed as 1/N \sum |diag(1/s) V'(h - h_y)|^2 with M = U diag(s) V'. Singular values below 1e-5 of the
    largest (1e-10 of the largest eigenvalue of S_B) count as zero. Sums are in float64. The relative error is 1e-5 or
    less at any degree of collapse and for any common offset of the features. There is one exception: float64 features
    that spread less than 1e-13 of their size are too collapsed for float64 sums.

    Args:
        features: (N, d), float16, bfloat16, float32 or float64.
        target: (N,) class labels of any integer dtype. Classes without a sample are left out.
        weight: (C, d) classifier with a row for every label. Rows of absent classes are dropped first.
        bias: (C,) bias that is added to the logits. Only NC4 uses it.
        center_weight: whether to subtract the mean row from the weight in NC2 and NC3. The paper of Zhou et al. does
            not; the evaluate.py that its authors published does. Both are 0 at collapse.
        global_mean: with `"samples"`, h_G is the mean over all samples, as in both papers and in the evaluate.py of
            Zhou et al. With `"classes"`, it is the mean of the class means, the default of the public code of
            rhubarbwu/neural-collapse. They differ only for unbalanced data.

    Returns:
        NeuralCollapse with attributes nc1, nc2, nc3, nc4: float64 scalars on the device of the features. nc1 to nc3
        have gradients with respect to features and weight, nc4 has none.

    Degenerate cases: with one sample in every class nc1 is 0. With one class it is NaN. If all class means are equal,
    nc1 is infinite, or NaN if all samples are equal too. If d < K - 1, NC1 uses the d directions that exist, and NC2
    and NC3 cannot reach 0. A zero weight gives NaN in nc2 and nc3. In nc4 the lower label wins a tie. On a GPU the CPU
    waits a few times, to learn the classes and the rank.

    Raises:
        ValueError: for empty input, negative labels, labels beyond the weight, NaN or infinite values, wrong shapes,
            or float64 features that are all below 1e-140 or not all below 1e140.
        TypeError: for features that are not floating point or labels that are not integers.

    Paper: Papyan et al. 2020; Zhou et al. 2022, section 4.
    Tests: tests/geometry/test_collapse.py::test_agrees_with_reference

    Example:
        >>> import torch
        >>> from lastlayer.geometry import neural_collapse
        >>> means = torch.eye(3)
        >>> target = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> result = neural_collapse(means[target], target, weight=means - 1 / 3)
        >>> [round(float(value), 6) for value in (result.nc1, result.nc2, result.nc3, result.nc4)]
        [0.0, 0.0, 0.0, 0.0]
    """
    with full_precision(features):
        samples = prepare(features, target)
        classifier = None if weight is None else select_classifier(weight, bias, samples)
        means = first_pass(samples)
        centred = means.mean - means.center(global_mean)
        spread = second_pass(samples, means, whitener=_formulas.whitening(centred), classifier=classifier)
        assert spread.energy is not None
        nc1 = _formulas.nc1(spread.energy, centred, spread.square, means.count.sum())
        if classifier is None:
            return NeuralCollapse(nc1, None, None, None)
        rows = _formulas.centre_rows(classifier[0]) if center_weight else classifier[0]
        assert spread.disagreements is not None
        return NeuralCollapse(
            nc1, _formulas.nc2(rows), _formulas.nc3(rows, centred), spread.disagreements / len(features)
        )


def self_duality(features: Tensor, target: Tensor, weight: Tensor, *, global_mean: str = "samples") -> Tensor:
    r"""The cosine between each class's centred weight row and its centred class mean. It is 1 at neural collapse.

        cos(w_k - \bar w, h_k - h_G)

    where \bar w is the mean row over the classes present.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.
        weight: (C, d) classifier. Rows of absent classes are dropped before centring.
        global_mean: `"samples"` or `"classes"`, as in `neural_collapse`.

    Returns:
        (K,) float64 tensor, one value per class present, in ascending order of label. Differentiable.

    Degenerate cases: if the centred mean or the centred weight row of a class is zero, the cosine and its gradient
    are 0. With a single class that is always so.

    Raises:
        ValueError, TypeError: as in `neural_collapse`.

    Paper: Pan and Cao 2023, section 2.2.
    Tests: tests/geometry/test_summary.py::test_measure_agrees_with_references

    Example:
        >>> import torch
        >>> from lastlayer.geometry import self_duality
        >>> means = torch.eye(3)
        >>> target = torch.tensor([0, 1, 2, 0, 1, 2])
        >>> self_duality(means[target] + 5, target, weight=2 * means).round(decimals=6)
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    with full_precision(features):
        samples = prepare(features, target)
        rows, _ = select_classifier(weight, None, samples)
        means = first_pass(samples)
        return _formulas.row_cosines(_formulas.centre_rows(rows), means.mean - means.center(global_mean))
