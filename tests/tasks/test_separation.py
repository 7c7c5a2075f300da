"""logit_separation against all pairs; logit_difference and log_partition against their formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lastlayer.tasks import log_partition, logit_difference, logit_separation

from . import reference


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 20), st.integers(2, 5), st.sampled_from([None, 2, 8]), st.integers(0, 99))
def test_separation_equals_all_pairs(samples, classes, levels, seed):
    logits, target = reference.problem(samples, classes, levels=levels, separation=2.0, seed=seed)
    result = logit_separation(logits, target)
    own = torch.nn.functional.one_hot(target, classes).bool()
    gap = (logits[own].min() - logits[~own].max()).item()
    violated, pairs = reference.violations(logits, target)
    assert result.gap.item() == gap
    assert result.holds is (gap > 0)
    assert result.violation_rate.item() == violated / pairs
    assert (violated == 0) is result.holds
    for k in range(classes):
        true, false = logits[target == k, k], logits[target != k, k]
        expected = (true.min() - false.max()).item() if len(true) and len(false) else math.nan
        assert result.gap_per_class[k].item() == pytest.approx(expected, abs=0, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_pairs_are_counted_exactly_when_large(dtype):
    logits, target = reference.problem(700, 9, separation=1.0)
    logits = logits.to(dtype)
    own = torch.nn.functional.one_hot(target, 9).bool()
    violated = int((logits[~own][None, :] >= logits[own][:, None]).sum())
    assert logit_separation(logits, target).violation_rate.item() == violated / (700 * 700 * 8)


def test_a_tie_breaks_the_principle():
    result = logit_separation(torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    assert (result.gap.item(), result.holds, result.violation_rate.item()) == (0.0, False, 0.25)


def test_cross_entropy_counterexample_of_the_paper():
    a = 3.0
    result = logit_separation(torch.tensor([[2 * a, a], [-2 * a, -a]]), torch.tensor([0, 1]))
    assert result.gap.item() == -2 * a
    assert not result.holds


@pytest.mark.parametrize("true", [1.0, math.inf, -math.inf])
def test_one_class_has_no_false_logit(true):
    result = logit_separation(torch.tensor([[true], [-2.0]]), torch.tensor([0, 0]))
    assert result.gap.item() == math.inf
    assert result.holds
    assert result.violation_rate.isnan()
    assert result.gap_per_class.isnan().all()


def test_infinities():
    inf = math.inf
    result = logit_separation(torch.tensor([[inf, -inf], [-inf, inf]]), torch.tensor([0, 1]))
    assert (result.gap.item(), result.holds, result.violation_rate.item()) == (inf, True, 0.0)
    result = logit_separation(torch.tensor([[inf, inf]]), torch.tensor([0]))
    assert (result.gap.item(), result.holds, result.violation_rate.item()) == (0.0, False, 1.0)


def test_column_blocks_equal_the_whole():
    logits, target = reference.problem(50, 7, levels=8)
    whole = logit_separation(logits, target)
    blocks = logit_separation(lambda: (logits[:, k : k + 3] for k in range(0, 7, 3)), target)
    assert (blocks.gap, blocks.holds, blocks.violation_rate) == (whole.gap, whole.holds, whole.violation_rate)
    torch.testing.assert_close(blocks.gap_per_class, whole.gap_per_class, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0])
def test_logit_difference_is_the_double_sum(gamma):
    logits, target = reference.problem(12, 4)
    expected = []
    for row, y in zip(logits.tolist(), target.tolist(), strict=True):
        norm = math.sqrt(sum(v * v for v in row))
        expected.append(sum((row[y] - v) / norm**gamma for v in row))
    assert logit_difference(logits, target, gamma=gamma, reduction="none").tolist() == pytest.approx(
        expected, rel=1e-12
    )
    assert logit_difference(logits, target, gamma=gamma).item() == pytest.approx(sum(expected), rel=1e-12)
    assert logit_difference(logits, target, gamma=gamma, reduction="mean").item() == pytest.approx(sum(expected) / 12)


def test_logit_difference_edges():
    target = torch.tensor([0])
    assert logit_difference(torch.zeros(1, 3), target, gamma=0.7).item() == 0
    assert logit_difference(torch.tensor([[1e30, 0.0]]), target, gamma=1.0).item() == pytest.approx(
        1
    )  # float32^2 overflows
    assert logit_difference(torch.tensor([[math.inf, 0.0]]), target, gamma=1.0).isnan()
    with pytest.raises(ValueError, match="reduction"):
        logit_difference(torch.zeros(1, 2), target, gamma=1.0, reduction="batchmean")


def test_logit_difference_is_free_of_scale_for_gamma_one():
    logits, target = reference.problem(20, 5)
    once, thrice = (logit_difference(c * logits, target, gamma=1.0).item() for c in (1.0, 3.0))
    assert once == pytest.approx(thrice, rel=1e-12)


def test_log_partition_is_mean_and_deviation():
    logits, _ = reference.problem(30, 6)
    values = [math.log(sum(math.exp(v) for v in row)) for row in logits.tolist()]
    mean = sum(values) / 30
    result = log_partition(logits)
    assert result.mean.item() == pytest.approx(mean, rel=1e-13)
    assert result.std.item() == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 30), rel=1e-12)


def test_log_partition_edges():
    assert log_partition(torch.tensor([[1000.0, 1000.0]])).mean.item() == pytest.approx(1000 + math.log(2), rel=1e-14)
    assert log_partition(torch.zeros(1, 4)).std.item() == 0
    assert log_partition(torch.log_softmax(torch.randn(50, 9).double(), 1)).std.item() < 1e-14
    assert log_partition(torch.tensor([[math.inf, 0.0], [0.0, 0.0]])).mean.item() == math.inf
    with pytest.raises(ValueError, match="shape"):
        log_partition(torch.zeros(3))


@pytest.mark.parametrize("shape", [(6, 1), (1, 4), (6, 4)])
def test_the_logits_given_are_left_as_they_were(shape):
    logits = torch.randn(shape)
    before = logits.clone()
    logit_separation(logits, torch.zeros(shape[0], dtype=torch.long))
    assert torch.equal(logits, before)
