"""GeometryMetrics: whatever the batches, their order, merging or interruption, the answer of the functions."""

import pickle

import pytest
import torch

from lastlayer.geometry import GeometryMetrics, measure

from . import reference
from .reference import assert_same, clusters, streamed

ONE_PASS = ("nc1", "nc2", "nc3", "self_duality", "separability", "class_distance_variance", "uncentered_inter")
TWO_PASS = ("inter", "intra_mean", "inter_max", "compactness", "intra_inter_ratio", "nc4")


@pytest.fixture
def example():
    features, target = clusters(60, 4, 6, offset=2.0)
    return features, target, torch.randn(4, 6), torch.randn(4)


@pytest.mark.parametrize("global_mean", ["samples", "classes"])
def test_agrees_with_references(example, global_mean):
    features, target, weight, bias = example
    metrics = streamed(*example, global_mean=global_mean, center_weight=True, self_pairs=False)
    got = metrics.compute(weight, bias)
    expected = {
        "nc1": reference.nc1(features, target, global_mean),
        "nc2": reference.nc2(features, target, weight, True),
        "nc3": reference.nc3(features, target, weight, True, global_mean),
        "nc4": reference.nc4(features, target, weight, bias),
        "self_duality": reference.self_duality(features, target, weight, global_mean),
        "inter": reference.cosine_table(features, target, True, False),
        "uncentered_inter": reference.cosine_table(features, target, False, False),
        "compactness": reference.compactness(features, target),
        "separability": reference.separability(features, target),
        "intra_inter_ratio": reference.intra_inter_ratio(features, target),
        "class_distance_variance": reference.class_distance_variance(features, target),
    }
    for name, value in expected.items():
        value = torch.as_tensor(value, dtype=torch.float64)
        torch.testing.assert_close(getattr(got, name), value, rtol=1e-9, atol=1e-10, msg=name)


def test_agrees_with_measure_in_every_attribute(example):
    expected = measure(example[0].double(), *example[1:])
    assert_same(streamed(*example).compute(*example[2:]), expected, rtol=1e-11, atol=1e-13)


def test_one_pass_leaves_the_second_none(example):
    features, target, weight, bias = example
    got = streamed(features, target, refine=False).compute(weight, bias)
    assert all(getattr(got, name) is not None for name in ONE_PASS)
    assert all(getattr(got, name) is None for name in TWO_PASS)
    assert streamed(features, target).compute().nc2 is None


def test_classifier_of_compute_is_remembered_for_nc4(example):
    features, target, weight, bias = example
    metrics = streamed(features, target, refine=False)
    assert metrics.compute(weight, bias).nc4 is None
    metrics.refine(features, target)
    assert float(metrics.compute(weight, bias).nc4) == reference.nc4(features, target, weight, bias)
    with pytest.raises(ValueError, match="another classifier"):
        metrics.compute(weight + 1, bias)


def test_results_follow_the_arguments_of_compute(example):
    features, target, weight, _ = example
    metrics = streamed(features, target)
    assert metrics.compute().nc2 is None
    assert metrics.compute(weight).nc2 is not None
    assert metrics.compute(weight * torch.arange(1, 5)[:, None]).nc2 != metrics.compute(weight).nc2


def test_update_after_refine_starts_the_second_pass_again(example):
    features, target, weight, bias = example
    metrics = streamed(features[:40], target[:40], weight, bias)
    assert metrics.compute().compactness is not None
    metrics.update(features[40:], target[40:])
    assert metrics.compute().compactness is None
    metrics.refine(features, target)
    assert_same(metrics.compute(weight, bias), streamed(*example).compute(weight, bias))


def test_second_pass_over_other_samples_raises(example):
    features, target, _, _ = example
    metrics = streamed(features, target, refine=False)
    metrics.refine(features[:-1], target[:-1])
    with pytest.raises(ValueError, match="refine saw 59 samples and update 60"):
        metrics.compute()
    metrics = streamed(features, target, refine=False)
    metrics.refine(features, (target + 1) % 4)
    with pytest.raises(ValueError, match="same samples"):
        metrics.compute()


def test_classifier_for_a_part_of_the_second_pass_raises(example):
    features, target, weight, bias = example
    metrics = streamed(features, target, refine=False)
    metrics.refine(features[:30], target[:30])
    metrics.refine(features[30:], target[30:], weight, bias)
    with pytest.raises(ValueError, match="classifier for 30 of 60"):
        metrics.compute()


def test_forward_returns_the_batch_and_accumulates(example):
    features, target, weight, _ = example
    metrics = GeometryMetrics(4, 6)
    for rows, labels in zip(features.split(20), target.split(20), strict=True):
        batch = metrics(rows, labels)
        assert_same(batch, streamed(rows, labels, refine=False, classes=4).compute())
    assert_same(metrics.compute(weight), streamed(features, target, refine=False).compute(weight))


