"""Normalized spaces: every claim where it plainly holds, fails and is missing, and the figures of what was observed."""

import math

import pytest

from lastlayer.papers import Observations, Record, Store, artifacts, claims, figure, judge
from lastlayer.theory.minima import normalized_binary_cross_entropy

PAPER = "normalized_scaling"
OURS = {name: one for name, one in artifacts().items() if one.paper == PAPER}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


ARMS = [(optimizer, loss) for optimizer in ("SGD", "AdamW") for loss in ("CE", "BCE")]


def run(labels, values, seeds=3, epoch=100, noise=1e-6):
    """Rows of a cell, a little apart from seed to seed."""
    return [
        Record(labels, seed, epoch, {name: value + noise * seed for name, value in values.items()})
        for seed in range(seeds)
    ]


def table5(change=lambda gamma, loss, values: None):
    good = {
        0.1: (0.25, 0.27, 0.965, 0.526), 4: (1, 1, 0.999, 0.555), 6: (1, 1, 0.99, 0.55), 8: (1, 1, 0.98, 0.54),
        16: (1, 1, 0.9, 0.4), 32: (1, 1, 0.8, 0.3), 64: (1, 1, 0.76, 0.22),
    }  # fmt: skip
    rows = []
    for gamma, (a, a_star, com, sep) in good.items():
        for loss in ("CE", "BCE"):
            values = {
                "train.accuracy": a, "train.unbiased_accuracy": a_star, "train.separability": sep,
                "train.compactness": com + 0.01 * (loss == "BCE"),
                "train.positive_mean": 0.99 * gamma, "train.negative_mean": -gamma / 9,
                "train.positive_std": 0.01 * gamma, "train.negative_std": 0.05 * gamma, "train.condition_one": 1.0,
                "train.condition_two": float(loss == "BCE"),
            }  # fmt: skip
            change(gamma, loss, values)
            exact = {name: values.pop(name) for name in list(values) if "condition" in name}
            labels = {"gamma": f"{gamma:g}", "optimizer": "SGD", "loss": loss}
            rows += [Record(row.labels, row.seed, 60, {**row.values, **exact}) for row in run(labels, values)]
    return {f"{PAPER}.table5": rows}


def curves(bce=0.5, nc2=0.01, low=0.02):
    found = {}
    for name, rest in ((f"{PAPER}.fig3", {"model": "ResNet-18"}), (f"{PAPER}.fig5", {"dataset": "CIFAR-10"})):
        found[name] = [
            Record({**rest, "optimizer": optimizer, "loss": loss}, seed, epoch,
                {"train.nc1": max(low, factor / epoch), "train.nc2": max(nc2, factor / epoch),
                 "train.nc3": max(0.01, factor / epoch)})
            for optimizer, loss in ARMS for seed in (0, 1) for epoch in range(2, 101, 2)
            for factor in [bce if loss == "BCE" else 1.0]
        ]  # fmt: skip
    return found


def bias_sweep(ce=0.0, bce=0.0):
    found = {f"{PAPER}.fig10": [], f"{PAPER}.fig11": []}
    for gamma in ("4", "8"):
        for bias in ("0", "5", "10"):
            for loss in ("CE", "BCE"):
                aim = float(bias) + ce if loss == "CE" else normalized_binary_cross_entropy(10, float(gamma)).bias + bce
                labels = {"gamma": gamma, "bias": bias, "optimizer": "SGD", "loss": loss}
                name = f"{PAPER}.fig11" if bias == "5" else f"{PAPER}.fig10"
                found[name] += run(labels, {"train.bias_mean": -aim})
    return found


def exponential(k, gamma, seed):
    return (1 + 0.01 * seed) * math.exp((k + 0.001 * seed) * gamma)


def sphere(power=1.0, k_ce=1.1, k_bce=0.55, large=exponential):
    rows = []
    for seed in range(3):
        for loss, k in (("CE", k_ce), ("BCE", k_bce)):
            for gamma in (0.04, 0.06, 0.08, 0.1, 0.2, 0.4):
                rows.append((loss, gamma, seed, (10 + seed) * gamma**-power))
            for gamma in (5.0, 6.0, 7.0, 8.0, 9.0):
                rows.append((loss, gamma, seed, large(k, gamma, seed)))
    made = [
        Record(
            {"loss": loss, "classes": "10", "gamma": f"{gamma:g}"}, seed, 0, {"sphere.time": time, "sphere.steps": time}
        )
        for loss, gamma, seed, time in rows
    ]
    network = [
        Record({"gamma": row.labels["gamma"], "loss": row.labels["loss"]}, row.seed, 9,
            {"train.epochs_to_0.0035": math.inf, "train.epochs_to_0.1": row.values["sphere.time"]})
        for row in made
    ]  # fmt: skip
    return {f"{PAPER}.sphere": made, f"{PAPER}.fig16": network}


