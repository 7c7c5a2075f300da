"""The one list of measures: the name of each, which direction is better, what it needs, and who defined it.

Tables, pages and commands take their columns from `MEASURES` and their values from `evaluate`. So a measure has the
same name, digits and direction everywhere.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lastlayer import geometry, tasks
from lastlayer._core.unit import unit
from lastlayer.tasks.inputs import check_bias, check_matrix, check_probabilities, row_blocks

Direction = Literal["higher", "lower"]

SLN = "From Minor Adjustment to Major Gains: Soft Logit Normalization"
EQUAL = "Are All Losses Created Equal: A Neural Collapse Perspective"
PRINCIPLE = "The Principle of Logit Separation"
SCALING = "Classification vs. Deep Feature Learning in Normalized Spaces with Different Scaling"
BATCH_NORM = "Towards Understanding Neural Collapse: The Effects of Batch Normalization and Weight Decay"
TRANSFER = "On the Role of Neural Collapse in Transfer Learning"
CALIBRATION = "On Calibration of Modern Neural Networks"
FORECASTS = "Verification of Forecasts Expressed in Terms of Probability"
NONE = "none"
GLUE = "GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding"

INPUTS = {
    "features": "(N, d) the features that the classifier's weight multiplies",
    "target": "(N,) labels",
    "weight": "(K, d) classifier",
    "bias": "(K,) bias that is added to the logits",
    "logits": "(N, K); computed from features, weight and bias if not given",
    "probabilities": "(N, K) the probabilities that the model predicts",
    "posterior": "(N, K) probabilities that sum to 1, if those of the model do not",
    "single": "(N, K) the probability of each class that its logit states by itself",
    "unknown_logits": "(M, K) logits of samples from classes not trained on",
    "unknown_probabilities": "(M, K) the probabilities that the model predicts for those samples",
    "unknown_features": "(M, d) features of samples from classes not trained on",
    "unknown_target": "(M,) the labels of those samples, in any numbering",
    "train_counts": "(K,) number of training samples of each class",
    "gamma": "(d,) weight of the batch norm that makes the features",
    "other_features": "(N, d') features of another model on the same samples",
    "other_weight": "(K, d') classifier of another model",
}


@dataclass(frozen=True)
class Measure:
    """One measure: a single number that describes a trained last layer."""

    name: str
    title: str  # the heading of its column in tables
    meaning: str
    direction: Direction | None  # which direction is better or more collapsed; None if neither is
    needs: tuple[str, ...]  # the inputs that it needs, as names in INPUTS
    paper: str
    format: str = ".4f"

    def text(self, value: float) -> str:
        """The value as tables show it. Zeros at the end are kept, so that a spread can have as many decimals."""
        return format(value, f"#{self.format}").removesuffix(".")

    @property
    def plain(self) -> str:
        """The name in plain words, for readers who do not know the papers' symbols."""
        return _PLAIN.get(self.name, self.title)

    @property
    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value that the measure can have."""
        return next((limits for limits, names in _LIMITS.items() if self.name in names), (-math.inf, math.inf))


_PLAIN = {
    "unbiased_accuracy": "accuracy without the bias",
    "matthews": "correlation of label and decision",
    "top5": "label among the top five",
    "nc1": "spread within classes",
    "nc2": "uneven angles of the classifier",
    "nc3": "mismatch of classifier and means",
    "nc4": "mismatch with the nearest mean",
    "intra_mean": "likeness within classes",
    "intra_min": "likeness within the worst class",
    "inter_mean": "likeness between classes",
    "inter_max": "likeness of the closest classes",
    "uncentered_intra_mean": "likeness within classes, not centred",
    "uncentered_intra_min": "likeness within the worst class, not centred",
    "uncentered_inter_mean": "likeness between classes, not centred",
    "uncentered_inter_max": "likeness of the closest classes, not centred",
    "self_duality_mean": "likeness of classifier and means",
    "self_duality_min": "likeness of classifier and the worst mean",
    "collapse_gap": "distance from full collapse",
    "compactness": "compactness of classes",
    "separability": "separation of classes",
    "intra_inter_ratio": "distance within to between classes",
    "class_distance_variance": "variance within to distance between",
    "auprc": "precision of a single logit",
    "precision_at_90": "single-logit precision at recall 0.90",
    "precision_at_99": "single-logit precision at recall 0.99",
    "logit_gap": "smallest true minus largest false logit",
    "violation_rate": "false logits above true ones",
    "separated_classes": "classes that one threshold separates",
    "worst_class_gap": "gap of the worst separated class",
    "log_partition_mean": "mean of the log normaliser",
    "log_partition_std": "spread of the log normaliser",
    "logit_difference": "margin of the true logit",
    "logit_difference_50": "margin of the true logit, exponent 0.5",
    "logit_difference_100": "margin of the true logit, exponent 1",
    "positive_mean": "mean score of the label",
    "positive_std": "spread of the label's score",
    "negative_mean": "mean score of other classes",
    "negative_std": "spread of other classes' scores",
    "bias_mean": "mean bias",
    "bias_std": "spread of the bias",
    "condition_one": "samples above their negatives",
    "condition_two": "samples split by zero",
    "probability_auprc": "precision of a single probability",
    "probability_precision_at_90": "single-probability precision at recall 0.90",
    "probability_precision_at_99": "single-probability precision at recall 0.99",
    "ece": "calibration error",
    "nll": "log-loss",
    "brier": "squared error of probabilities",
    "auroc": "unknown classes told apart",
    "oscr": "open-set score",
    "probability_auroc": "unknown classes told apart by probability",
    "probability_oscr": "open-set score by probability",
    "many": "accuracy of frequent classes",
    "medium": "accuracy of medium classes",
    "few": "accuracy of rare classes",
    "nearest_mean": "accuracy on new classes",
}
_LIMITS = {
    (0.0, 1.0): {
        "accuracy", "unbiased_accuracy", "balanced_accuracy", "macro_f1", "top5", "f1", "nc4", "separability", "auprc",
        "precision_at_90", "precision_at_99", "violation_rate", "separated_classes", "condition_one", "condition_two",
        "probability_auprc", "probability_precision_at_90", "probability_precision_at_99", "ece", "auroc", "oscr",
        "probability_auroc", "probability_oscr", "many", "medium", "few", "nearest_mean", "equivalence",
        "classifier_equivalence",
    },
    (0.5, 1.0): {"compactness"},
    (-1.0, 1.0): {
        "matthews", "intra_mean", "intra_min", "inter_mean", "inter_max", "uncentered_intra_mean",
        "uncentered_intra_min", "uncentered_inter_mean", "uncentered_inter_max", "self_duality_mean",
        "self_duality_min",
    },
    (0.0, 2.0): {"brier"},
    (0.0, math.inf): {
        "nc1", "nc2", "nc3", "collapse_gap", "intra_inter_ratio", "class_distance_variance", "nll",
        "log_partition_std", "positive_std", "negative_std", "bias_std", "feature_norm", "weight_norm", "gamma_norm",
        "seconds",
    },
}  # fmt: skip

_X, _XW = ("features", "target"), ("features", "target", "weight")
_Z, _ZB = ("logits", "target"), ("logits", "target", "bias")
_P, _PU = ("probabilities", "target"), ("probabilities", "target", "unknown_probabilities")
_PP, _S = ("probabilities", "target", "posterior"), ("single", "target")
_ZU, _ZT = ("logits", "target", "unknown_logits"), ("logits", "target", "train_counts")
_U = ("unknown_features", "unknown_target")
_XX, _WW = ("features", "other_features", "target"), ("weight", "other_weight")

_ALL = [
    Measure("accuracy", "accuracy", "share of samples whose largest logit is the label's", "higher", _Z, SCALING),
    Measure("balanced_accuracy", "balanced accuracy", "mean over classes of the accuracy on each", "higher", _Z, NONE),
    Measure("macro_f1", "macro-F1", "mean over classes of F1", "higher", _Z, NONE),
    Measure("top5", "top-5", "share of samples whose label is among the five largest logits", "higher", _Z, NONE),
    Measure("unbiased_accuracy", "accuracy*", "accuracy of the logits without their bias", "higher", _ZB, SCALING),
    Measure("matthews", "MCC", "Matthews' correlation of label and decision, all classes", "higher", _Z, GLUE),
    Measure("f1", "F1", "F1 of the second of two classes", "higher", _Z, GLUE),
    Measure("nc1", "NC1", "spread within classes relative to that between them", "lower", _X, EQUAL, ".3g"),
    Measure("nc2", "NC2", "distance of the classifier from a simplex frame", "lower", _XW, EQUAL, ".3g"),
    Measure("nc3", "NC3", "distance of classifier times class means from a simplex", "lower", _XW, EQUAL, ".3g"),
    Measure("nc4", "NC4", "share of samples not decided as by the nearest class mean", "lower", _XW, EQUAL),
    Measure("intra_mean", "intra mean", "mean cosine of centred features of one class", "higher", _X, BATCH_NORM),
    Measure("intra_min", "intra min", "mean cosine of centred features, worst class", "higher", _X, BATCH_NORM),
    Measure("inter_mean", "inter mean", "mean cosine of centred features of two classes", "lower", _X, BATCH_NORM),
    Measure("inter_max", "inter max", "mean cosine of centred features, worst pair", "lower", _X, BATCH_NORM),
    Measure("uncentered_intra_mean", "intra mean, raw", "intra mean without centring", "higher", _X, BATCH_NORM),
    Measure("uncentered_intra_min", "intra min, raw", "intra min without centring", "higher", _X, BATCH_NORM),
    Measure("uncentered_inter_mean", "inter mean, raw", "inter mean without centring", "lower", _X, BATCH_NORM),
    Measure("uncentered_inter_max", "inter max, raw", "inter max without centring", "lower", _X, BATCH_NORM),
    Measure("self_duality_mean", "duality mean", "mean cosine of classifier and class mean", "higher", _XW, BATCH_NORM),
    Measure("self_duality_min", "duality min", "smallest cosine of classifier and mean", "higher", _XW, BATCH_NORM),
    Measure("collapse_gap", "collapse gap", "worst cosine of sample and classifier", "lower", _XW, SCALING, ".3g"),
    Measure("compactness", "E_com", "compactness of centred directions within classes", "higher", _X, SCALING),
    Measure("separability", "E_sep", "separation of the classes' mean directions", "higher", _X, SCALING),
    Measure("intra_inter_ratio", "intra/inter", "distance to class mean over that between means", "lower", _X, SLN),
    Measure("class_distance_variance", "CDNV", "variance over squared distance of means", "lower", _X, TRANSFER, ".3g"),
    Measure("feature_norm", "feature norm", "quadratic mean norm of features", None, ("features",), BATCH_NORM, ".4g"),
    Measure("weight_norm", "weight norm", "quadratic mean norm of weight rows", None, ("weight",), BATCH_NORM, ".4g"),
    Measure("gamma_norm", "gamma norm", "norm of batch norm's weight", None, ("gamma",), BATCH_NORM, ".4g"),
    Measure("auprc", "AUPRC", "average precision of each logit alone, mean over classes", "higher", _Z, PRINCIPLE),
    Measure("precision_at_90", "P@R90", "best precision of a logit alone at recall 0.9", "higher", _Z, PRINCIPLE),
    Measure("precision_at_99", "P@R99", "best precision of a logit alone at recall 0.99", "higher", _Z, PRINCIPLE),
    Measure("logit_gap", "logit gap", "smallest true minus largest false logit", "higher", _Z, PRINCIPLE, ".4g"),
    Measure("separated_classes", "separated", "share of classes that one threshold separates", "higher", _Z, PRINCIPLE),
    Measure("worst_class_gap", "worst class gap", "smallest gap of one class's logit", "higher", _Z, PRINCIPLE, ".4g"),
    Measure("violation_rate", "violations", "share of pairs with false logit >= true", "lower", _Z, PRINCIPLE, ".2g"),
    Measure("log_partition_mean", "log Z mean", "mean of log sum exp", None, ("logits",), PRINCIPLE, ".4g"),
    Measure("log_partition_std", "log Z std", "spread of log sum exp", "lower", ("logits",), PRINCIPLE, ".4g"),
    Measure("logit_difference", "logit difference", "true minus others over norm^0.7, mean", "higher", _Z, SLN, ".4g"),
    Measure("logit_difference_50", "logit difference, 0.5", "true minus rest over norm^0.5", "higher", _Z, SLN, ".4g"),
    Measure("logit_difference_100", "logit difference, 1", "true minus rest over the norm", "higher", _Z, SLN, ".4g"),
    Measure("positive_mean", "s+ mean", "mean score of the label, no bias", None, _ZB, SCALING, ".4g"),
    Measure("positive_std", "s+ std", "spread of the label's score, no bias", "lower", _ZB, SCALING, ".4g"),
    Measure("negative_mean", "s- mean", "mean score of the other classes, no bias", None, _ZB, SCALING, ".4g"),
    Measure("negative_std", "s- std", "spread of other classes' scores, no bias", "lower", _ZB, SCALING, ".4g"),
    Measure("bias_mean", "bias mean", "mean over classes of the bias, as added", None, _ZB, SCALING, ".4g"),
    Measure("bias_std", "bias std", "spread over classes of the bias", None, _ZB, SCALING, ".4g"),
    Measure("condition_one", "condition I", "share of samples above their negatives, no bias", "higher", _ZB, SCALING),
    Measure("condition_two", "condition II", "share of samples split by zero, no bias", "higher", _ZB, SCALING),
    Measure("probability_auprc", "AUPRC of p", "average precision of each probability", "higher", _P, PRINCIPLE),
    Measure("probability_precision_at_90", "P@R90 of p", "precision of p at recall 0.9", "higher", _P, PRINCIPLE),
    Measure("probability_precision_at_99", "P@R99 of p", "precision of p at recall 0.99", "higher", _P, PRINCIPLE),
    Measure("ece", "ECE", "expected calibration error, 15 bins of the top probability", "lower", _P, CALIBRATION),
    Measure("nll", "NLL", "minus log of the label's probability", "lower", _P, CALIBRATION),
    Measure("brier", "Brier", "squared error of the probabilities, summed over classes", "lower", _P, FORECASTS),
    Measure("probability_ece", "ECE of p", "ECE of probabilities that do not sum to 1", "lower", _PP, CALIBRATION),
    Measure("probability_nll", "NLL of p", "NLL of probabilities that do not sum to 1", "lower", _PP, CALIBRATION),
    Measure("probability_brier", "Brier of p", "Brier of probabilities that do not sum to 1", "lower", _PP, FORECASTS),
    Measure("single_ece", "ECE of one logit", "calibration error of what one logit states", "lower", _S, CALIBRATION),
    Measure("auroc", "AUROC", "chance that a known sample outscores an unknown one", "higher", _ZU, SCALING),
    Measure("oscr", "OSCR", "AUROC with wrongly classified samples lost", "higher", _ZU, SCALING),
    Measure("probability_auroc", "AUROC of p", "AUROC by the largest probability", "higher", _PU, SCALING),
    Measure("probability_oscr", "OSCR of p", "OSCR by the largest probability", "higher", _PU, SCALING),
    Measure("nearest_mean", "nearest mean", "accuracy of the nearest mean on new classes", "higher", _U, TRANSFER),
    Measure("many", "many", "mean accuracy of classes with over 100 training samples", "higher", _ZT, SCALING),
    Measure("medium", "medium", "mean accuracy of classes with 20 to 100 training samples", "higher", _ZT, SCALING),
    Measure("few", "few", "mean accuracy of classes with fewer than 20 training samples", "higher", _ZT, SCALING),
    Measure("equivalence", "equivalence", "two models' means up to rotation and scale", "lower", _XX, EQUAL, ".3g"),
    Measure("classifier_equivalence", "W equivalence", "two W up to rotation and scale", "lower", _WW, EQUAL, ".3g"),
]
MEASURES = {measure.name: measure for measure in _ALL}

Values = Mapping[str, Tensor | None]


def _geometry(features: Tensor, target: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Values:
    result = geometry.measure(features, target, weight, bias)
    values = {name: getattr(result, name) for name in MEASURES if hasattr(result, name)}
    if result.self_duality is not None:
        values["self_duality_mean"], values["self_duality_min"] = result.self_duality.mean(), result.self_duality.min()
    if weight is not None:
        values["collapse_gap"] = tasks.collapse_gap(linear_logits(unit(features), unit(weight)), target)
    return values


def _logits(logits: Tensor, target: Tensor) -> Values:
    single, separation = tasks.single_logit(logits, target), tasks.logit_separation(logits, target)
    found = tasks.per_class(logits.argmax(1), target, logits.shape[1])
    gaps = separation.gap_per_class[~separation.gap_per_class.isnan()]
    return {
        "accuracy": tasks.accuracy(logits, target),
        "balanced_accuracy": found.recall.nanmean(),
        "macro_f1": found.f1.nanmean(),
        "top5": tasks.top_k(logits, target, 5) if logits.shape[1] > 5 else None,
        "matthews": tasks.matthews(logits, target),
        "f1": tasks.f1(logits, target) if logits.shape[1] == 2 else None,
        "auprc": single.auprc,
        "precision_at_90": single.precision_at[0.9],
        "precision_at_99": single.precision_at[0.99],
        "logit_gap": separation.gap,
        "separated_classes": (gaps > 0).double().mean(),
        "worst_class_gap": gaps.min() if len(gaps) else gaps.new_tensor(torch.nan),
        "violation_rate": separation.violation_rate,
        "logit_difference": tasks.logit_difference(logits, target, gamma=0.7, reduction="mean"),
        "logit_difference_50": tasks.logit_difference(logits, target, gamma=0.5, reduction="mean"),
        "logit_difference_100": tasks.logit_difference(logits, target, gamma=1.0, reduction="mean"),
    }


def _partition(logits: Tensor) -> Values:
    result = tasks.log_partition(logits)
    return {"log_partition_mean": result.mean, "log_partition_std": result.std}


def _unbiased(logits: Tensor, target: Tensor, bias: Tensor) -> Values:
    check_bias(bias, logits)
    # In half precision the difference would be rounded.
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) - bias.to(logits.device)
    conditions = tasks.critical_conditions(scores, target)
    return {
        **vars(tasks.scores(scores, target)),
        "bias_mean": bias.double().mean(),
        "bias_std": bias.double().std(correction=0),
        "unbiased_accuracy": tasks.accuracy(scores, target),
        "condition_one": conditions.share_one,
        "condition_two": conditions.share_two,
    }


def _probabilities(probabilities: Tensor, target: Tensor) -> Values:
    single = tasks.single_logit(probabilities, target)
    return {
        "probability_auprc": single.auprc,
        "probability_precision_at_90": single.precision_at[0.9],
        "probability_precision_at_99": single.precision_at[0.99],
    }


def _calibration(probabilities: Tensor, target: Tensor, posterior: Tensor | None = None) -> Values:
    """If the probabilities do not sum to 1, the posterior is judged, and the probabilities have names of their own."""
    own = vars(tasks.calibration(probabilities, target))
    if posterior is None:
        return own
    return {
        **vars(tasks.calibration(posterior, target)),
        **{f"probability_{name}": value for name, value in own.items()},
    }


def _open_set(logits: Tensor, target: Tensor, unknown_logits: Tensor) -> Values:
    result = tasks.open_set(logits, target, unknown_logits)
    return {"auroc": result.auroc, "oscr": result.oscr}


def _open_set_by_probability(probabilities: Tensor, target: Tensor, unknown_probabilities: Tensor) -> Values:
    # Checked here, because open_set accepts any scores and calls them logits in its messages.
    check_probabilities(check_matrix(unknown_probabilities, "unknown_probabilities"), "unknown_probabilities")
    if (found := unknown_probabilities.shape[1]) != (wanted := probabilities.shape[1]):
        raise ValueError(f"unknown_probabilities must have the {wanted} columns of probabilities, got {found}")
    result = tasks.open_set(probabilities, target, unknown_probabilities)
    return {"probability_auroc": result.auroc, "probability_oscr": result.oscr}


def _nearest_mean(unknown_features: Tensor, unknown_target: Tensor) -> Values:
    one_class = bool((unknown_target == unknown_target[:1]).all())  # its mean would be the nearest one always
    return {"nearest_mean": None if one_class else geometry.nearest_mean_accuracy(unknown_features, unknown_target)}


def _long_tail(logits: Tensor, target: Tensor, train_counts: Tensor) -> Values:
    result = tasks.long_tail(logits, target, train_counts)
    return {"many": result.many, "medium": result.medium, "few": result.few}


def _equivalence(features: Tensor, other_features: Tensor, target: Tensor) -> Values:
    return {"equivalence": geometry.equivalence(features, other_features, target)}


def _classifier_equivalence(weight: Tensor, other_weight: Tensor) -> Values:
    return {"classifier_equivalence": geometry.classifier_equivalence(weight, other_weight)}


@dataclass(frozen=True)
class _Source:
    """A function that computes several measures in the same passes over the data."""

    values: Callable[..., Values]
    needs: tuple[str, ...]
    takes: tuple[str, ...] = ()  # inputs that it uses if they are given


_SOURCES = [
    _Source(_geometry, _X, takes=("weight", "bias")),
    _Source(lambda features: {"feature_norm": geometry.quadratic_mean_norm(features)}, ("features",)),
    _Source(lambda weight: {"weight_norm": geometry.quadratic_mean_norm(weight)}, ("weight",)),
    _Source(lambda gamma: {"gamma_norm": torch.linalg.vector_norm(gamma, dtype=torch.float64)}, ("gamma",)),
    _Source(_logits, _Z),
    _Source(_partition, ("logits",)),
    _Source(_unbiased, _ZB),
    _Source(_probabilities, _P),
    _Source(_calibration, _P, takes=("posterior",)),
    _Source(lambda single, target: {"single_ece": tasks.single_calibration(single, target)}, _S),
    _Source(_open_set, _ZU),
    _Source(_open_set_by_probability, _PU),
    _Source(_nearest_mean, _U),
    _Source(_long_tail, _ZT),
    _Source(_equivalence, _XX),
    _Source(_classifier_equivalence, _WW),
]


def register(measure: Measure, value: Callable[..., Tensor]) -> None:
    """Add a measure of your own, so that `evaluate` computes it.

    Args:
        measure: its name, title, direction and what it needs.
        value: is called with the tensors that the measure needs, by their names in `INPUTS`. Returns a scalar.

    Raises:
        ValueError: if there is a measure of that name.
    """
    if measure.name in MEASURES:
        raise ValueError(f"measure {measure.name!r} is registered twice")
    MEASURES[measure.name] = measure
    _SOURCES.append(_Source(lambda **tensors: {measure.name: value(**tensors)}, measure.needs))


def linear_logits(features: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """features weight^T + bias. Multiplied in float64, so that no setting of the backend, such as TF32, adds error.

    Args:
        features: (N, d).
        weight: (K, d).
        bias: (K,), which is added.

    Returns:
        (N, K) in float32, or float64 if an argument is.

    Raises:
        ValueError: for shapes that do not fit together.

    Paper: none, the standard layer.
    Tests: tests/test_measures.py::test_logits_follow_from_the_classifier_in_full_precision
    """
    if features.dim() != 2 or weight.dim() != 2 or features.shape[1] != weight.shape[1]:
        shapes = f"{tuple(features.shape)} and {tuple(weight.shape)}"
        raise ValueError(f"features (N, d) and weight (K, d) must have the same number of columns, got {shapes}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), one per row of weight, got {tuple(bias.shape)}")
    dtype = torch.promote_types(torch.promote_types(features.dtype, weight.dtype), torch.float32)
    matrix, shift = weight.double().T, 0.0 if bias is None else bias.double()
    logits = torch.empty(features.shape[0], weight.shape[0], dtype=dtype, device=features.device)
    for rows in row_blocks(logits):
        logits[rows] = features[rows].double() @ matrix + shift
    return logits


def evaluate(**tensors: Tensor | None) -> dict[str, float]:
    """Compute every measure that the given tensors allow, and read the tensors as few times as possible.

    Args:
        tensors: inputs under the names in `INPUTS`. None means not given. They may come from any split of the data. If
            logits are not given, they are computed from features, weight and bias.

    Returns:
        Values by name, in the order of `MEASURES`. If a measure is undefined for the data, its value is NaN.

    Raises:
        TypeError: for a name that is not in `INPUTS`.
        ValueError, TypeError: as in the functions that compute the measures.

    Example:
        >>> target = torch.tensor([0, 0, 1, 1, 2, 2])
        >>> values = evaluate(features=torch.eye(3)[target], target=target, weight=torch.eye(3))
        >>> values["nc1"], values["accuracy"], round(values["intra_mean"], 6)
        (0.0, 1.0, 1.0)
    """
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if unknown := sorted(given.keys() - INPUTS.keys()):
        raise TypeError(f"no measure takes {', '.join(unknown)}; inputs are {', '.join(INPUTS)}")
    if "logits" not in given and {"features", "weight"} <= given.keys():
        given["logits"] = linear_logits(given["features"], given["weight"], given.get("bias"))
    values: dict[str, Tensor | None] = {}
    for source in _SOURCES:
        if given.keys() >= set(source.needs):
            values |= source.values(**{name: given[name] for name in (*source.needs, *source.takes) if name in given})
    return {name: float(value) for name in MEASURES if (value := values.get(name)) is not None}
