"""Neural collapse: NC1 to NC4, and the duality of classifier and class means."""

from dataclasses import dataclass

from torch import Tensor

from lastlayer._core.precision import full_precision
from lastlayer.geometry import _formulas
from lastlayer.geometry._inputs import prepare, select_classifier
from lastlayer.geometry._passes import first_pass, second_pass


@dataclass(frozen=True)
class NeuralCollapse:
    """Float64 tensors without dimensions, all 0 at neural collapse; nc2, nc3 and nc4 are None without a weight."""

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

    NC1 is computed as 1/N \sum |diag(1/s) V'(h - h_y)|^2 with M = U diag(s) V'; singular values below 1e-5 of the
    largest (1e-10 of the largest eigenvalue of S_B) count as zero. Sums are float64, and the result is exact to
    1e-5 relative or better at any degree of collapse and for any common offset of the features; float64 features may
    be so collapsed that float64 sums no longer suffice, where they spread less than 1e-13 of their size.

    Args:
        features: (N, d), float16, bfloat16, float32 or float64.
        target: (N,) class labels of any integer dtype. Classes without a sample are left out.
        weight: (C, d) classifier with a row for every label; rows of absent classes are dropped before anything else.
        bias: (C,) bias that is added to the logits; it enters NC4 only.
        center_weight: subtract the mean row from the weight in NC2 and NC3. The paper of Zhou et al. does not; the
            evaluate.py that its authors published does. Both are 0 at collapse.
        global_mean: `"samples"`: h_G is the mean over all samples, as in both papers and in the evaluate.py of Zhou
            et al.; `"classes"`: over class means with equal weight, the default of the public code of
            rhubarbwu/neural-collapse. They differ for unbalanced data only.

    Returns:
        NeuralCollapse with attributes nc1, nc2, nc3, nc4: float64 tensors without dimensions, on the device of the
        features. nc1 to nc3 have gradients with respect to features and weight, nc4 has none.

    Degenerate cases: one sample in every class gives nc1 = 0. One class gives NaN. If all class means coincide, nc1 is
    infinite, or NaN if all samples coincide too. If d < K - 1, NC1 uses the d directions there are, and NC2 and NC3
    cannot reach 0. A zero weight gives NaN in nc2 and nc3. On a tie the lower label decides in nc4. Finding the classes
    and the rank makes a few host synchronisations on a GPU.

    Raises:
        ValueError: for empty input, negative labels, labels beyond the weight, NaN or infinite values, float64 features
            that are all below 1e-140 or have one above 1e140, wrong shapes.
        TypeError: for features that are not floating point or labels that are not integers.

    References:
        Papyan, Han, Donoho (2020), Prevalence of neural collapse during the terminal phase of deep learning training;
        Zhou et al. (2022), Are all losses created equal: a neural collapse perspective.

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
    r"""Cosine of each class's centred weight row and its centred class mean: 1 for all classes at neural collapse.

        cos(w_k - \bar w, h_k - h_G)

    with \bar w the mean row over the classes present.

    Args:
        features: (N, d).
        target: (N,) class labels of any integer dtype.
        weight: (C, d) classifier; rows of absent classes are dropped before centring.
        global_mean: `"samples"` or `"classes"`, as in `neural_collapse`.

    Returns:
        (K,) float64 tensor over the classes present in ascending order of label; differentiable.

    Degenerate cases: a class whose centred mean or centred weight row is zero has cosine 0, and gradient 0; with one
    class that is always so.

    Raises:
        ValueError, TypeError: as `neural_collapse`.

    References:
        Pan, Cao (2023), Towards understanding neural collapse: the effects of batch normalization and weight decay.

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