def long_tail(gain):
    rows = []
    for imbalance in ("10", "50", "100"):
        for loss, value in (("CE", 0.8), ("BCE", 0.8 + gain), ("LA", 0.83)):
            labels = {"imbalance": imbalance, "dataset": "CIFAR10-LT", "model": "ResNet-32", "loss": loss}
            rows += run(labels, {"test.accuracy": value}, noise=1e-3)
    return {f"{PAPER}.table2": rows}


def open_set(gain, drop):
    rows = []
    for bias in ("none", "0", "5", "10"):
        for loss in ("CE", "BCE"):
            value = 0.85 + (gain if loss == "BCE" else 0)
            if bias == "none":
                value = 0.85 - (drop if loss == "BCE" else 0)
            labels = {"split": "all", "dataset": "MNIST", "loss": loss, "bias": bias}
            slope = 2e-3 if loss == "BCE" else 1e-3
            rows += run(labels, {"test.auroc": value, "test.oscr": value - 0.02}, seeds=5, noise=slope)
    return {f"{PAPER}.table10": rows}


def relu(kept, without):
    return {
        f"{PAPER}.relu": [
            row
            for optimizer, loss in ARMS
            for which, share in (("with", kept), ("without", without))
            for row in run({"relu": which, "optimizer": optimizer, "loss": loss}, {"train.positive_mean": 8 * share})
        ]
    }


def spread(bce):
    rows = []
    for variance in ("1", "4", "6"):
        for loss, value in (("CE", 0.5), ("BCE", bce)):
            labels = {"gamma": "8", "variance": variance, "optimizer": "SGD", "loss": loss}
            rows += run(labels, {"train.positive_std": value, "train.negative_std": value}, noise=0.01)
    return {f"{PAPER}.fig8": rows}


def balanced(gain):
    return {
        f"{PAPER}.table9": [
            row
            for dataset in ("CIFAR10", "Tiny-ImageNet")
            for optimizer, loss in ARMS
            for row in run(
                {"dataset": dataset, "model": "ResNet18", "optimizer": optimizer, "loss": loss},
                {"test.accuracy": 0.9 + (gain if loss == "BCE" else 0)},
                noise=2e-4 if loss == "BCE" else 1e-4,
            )
        ]
    }


def minima(bias_error=1e-9, gap=1e-14, shift=1e-15):
    return {
        f"{PAPER}.minima": [
            Record({"loss": loss, "classes": "3", "gamma": "8"}, 0, 0,
                {"minimum.gap": gap, "minimum.relative_gap": 0.0, "minimum.shift": shift if loss == "CE" else 9.0}
                | ({"minimum.bias_error": bias_error} if loss == "BCE" else {}))
            for loss in ("CE", "BCE")
        ]
    }  # fmt: skip


def at(gamma, loss=None, **changes):
    """Change some values of the sweep."""

    def change(g, name, values):
        if g == gamma and loss in (None, name):
            values |= {f"train.{measure}": value for measure, value in changes.items()}

    return table5(change)


HOLDS = {
    "003-01": minima(), "003-02": curves(), "003-03": curves(), "003-04": bias_sweep(0.002, 0.03), "003-05": table5(),
    "003-06": table5(), "003-07": table5(), "003-08": table5(), "003-09": sphere(), "003-10": sphere(),
    "003-11": table5(), "003-12": long_tail(0.02), "003-13": open_set(0.02, 0.1), "003-14": open_set(0.02, 0.1),
    "003-15": relu(0.9, 0.995), "003-16": spread(0.1), "003-17": balanced(0.0),
}  # fmt: skip
FAILS = {
    "003-01": [minima(bias_error=1e-3), minima(gap=1e-8), minima(shift=0.1)],
    "003-02": [curves(nc2=0.2), curves(low=0.06)],
    "003-03": [curves(bce=2.0)],
    "003-04": [bias_sweep(ce=0.02), bias_sweep(bce=-0.08)],
    "003-05": [at(64, accuracy=0.99), at(64, "CE", compactness=0.97), at(8, separability=0.25)],
    "003-06": [at(0.1, accuracy=0.3), at(0.1, unbiased_accuracy=0.96), at(0.1, separability=0.2)],
    "003-07": [at(8, "CE", positive_mean=7.5), at(4, negative_std=0.5), at(8, compactness=0.94)],
    "003-08": [at(16, "BCE", compactness=0.85)],
    "003-09": [sphere(power=2.0)],
    "003-10": [
        sphere(k_ce=0.5, k_bce=0.9),
        sphere(large=lambda k, gamma, seed: (1 + 0.01 * seed) * gamma ** (7 * k + 0.001 * seed)),
    ],
    "003-11": [at(32, "BCE", condition_two=0.999), at(64, "CE", condition_one=0.99)],
    "003-12": [long_tail(-0.02)],
    "003-13": [open_set(-0.03, 0.1)],
    "003-14": [open_set(0.02, 0.0), open_set(0.02, -0.1)],
    "003-15": [relu(0.985, 0.995), relu(0.9, 0.98)],
    "003-16": [spread(0.9)],
    "003-17": [balanced(-0.02)],
}
IDS = [claim.id for claim in claims() if claim.paper == "003"]


