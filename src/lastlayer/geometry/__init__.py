"""Measures of features and classifier: neural collapse, cosines, spreads, and the equivalence of two models.

Every function returns float64 tensors on the device of the features, whatever their precision. It is differentiable
where its formula is. `GeometryMetrics` computes the same measures over batches and ranks. Only this class needs
torchmetrics, which is imported when the class is first used.

Every function raises TypeError if features are not floating point or labels are not integers. It raises ValueError for
empty input, wrong shapes, negative labels, labels beyond the weight, NaN or infinite values, and for float64 features
that are too small or too large to be squared: all below 1e-140, or one above 1e140.
"""

from typing import TYPE_CHECKING, Any

from lastlayer.geometry.collapse import NeuralCollapse, neural_collapse, self_duality
from lastlayer.geometry.cosine import CosineCollapse, compactness, cosine_collapse, separability
from lastlayer.geometry.nearest import nearest_mean_accuracy, nearest_mean_right
from lastlayer.geometry.norms import quadratic_mean_norm
from lastlayer.geometry.procrustes import classifier_equivalence, equivalence
from lastlayer.geometry.spread import class_distance_variance, intra_inter_ratio
from lastlayer.geometry.summary import Geometry, measure

if TYPE_CHECKING:
    from lastlayer.geometry.metrics import GeometryMetrics

__all__ = [
    "CosineCollapse",
    "Geometry",
    "GeometryMetrics",
    "NeuralCollapse",
    "class_distance_variance",
    "classifier_equivalence",
    "compactness",
    "cosine_collapse",
    "equivalence",
    "intra_inter_ratio",
    "measure",
    "nearest_mean_accuracy",
    "nearest_mean_right",
    "neural_collapse",
    "quadratic_mean_norm",
    "self_duality",
    "separability",
]


def __getattr__(name: str) -> Any:
    if name == "GeometryMetrics":
        from lastlayer.geometry.metrics import GeometryMetrics

        return GeometryMetrics
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
