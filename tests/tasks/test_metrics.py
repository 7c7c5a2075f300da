"""The streaming metrics against the exact functions: equal where they say so, within their stated error elsewhere."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics import MetricCollection

from lastlayer.tasks import OpenSetMetrics, SingleLogitMetrics, open_set, single_logit
from lastlayer.tasks.metrics import score_bins

from . import reference


def streamed(metric, logits, target, size=64):
    for start in range(0, len(target), size):
        metric.update(logits[start : start + size], target[start : start + size])
    return metric


@pytest.mark.parametrize("separation", [0.0, 3.0])
def test_single_logit_is_exact_for_bfloat16(separation):
    logits, target = reference.problem(900, 18, separation=separation)
    logits = logits.bfloat16()
    target[target == 3] = 4  # a class without positives
    result, exact = streamed(SingleLogitMetrics(18), logits, target).compute(), single_logit(logits, target)
    torch.testing.assert_close(result.auprc_per_class, exact.auprc_per_class, rtol=0, atol=1e-13, equal_nan=True)
    assert result.auprc.item() == pytest.approx(exact.auprc.item(), abs=1e-13)
    for recall, precision in exact.precision_at.items():
        assert result.precision_at[recall].item() == pytest.approx(precision.item(), abs=1e-13)
        assert result.precision_error[recall] == 0
    assert result.auprc_error == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 12), st.integers(1, 60), st.integers(1, 4), st.sampled_from([None, 4]), st.integers(0, 99))
def test_single_logit_error_is_within_its_bound(bits, samples, classes, levels, seed):
    logits, target = reference.problem(samples, classes, levels=levels, seed=seed)
    result, exact = SingleLogitMetrics(classes, bits=bits), single_logit(logits, target)
    result.update(logits, target)
    result = result.compute()
    assert abs(result.auprc - exact.auprc) <= result.auprc_error + 1e-13
    for recall, precision in exact.precision_at.items():
        assert -1e-13 <= precision - result.precision_at[recall] <= result.precision_error[recall] + 1e-13


def test_the_stated_error_is_small_for_float32():
    logits, target = reference.problem(3000, 2)
    result = streamed(SingleLogitMetrics(2), logits.float(), target, size=1000).compute()
    assert 0 < result.auprc_error < 0.01
    finer = streamed(SingleLogitMetrics(2, bits=20), logits.float(), target, size=1000).compute()
    assert finer.auprc_error < result.auprc_error / 8


def test_histograms_beyond_the_memory_are_refused_before_they_are_made(free_memory):
    free_memory(2 * 10 * 2**20 - 1)
    SingleLogitMetrics(9)
    with pytest.raises(MemoryError, match=r"10 classes with 16 bits take 20,971,520 bytes, but 20,971,519 are free"):
        SingleLogitMetrics(10)
    with pytest.raises(MemoryError, match="give fewer bits, or call single_logit"):
        SingleLogitMetrics(1_000_000)


def open_problem():
    known, target = reference.problem(400, 5, separation=2.0)
    return known, target, reference.problem(300, 5, separation=0.0, seed=1)[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_open_set_is_exact_for_half_precision(dtype):
    known, target, unknown = open_problem()
    known, unknown = known.to(dtype), unknown.to(dtype)
    metric = streamed(OpenSetMetrics(5), known, target)
    metric.update(unknown)
    result, exact = metric.compute(), open_set(known, target, unknown)
    for name in ("auroc", "oscr", "accuracy"):
        assert getattr(result, name).item() == pytest.approx(getattr(exact, name).item(), abs=1e-14)
    assert result.auroc_error == result.oscr_error == 0


@pytest.mark.parametrize("bits", [4, 8, 12, 20])
def test_open_set_error_is_within_its_bound(bits):
    known, target, unknown = open_problem()
    metric = OpenSetMetrics(5, bits=bits)
    metric.update(known, target)
    metric.update(unknown)
    result, exact = metric.compute(), open_set(known, target, unknown)
    assert abs(result.auroc - exact.auroc) <= result.auroc_error + 1e-14
    assert abs(result.oscr - exact.oscr) <= result.oscr_error + 1e-14
    assert result.accuracy.item() == exact.accuracy.item()
    assert result.auroc_error > 0


def same(first, second):
    for a, b in zip(first, second, strict=True):
        if isinstance(a, dict):
            assert a == b
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_batches_order_merging_and_resuming_give_the_same_bits():
    logits, target = reference.problem(200, 6)
    whole = streamed(SingleLogitMetrics(6), logits, target, size=200).compute()
    same(streamed(SingleLogitMetrics(6), logits, target, size=7).compute(), whole)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    same(streamed(SingleLogitMetrics(6), logits[order], target[order], size=33).compute(), whole)

    first, second = (streamed(SingleLogitMetrics(6), logits[s], target[s]) for s in (slice(120), slice(120, 200)))
    merged, swapped = copy.deepcopy(second), copy.deepcopy(first)
    merged.merge_state(first)
    swapped.merge_state(second)
    same(merged.compute(), whole)
    same(swapped.compute(), whole)

    resumed = SingleLogitMetrics(6)
    resumed.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    resumed.update(logits[120:], target[120:])
    same(resumed.compute(), whole)


def test_forward_reset_pickle_and_collections():
    known, target, unknown = open_problem()
    metric = pickle.loads(pickle.dumps(OpenSetMetrics(5)))
    batch = metric(known[:50], target[:50])
    assert batch.auroc.isnan()  # no unknown sample in this batch
    assert batch.accuracy.item() == pytest.approx(open_set(known[:50], target[:50], unknown).accuracy.item())
    metric.update(known[50:], target[50:])
    metric.update(unknown)
    assert metric.compute().accuracy.item() == pytest.approx(open_set(known, target, unknown).accuracy.item())
    metric.reset()
    assert metric.right.sum() == metric.unknown.sum() == 0

    collection = MetricCollection({"single": SingleLogitMetrics(5)})
    collection.update(known, target)
    assert collection.compute()["single"].auprc > 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_counts_are_integers_in_every_dtype(dtype):
    logits, target = torch.randn(20, 3), torch.arange(20) % 3
    single, opened = SingleLogitMetrics(3), OpenSetMetrics(3)
    for metric in (single, opened):
        metric.set_dtype(dtype)
        metric.update(logits, target)
    opened.update(-logits)
    assert single.compute().auprc == pytest.approx(float(single_logit(logits, target).auprc), abs=1e-9)
    assert opened.compute().auroc == pytest.approx(float(open_set(logits, target, -logits).auroc), abs=1e-9)


def test_faults_are_told_in_compute():
    metric = SingleLogitMetrics(2)
    metric.update(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="1 NaN"):
        metric.compute()
    metric = OpenSetMetrics(2)
    metric.update(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([2, -100]))
    with pytest.raises(ValueError, match=r"2 labels outside 0\.\.1"):
        metric.compute()


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"3 columns \(num_classes\), got 2"):
        SingleLogitMetrics(3).update(torch.zeros(1, 2), torch.tensor([0]))
    with pytest.raises(ValueError, match="bits"):
        SingleLogitMetrics(3, bits=33)
    with pytest.raises(ValueError, match="num_classes"):
        OpenSetMetrics(0)
    with pytest.raises(TypeError, match="integer dtype"):
        SingleLogitMetrics(2).update(torch.zeros(1, 2), torch.tensor([0.0]))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_nothing_seen_is_nan():
    assert SingleLogitMetrics(2).compute().auprc.isnan()
    assert OpenSetMetrics(2).compute().auroc.isnan()


def test_an_empty_batch_adds_nothing():
    logits, target = torch.randn(9, 3), torch.arange(9) % 3
    for metric in (SingleLogitMetrics(3), OpenSetMetrics(3)):
        metric.update(logits, target)
        before = metric.state_dict()
        metric.update(logits[:0], target[:0])
        assert all(torch.equal(value, before[name]) for name, value in metric.state_dict().items())
        with pytest.raises(ValueError, match="empty"):
            metric.update(logits[:, :0], target)


def test_no_warning_after_loading(recwarn):
    metric, resumed = SingleLogitMetrics(2), SingleLogitMetrics(2)
    metric.update(torch.tensor([[3.0, -1.0], [2.0, 4.0]]), torch.tensor([0, 1]))
    resumed.load_state_dict(metric.state_dict())
    assert resumed.compute().auprc == 1
    assert not recwarn.list


values = st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from([0.0, -0.0, math.inf, -math.inf]))


@settings(deadline=None)
@given(values, values, st.integers(2, 32))
def test_bins_keep_the_order(a, b, bits):
    (first, second), _ = score_bins(torch.tensor([a, b]), bits)
    assert min(first, second) >= 0
    assert max(first, second) < 2**bits
    assert (first <= second) if a <= b else (first >= second)
    if a == b:
        assert first == second


def test_every_bfloat16_and_float16_value_has_its_own_bin():
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for dtype, bits in ((torch.bfloat16, 16), (torch.float16, 20)):
        every = patterns.view(dtype)
        every = every[~every.isnan()].float().unique()
        bins, shared = score_bins(every, bits)
        assert shared == 0
        assert bool((bins.diff() > 0).all())


def test_shared_bins_are_noticed():
    assert score_bins(torch.tensor([1.0, 1.0 + 2**-20]), 16)[1] == 1
    assert score_bins(torch.tensor([1.0, 1.0 + 2**-40], dtype=torch.float64), 32)[1] == 1