def judged(claim, store, content, without=None):
    for name, rows in content.items():
        if name != without:
            store.add(name, "small", rows)
    return judge(claim, store)


@pytest.mark.parametrize("claim", IDS)
def test_a_claim_that_plainly_holds_is_reproduced(claim, store):
    verdict = judged(claim, store, HOLDS[claim])
    assert verdict.outcome == "reproduced", verdict
    assert verdict.size == "small"
    assert "\n" not in verdict.detail


@pytest.mark.parametrize(("claim", "number"), [(claim, n) for claim in IDS for n in range(len(FAILS[claim]))])
def test_a_claim_that_plainly_fails_is_not(claim, number, store):
    verdict = judged(claim, store, FAILS[claim][number])
    assert verdict.outcome == "not reproduced", verdict


@pytest.mark.parametrize("claim", IDS)
def test_a_claim_without_its_runs_is_not_run(claim, store):
    assert judge(claim, store).outcome == "not run"
    missing = next(iter(HOLDS[claim]))
    assert judged(claim, store, HOLDS[claim], without=missing).outcome == "not run"


def test_noise_leaves_claims_open(tmp_path):
    assert judged("003-12", Store(tmp_path / "a"), long_tail(0.0005)).outcome == "inconclusive"
    assert judged("003-13", Store(tmp_path / "b"), open_set(0.0, 0.0)).outcome != "not reproduced"
    assert judged("003-16", Store(tmp_path / "c"), spread(0.5)).outcome == "inconclusive"
    few = sphere()
    few[f"{PAPER}.fig16"] = [row for row in few[f"{PAPER}.fig16"] if row.labels["gamma"] in ("0.04", "5")]
    verdict = judged("003-09", Store(tmp_path / "d"), few)
    assert verdict.outcome == "inconclusive"
    assert "too few scales" in verdict.detail


@pytest.mark.parametrize("claim", ["003-02", "003-07", "003-15"])
def test_seeds_far_apart_leave_a_claim_on_means_open(claim, store):
    content = {
        name: [Record(r.labels, r.seed, r.epoch, {m: v + 0.3 * (r.seed - middle) for m, v in r.values.items()})
               for r in rows for middle in [max(other.seed for other in rows) / 2]]
        for name, rows in HOLDS[claim].items()
    }  # fmt: skip
    assert judged(claim, store, content).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("claim", "gamma", "name", "middle"),
    [("003-05", "64", "accuracy", 0.9995), ("003-06", "0.1", "unbiased_accuracy", 0.94)],
)
def test_an_accuracy_about_its_bound_leaves_a_claim_open(claim, gamma, name, middle, store):
    content = table5()
    for row in content[f"{PAPER}.table5"]:
        if row.labels["gamma"] == gamma:
            row.values[f"train.{name}"] = middle + 0.02 * (row.seed - 1)
    verdict = judged(claim, store, content)
    assert verdict.outcome == "inconclusive"
    assert "of draws of the means" in verdict.detail


def test_curves_that_fit_alike_leave_the_growth_open(store):
    content = sphere(large=lambda k, gamma, seed: exponential(k, gamma, seed) * (1.5 if gamma in (6.0, 8.0) else 1.0))
    verdict = judged("003-10", store, content)
    assert verdict.outcome == "inconclusive"
    assert "both fit" in verdict.detail