@pytest.mark.parametrize("stage", ["update", "refine"])
def test_pickle_and_state_dict_resume(example, stage):
    features, target, weight, bias = example
    expected = streamed(*example).compute(weight, bias)

    def resume(metrics):
        if stage == "update":
            metrics.update(features[30:], target[30:])
            metrics.refine(features[:30], target[:30], weight, bias)
        metrics.refine(features[30:], target[30:], weight, bias)
        assert_same(metrics.compute(weight, bias), expected)

    metrics = streamed(features[:30], target[:30], classes=4, refine=False)
    if stage == "refine":
        metrics.update(features[30:], target[30:])
        metrics.refine(features[:30], target[:30], weight, bias)
    resume(pickle.loads(pickle.dumps(metrics)))
    loaded = GeometryMetrics(4, 6)
    loaded.load_state_dict(metrics.state_dict())
    resume(loaded)


def test_no_warning_after_loading(example, recwarn):
    metrics = streamed(*example)
    loaded = GeometryMetrics(4, 6)
    loaded.load_state_dict(metrics.state_dict())
    assert loaded.compute().compactness == metrics.compute().compactness
    assert not recwarn.list


def test_reset(example):
    features, target, weight, bias = example
    metrics = streamed(features + 5, target, weight, bias)
    metrics.reset()
    metrics.update(features, target)
    assert metrics.compute().compactness is None
    metrics.refine(features, target)
    assert metrics.compute().nc4 is None
    assert_same(metrics.compute(), streamed(features, target).compute(), names=("nc1", "compactness", "inter"))


def test_absent_classes_are_left_out(example):
    features, target, weight, bias = example
    labels = torch.tensor([1, 4, 6, 7])
    wide, offset = torch.randn(9, 6), torch.randn(9)
    wide[labels], offset[labels] = weight, bias
    got = streamed(features, labels[target], wide, offset, classes=9).compute(wide, offset)
    assert got.classes.tolist() == labels.tolist()
    assert_same(got, streamed(*example).compute(weight, bias), names=(*ONE_PASS, *TWO_PASS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_under_autocast(example, dtype):
    features, target, weight, bias = example
    features = features.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = streamed(features, target, weight, bias).compute(weight, bias)
    assert_same(got, streamed(features.double(), target, weight, bias).compute(weight, bias))


def test_degenerate_input():
    metrics = GeometryMetrics(3, 2)
    metrics.update(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
    with pytest.raises(ValueError, match="no samples"), pytest.warns(UserWarning, match="before"):
        GeometryMetrics(3, 2).compute()
    with pytest.raises(ValueError, match="no class means"):
        metrics.refine(torch.randn(1, 2), torch.tensor([0]))
    metrics.update(torch.ones(4, 2), torch.arange(4) % 2)
    metrics.refine(torch.ones(4, 2), torch.arange(4) % 2)
    got = metrics.compute()
    assert got.nc1.isnan()
    assert got.compactness == 0.5
    metrics.update(torch.tensor([[torch.nan, 1.0]]), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"labels \[1\]"):
        metrics.compute()


def test_errors():
    with pytest.raises(ValueError, match="at least 1"):
        GeometryMetrics(0, 3)
    with pytest.raises(ValueError, match="global_mean"):
        GeometryMetrics(2, 3, global_mean="median")
    metrics = GeometryMetrics(2, 3)
    with pytest.raises(ValueError, match="dim = 3"):
        metrics.update(torch.randn(2, 4), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="target has the label 2, but there are 2 classes"):
        metrics.update(torch.randn(2, 3), torch.tensor([0, 2]))
    metrics.update(torch.randn(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="num_classes = 2 rows"):
        metrics.compute(torch.randn(3, 3))
    with pytest.raises(ValueError, match="cannot merge"):
        metrics.merge_state(GeometryMetrics(2, 4))


def test_sums_stay_float64_in_a_model_of_lower_precision(example):
    features, target, *_ = example
    metrics = streamed(features, target)
    expected = metrics.compute()
    torch.nn.ModuleDict({"metrics": metrics}).to(torch.bfloat16)
    assert metrics.sums.dtype == torch.float64
    assert_same(metrics.compute(), expected, rtol=0, atol=0)


def test_what_cannot_be_measured_raises(example):
    features, target, *_ = example
    metrics = streamed(features, target, refine=False)
    metrics.refine(features.index_fill(0, torch.tensor([3]), torch.nan), target)
    with pytest.raises(ValueError, match="refine hold NaN"):
        metrics.compute()
    with pytest.raises(ValueError, match="squares overflow"):
        streamed(features.double() * 1e200, target, refine=False).compute()


@pytest.mark.gpu
def test_classifier_and_metric_may_change_device(example):
    features, target, weight, bias = example
    expected = streamed(*example).compute(weight, bias)
    metrics = GeometryMetrics(4, 6).cuda()
    metrics.update(features.cuda(), target)
    metrics.refine(features[:20].cuda(), target[:20], weight, bias)
    metrics.cpu()
    metrics.refine(features[20:], target[20:])
    metrics.cuda()
    got = metrics.compute(weight.cuda(), bias.cuda())
    for name in (*ONE_PASS, *TWO_PASS):
        torch.testing.assert_close(getattr(got, name).cpu(), getattr(expected, name), rtol=1e-9, atol=1e-10, msg=name)
