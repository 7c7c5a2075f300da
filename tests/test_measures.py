"""The registry is consistent, and `evaluate` gives what the functions behind each name give."""

import math
import string
import subprocess
import sys

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, matthews_corrcoef, roc_auc_score, top_k_accuracy_score

from lastlayer import geometry, tasks
from lastlayer.measures import INPUTS, MEASURES, evaluate, linear_logits

NOT_OF_FOUR_CLASSES = {"f1", "top5"}


def everything(classes: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    target = torch.arange(60) % classes
    weight, bias = draw(classes, 6), draw(classes)
    features = weight[target] + draw(60, 6)
    return {
        "features": features,
        "target": target,
        "weight": weight,
        "bias": bias,
        "logits": features @ weight.T + bias,
        "probabilities": (features @ weight.T + bias).softmax(1),
        "posterior": draw(60, classes).softmax(1),
        "single": draw(60, classes).sigmoid(),
        "unknown_logits": (unknown := draw(20, classes)),
        "unknown_probabilities": unknown.softmax(1),
        "unknown_features": draw(20, 6),
        "unknown_target": torch.arange(20) % 3,
        "train_counts": torch.tensor([500, 50, 5, 200])[:classes],
        "gamma": draw(6),
        "other_features": features @ draw(6, 5),
        "other_weight": draw(classes, 5),
    }


def test_entries_are_complete_and_shown_by_their_format():
    for name, measure in MEASURES.items():
        assert measure.name == name
        assert set(name) <= set(string.ascii_lowercase + string.digits + "_")
        assert measure.direction in ("higher", "lower", None)
        assert measure.needs
        assert set(measure.needs) <= INPUTS.keys()
        assert measure.title
        assert measure.meaning
        assert measure.paper
        assert measure.text(0.25)
    assert len({measure.title for measure in MEASURES.values()}) == len(MEASURES)
    assert MEASURES["accuracy"].text(0.5) == "0.5000"
    assert MEASURES["nc1"].text(1.25e-9) == "1.25e-09"


def test_plain_names_are_words_of_their_own():
    plain = [measure.plain for measure in MEASURES.values()]
    assert len(set(plain)) == len(plain)
    assert not any(symbol in name for name in plain for symbol in ("NC", "E_", "@", "*", "+"))


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_values_stay_within_their_limits(scale, classes):
    given = everything(classes)
    for name in ("features", "weight", "bias", "logits", "unknown_logits", "other_features", "other_weight"):
        given[name] = scale * given[name]
    given["probabilities"] = given["logits"].softmax(1)
    given["unknown_probabilities"] = given["unknown_logits"].softmax(1)
    for name, value in evaluate(**given).items():
        low, high = MEASURES[name].limits
        assert math.isnan(value) or low - 1e-6 <= value <= high + 1e-6, (name, value)


def test_all_inputs_give_all_measures_in_order():
    values = evaluate(**everything())
    assert list(values) == [name for name in MEASURES if name not in NOT_OF_FOUR_CLASSES]
    assert all(isinstance(value, float) for value in values.values())
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize("missing", sorted(INPUTS))
def test_a_measure_is_there_exactly_when_its_needs_are(missing):
    given = everything() | {missing: None}
    values = evaluate(**given)
    # Logits follow from features and weight, so their absence takes nothing away.
    available = {name for name in INPUTS if given[name] is not None or name == "logits"}
    there = {name for name, measure in MEASURES.items() if set(measure.needs) <= available}
    assert set(values) == there - NOT_OF_FOUR_CLASSES


def test_of_two_classes_the_second_has_an_f1():
    t = everything(classes=2)
    values, decided = evaluate(**t), t["logits"].argmax(1)
    assert list(values) == [name for name in MEASURES if name != "top5"]
    assert values["f1"] == pytest.approx(f1_score(t["target"], decided)) != 1
    assert values["matthews"] == pytest.approx(matthews_corrcoef(t["target"], decided))


def test_values_are_those_of_the_functions():
    t = everything()
    values, z, y = evaluate(**t), t["logits"], t["target"]
    collapse = geometry.neural_collapse(t["features"], y, t["weight"], t["bias"])
    cosines = geometry.cosine_collapse(t["features"], y)
    raw = geometry.cosine_collapse(t["features"], y, center=False)
    duality = geometry.self_duality(t["features"], y, t["weight"])
    single, separation = tasks.single_logit(z, y), tasks.logit_separation(z, y)
    conditions = tasks.critical_conditions(z - t["bias"], y)
    scores = (z - t["bias"]).double()
    rows, label = torch.arange(len(y)), torch.nn.functional.one_hot(y, z.shape[1]).bool()
    cosines_to_weight = (
        torch.nn.functional.normalize(t["features"].double()) @ torch.nn.functional.normalize(t["weight"].double()).T
    )
    ideal = torch.where(label, 1.0, -1 / (z.shape[1] - 1)).double()
    probable = tasks.single_logit(t["probabilities"], y)
    expected = {
        "accuracy": tasks.accuracy(z, y),
        "balanced_accuracy": balanced_accuracy_score(y, z.argmax(1)),
        "macro_f1": f1_score(y, z.argmax(1), average="macro"),
        "matthews": matthews_corrcoef(y, z.argmax(1)),
        "unbiased_accuracy": tasks.unbiased_accuracy(z, -t["bias"], y),
        "nc1": collapse.nc1,
        "nc2": collapse.nc2,
        "nc3": collapse.nc3,
        "nc4": collapse.nc4,
        **{name: getattr(cosines, name) for name in ("intra_mean", "intra_min", "inter_mean", "inter_max")},
        **{f"uncentered_{n}": getattr(raw, n) for n in ("intra_mean", "intra_min", "inter_mean", "inter_max")},
        "self_duality_mean": duality.mean(),
        "self_duality_min": duality.min(),
        "compactness": geometry.compactness(t["features"], y),
        "separability": geometry.separability(t["features"], y),
        "intra_inter_ratio": geometry.intra_inter_ratio(t["features"], y),
        "class_distance_variance": geometry.class_distance_variance(t["features"], y),
        "auprc": single.auprc,
        "precision_at_90": single.precision_at[0.9],
        "precision_at_99": single.precision_at[0.99],
        "feature_norm": t["features"].double().square().sum(1).mean().sqrt(),
        "weight_norm": t["weight"].double().square().sum(1).mean().sqrt(),
        "gamma_norm": t["gamma"].double().norm(),
        "logit_gap": separation.gap,
        "separated_classes": (separation.gap_per_class > 0).double().mean(),
        "worst_class_gap": separation.gap_per_class.min(),
        "violation_rate": separation.violation_rate,
        "log_partition_mean": tasks.log_partition(z).mean,
        "log_partition_std": tasks.log_partition(z).std,
        "logit_difference": tasks.logit_difference(z, y, gamma=0.7, reduction="mean"),
        "logit_difference_50": tasks.logit_difference(z, y, gamma=0.5, reduction="mean"),
        "logit_difference_100": tasks.logit_difference(z, y, gamma=1.0, reduction="mean"),
        "collapse_gap": (cosines_to_weight - ideal).abs().max(),
        "positive_mean": scores[rows, y].mean(),
        "positive_std": scores[rows, y].std(correction=0),
        "negative_mean": scores[~label].mean(),
        "negative_std": scores[~label].std(correction=0),
        "bias_mean": t["bias"].double().mean(),
        "bias_std": t["bias"].double().std(correction=0),
        "probability_auprc": probable.auprc,
        "probability_precision_at_90": probable.precision_at[0.9],
        "probability_precision_at_99": probable.precision_at[0.99],
        "condition_one": conditions.share_one,
        "condition_two": conditions.share_two,
        **vars(tasks.calibration(t["posterior"], y)),
        **{f"probability_{name}": value for name, value in vars(tasks.calibration(t["probabilities"], y)).items()},
        "single_ece": tasks.single_calibration(t["single"], y),
        "auroc": tasks.open_set(z, y, t["unknown_logits"]).auroc,
        "oscr": tasks.open_set(z, y, t["unknown_logits"]).oscr,
        "probability_auroc": roc_auc_score(
            [1] * 60 + [0] * 20, torch.cat([t["probabilities"], t["unknown_probabilities"]]).amax(1)
        ),
        "probability_oscr": tasks.open_set(t["probabilities"], y, t["unknown_probabilities"]).oscr,
        "nearest_mean": geometry.nearest_mean_accuracy(t["unknown_features"], t["unknown_target"]),
        "many": tasks.long_tail(z, y, t["train_counts"]).many,
        "medium": tasks.long_tail(z, y, t["train_counts"]).medium,
        "few": tasks.long_tail(z, y, t["train_counts"]).few,
        "equivalence": geometry.equivalence(t["features"], t["other_features"], y),
        "classifier_equivalence": geometry.classifier_equivalence(t["weight"], t["other_weight"]),
    }
    assert expected.keys() == MEASURES.keys() - NOT_OF_FOUR_CLASSES
    for name, value in expected.items():
        # scores and cosines are rounded to the inputs' float32 on the way
        rounded = name.startswith(("positive", "negative", "collapse"))
        assert values[name] == pytest.approx(float(value), rel=1e-6 if rounded else 1e-9, abs=1e-12), name


def test_without_a_posterior_the_probabilities_are_judged():
    t = everything()
    values = evaluate(probabilities=t["probabilities"], target=t["target"])
    expected = tasks.calibration(t["probabilities"], t["target"])
    assert (values["ece"], values["nll"], values["brier"]) == tuple(float(value) for value in vars(expected).values())


def test_of_six_classes_there_is_a_top_five():
    logits, target = torch.randn(50, 6), torch.arange(50) % 6
    values = evaluate(logits=logits, target=target)
    assert values["top5"] == pytest.approx(top_k_accuracy_score(target, logits, k=5))


def test_classes_are_separated_one_by_one():
    """A class with one sample has a gap; a class without samples has none, and is left out."""
    logits = torch.tensor([[2.0, 0.0, 9.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 1.0], [3.0, 0.0, 8.0, 0.0]])
    values = evaluate(logits=logits, target=torch.tensor([0, 0, 1, 3]))
    # gaps: class 0 has 1 - 3, class 1 has 0.5 - 0, class 3 has 0 - 1
    assert values["separated_classes"] == pytest.approx(1 / 3)
    assert values["worst_class_gap"] == -2.0
    assert math.isnan(evaluate(logits=logits, target=torch.zeros(4, dtype=torch.int64))["worst_class_gap"])
    tied = evaluate(logits=torch.zeros(2, 2), target=torch.tensor([0, 1]))
    assert (tied["separated_classes"], tied["worst_class_gap"]) == (0.0, 0.0)


def test_new_classes_of_one_kind_cannot_be_told_apart():
    t = everything()
    t["unknown_target"] = torch.full((20,), 7)
    assert "nearest_mean" not in evaluate(**t)


@pytest.mark.parametrize("name", ["balanced_accuracy", "auprc", "worst_class_gap"])
def test_nan_logits_are_refused(name):
    with pytest.raises(ValueError, match="NaN"):
        evaluate(logits=torch.tensor([[0.0, float("nan")]]), target=torch.tensor([0]))[name]


@pytest.mark.parametrize("name", ["nc1", "accuracy", "auprc", "violation_rate"])
def test_direction_agrees_with_better_separated_classes(name):
    t = everything()
    better = {**t, "features": t["features"] + 3 * t["weight"][t["target"]], "logits": None}
    gain = evaluate(**better)[name] - evaluate(**t)[name]
    assert gain > 0 if MEASURES[name].direction == "higher" else gain < 0


def test_logits_follow_from_the_classifier_in_full_precision():
    t = everything()
    exact = t["features"].double() @ t["weight"].double().T + t["bias"].double()
    logits = linear_logits(t["features"].half(), t["weight"].half(), t["bias"].half())
    assert logits.dtype == torch.float32
    expected = t["features"].half().double() @ t["weight"].half().double().T + t["bias"].half().double()
    torch.testing.assert_close(logits.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(linear_logits(t["features"].double(), t["weight"]), exact - t["bias"].double())


@pytest.mark.parametrize(
    ("unknown", "message"),
    [
        (torch.full((20, 3), 0.5), "unknown_probabilities must have the 4 columns of probabilities, got 3"),
        (torch.full((20,), 0.5), r"unknown_probabilities must have shape \(samples, classes\), got \(20,\)"),
        (torch.zeros(0, 4), "unknown_probabilities is empty"),
        (torch.full((20, 4), -2.5), r"unknown_probabilities must lie in \[0, 1\], got -2.5..-2.5"),
        (torch.full((20, 4), torch.nan), r"unknown_probabilities must lie in \[0, 1\], got nan"),
    ],
)
def test_wrong_unknown_probabilities_are_refused_by_their_own_name(unknown, message):
    with pytest.raises(ValueError, match=message):
        evaluate(**{**everything(), "unknown_probabilities": unknown})


def test_unknown_inputs_are_named():
    with pytest.raises(TypeError, match="no measure takes label; inputs are features"):
        evaluate(label=torch.zeros(3))


def test_shapes_that_disagree_are_named():
    t = everything()
    with pytest.raises(ValueError, match="the same number of columns"):
        linear_logits(t["features"], t["weight"][:, :3])
    with pytest.raises(ValueError, match=r"bias must have shape \(4,\)"):
        linear_logits(t["features"], t["weight"], torch.zeros(5))
    with pytest.raises(ValueError, match="empty"):
        evaluate(features=torch.zeros(0, 6), target=torch.zeros(0, dtype=torch.long), weight=t["weight"])


@pytest.mark.parametrize("size", [1, 4])
def test_a_bias_of_the_wrong_size_is_named_where_there_is_no_weight(size):
    with pytest.raises(ValueError, match=r"bias must have shape \(3,\)"):
        evaluate(logits=torch.randn(6, 3), target=torch.arange(6) % 3, bias=torch.zeros(size))


def test_a_meaning_can_be_read_alone():
    for measure in MEASURES.values():
        assert not measure.meaning.startswith(("the same", "its "))


def test_torchmetrics_is_imported_when_a_metric_class_is_first_used():
    loaded = "print('torchmetrics' in sys.modules)"
    code = f"import sys; from lastlayer import geometry, measures, tasks; {loaded}; "
    code += f"geometry.GeometryMetrics, tasks.SingleLogitMetrics, tasks.OpenSetMetrics; {loaded}"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["False", "True"]
    for part in (geometry, tasks):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            part.nothing