def test_every_imbalance_must_be_run(store):
    content = long_tail(0.02)
    content[f"{PAPER}.table2"] = [row for row in content[f"{PAPER}.table2"] if row.labels["imbalance"] != "50"]
    verdict = judged("003-12", store, content)
    assert (verdict.outcome, "imbalance 50" in verdict.detail) == ("not run", True)


def test_small_scales_that_were_not_run_are_not_scales_that_did_not_collapse(store):
    content = sphere()
    content[f"{PAPER}.fig16"] = [row for row in content[f"{PAPER}.fig16"] if float(row.labels["gamma"]) >= 5]
    verdict = judged("003-09", store, content)
    assert verdict.outcome == "not run"
    assert "no small scale was run" in verdict.detail
    assert judge("003-10", store).outcome == "reproduced"


def test_the_sphere_alone_can_refute_but_not_confirm(store):
    content = sphere()
    del content[f"{PAPER}.fig16"]
    assert judged("003-09", store, content).outcome == "not run"
    content[f"{PAPER}.sphere"] = sphere(power=2.0)[f"{PAPER}.sphere"]
    assert judged("003-09", store, content).outcome == "not reproduced"


# figures --------------------------------------------------------------------------------------------------------------


def test_the_figure_of_the_times_has_the_fits(store):
    for name, rows in sphere().items():
        store.add(name, "small", rows)
        drawn = figure(OURS[name], store.read(name, "small")).data
        assert len(drawn) == 8  # points and fit of each loss at both ends
        fits = [trace.name for trace in drawn if trace.mode == "lines"]
        assert fits[0].startswith("CE: 11/g")  # 10, 11 and 12 over gamma
        assert "exp(1.10 g)" in fits[2]
        assert "exp(0.55 g)" in fits[3]
    large = [row for row in sphere()[f"{PAPER}.fig16"] if float(row.labels["gamma"]) >= 5]
    drawn = figure(OURS[f"{PAPER}.fig16"], Observations(f"{PAPER}.fig16", "small", tuple(large))).data
    assert [trace.mode for trace in drawn] == ["markers", "lines"] * 2
    assert all(trace.showlegend is not False for trace in drawn)


def test_the_figure_of_the_scores_has_the_lines_of_the_theory(store):
    rows = [
        Record({"gamma": g, "optimizer": "SGD", "loss": loss}, 0, 60,
            {"train.positive_mean": 1.0, "train.negative_mean": -1.0, "train.bias_mean": -2.0})
        for g in ("4", "8") for loss in ("CE", "BCE")
    ]  # fmt: skip
    store.add(f"{PAPER}.fig12", "small", rows)
    drawn = figure(OURS[f"{PAPER}.fig12"], store.read(f"{PAPER}.fig12", "small")).data
    lines_drawn = [list(trace.y) for trace in drawn if trace.mode == "lines"]
    bias = [normalized_binary_cross_entropy(10, gamma).bias for gamma in (4.0, 8.0)]
    either = [[4.0, 8.0], [-4 / 9, -8 / 9]]
    assert lines_drawn == [*either, *either, bias]  # CE's bias is free
    assert [list(trace.y) for trace in drawn if trace.name == "b"] == [
        [2.0, 2.0]
    ] * 2  # subtracted, as the paper has it


def test_panels_of_scores_say_what_a_number_is_and_name_the_axis_once(store):
    rows = [
        Record({"gamma": g, "bias": bias, "optimizer": "SGD", "loss": loss}, 0, 30, {"train.positive_mean": 1.0})
        for g in ("4", "8") for bias in ("0", "10") for loss in ("CE", "BCE")
    ]  # fmt: skip
    store.add(f"{PAPER}.fig10", "small", rows)
    layout = figure(OURS[f"{PAPER}.fig10"], store.read(f"{PAPER}.fig10", "small")).layout
    assert [one.text for one in layout.annotations] == [
        "bias 0, SGD, CE", "bias 0, SGD, BCE", "bias 10, SGD, CE", "bias 10, SGD, BCE",
    ]  # fmt: skip
    axes = [layout.xaxis, layout.xaxis2, layout.xaxis3, layout.xaxis4]
    assert [axis.title.text for axis in axes] == [None, None, "gamma", "gamma"]
    assert [(axis.type, axis.tickformat) for axis in axes] == [("log", "~g")] * 4


def test_ticks_of_both_axes_of_the_times_are_whole_numbers(store):
    name = f"{PAPER}.fig16"
    layout = figure(OURS[name], Observations(name, "small", tuple(sphere()[name]))).layout
    for axis in (layout.xaxis, layout.yaxis):
        assert (axis.type, axis.tickformat) == ("log", "~g")
