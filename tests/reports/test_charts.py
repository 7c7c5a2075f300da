"""The data of the charts: means over seeds, what a run measured, and nothing that would make the page too large."""

import base64
import math
import warnings

import numpy
import pytest

from lastlayer.reports import load, summarise
from lastlayer.reports.charts import chart_data, packed, thinned
from lastlayer.reports.evidence import Rows

from . import factory
from .factory import trial


@pytest.fixture
def small(tmp_path):
    for loss in ("ce", "sln"):
        for seed in range(3):
            factory.done(tmp_path, trial(loss, seed))
    return tmp_path


def test_curves_are_means_and_spreads_over_seeds(small):
    summary = summarise(load(small))
    curve = chart_data(summary, Rows())["curves"][1]
    assert curve["epochs"] == [0, 5, 10]
    histories = [run.result["history"] for run in summary.groups[1].done.values()]
    values = numpy.array([[entry["train"]["nc1"] for entry in history] for history in histories])
    means, spreads = curve["train"]["nc1"]
    assert means == pytest.approx(values.mean(0).tolist(), rel=1e-4)
    assert spreads == pytest.approx(values.std(0, ddof=1).tolist(), rel=1e-4)


def test_curves_have_the_epochs_of_every_seed_and_no_number_for_what_is_not_finite(tmp_path):
    factory.done(tmp_path, trial(seed=0), epochs=(0, 2, 5, 10), train={"nc1": math.inf, "nc2": math.nan})
    factory.done(tmp_path, trial(seed=1), epochs=(0, 5, 10), train={"nc1": 1.0, "nc2": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (curve,) = chart_data(summarise(load(tmp_path)), Rows())["curves"]
    assert curve["epochs"] == [0, 5, 10]
    assert curve["train"]["nc1"] == curve["train"]["nc2"] == [[None] * 3] * 2


def test_curves_of_one_seed_have_no_spread(tmp_path):
    factory.done(tmp_path, trial())
    (curve,) = chart_data(summarise(load(tmp_path)), Rows())["curves"]
    means, spreads = curve["test"]["nc1"]
    assert None not in means
    assert spreads == [None] * 3


def unpack(made):
    kind = "<i1" if made["bits"] == 8 else "<i2"
    return numpy.frombuffer(base64.b64decode(made["data"]), kind).reshape(made["shape"]) * made["scale"]


def test_snapshots_are_those_of_the_run(small):
    data = chart_data(summarise(load(small)), Rows())
    assert [len(group) for group in data["snapshots"]] == [3, 3]
    seed = 2
    stored = factory.snapshots(3, samples=60, seed=seed)
    shown = data["snapshots"][0][seed]
    assert shown["seed"] == seed
    assert unpack(shown["points"]) == pytest.approx(stored["points"].numpy(), abs=2e-4)
    assert unpack(shown["cosines"]) == pytest.approx(stored["cosines"].numpy(), abs=5e-3)
    shares = stored["true_logits"] / stored["true_logits"].sum(1, keepdim=True)
    assert unpack(shown["logits"]["true_logits"]) == pytest.approx(shares.numpy(), abs=2e-4)
    assert shown["target"] == stored["target"].tolist()


def test_packing_and_thinning_at_their_edges():
    assert unpack(packed(numpy.zeros((2, 0)))).shape == (2, 0)
    assert unpack(packed(numpy.array([numpy.nan, numpy.inf, 1.0]))).tolist() == [0.0, 0.0, 1.0]
    assert thinned(1, 5) == [0]
    assert thinned(100, 4) == [0, 33, 66, 99]
    assert thinned(1000, 21)[-1] == 999


def test_too_many_matrices_are_left_out_and_said(tmp_path):
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss), classes=[str(k) for k in range(900)], epochs=(10,), most_cosines=900)
    data = chart_data(summarise(load(tmp_path)), Rows())
    assert "No cosine matrix of ce: with 900 classes the page would be too large." in data["notes"]
    assert "cosines" not in data["snapshots"][0][0]


def test_tsne_on_request(tmp_path):
    factory.done(tmp_path, trial(), samples=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = chart_data(summarise(load(tmp_path)), Rows(), tsne=True)["snapshots"][0][0]
    assert shown["tsne"]["shape"] == [40, 2]
