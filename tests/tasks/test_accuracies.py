"""Accuracies by counting; long-tail totals as published."""

import math

import pytest
import torch

from lastlayer.tasks import accuracy, f1, is_skewed, long_tail, matthews, unbiased_accuracy

from . import reference


def test_accuracy_counts_and_prefers_the_first_of_ties():
    logits, target = reference.problem(200, 5, levels=2)
    right = sum(row.index(max(row)) == y for row, y in zip(logits.tolist(), target.tolist(), strict=True))
    assert accuracy(logits, target).item() == right / 200
    assert accuracy(torch.zeros(2, 3), torch.tensor([0, 1])).item() == 0.5


def test_a_row_with_nan_is_wrong():
    # argmax of such a row is the NaN itself, so a diverged model would look right.
    logits = torch.tensor([[math.nan, 0.0], [1.0, 0.0], [math.nan, math.nan]])
    assert accuracy(logits, torch.tensor([0, 0, 0])).item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_f1_and_matthews_agree_with_sklearn(num_classes: int) -> None:
    from sklearn.metrics import f1_score, matthews_corrcoef

    logits, target = reference.problem(300, num_classes)
    predicted = logits.argmax(1)
    assert matthews(logits, target).item() == pytest.approx(matthews_corrcoef(target, predicted), abs=1e-12)
    for k in range(num_classes):
        expected = f1_score(target == k, predicted == k)
        assert f1(logits, target, positive=k).item() == pytest.approx(expected, abs=1e-12)


def test_f1_and_matthews_of_one_label_or_one_prediction() -> None:
    always_first = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert matthews(always_first, torch.tensor([0, 1])).item() == 0.0
    assert f1(always_first, torch.tensor([0, 1])).item() == 0.0
    assert math.isnan(f1(always_first, torch.tensor([0, 0])).item())


def test_subtracted_bias_is_added_back():
    scores, target = reference.problem(100, 4)
    bias = torch.tensor([5.0, -3.0, 0.0, 1.0], dtype=torch.float64)
    assert unbiased_accuracy(scores - bias, bias, target).item() == accuracy(scores, target).item()
    assert accuracy(scores - bias, target).item() != accuracy(scores, target).item()


def test_unbiased_accuracy_does_not_round_in_half_precision():
    logits = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    bias = torch.tensor([256.0, 256.5])  # 257 and 257.5 are both 258 in bfloat16
    assert unbiased_accuracy(logits, bias.bfloat16(), torch.tensor([1])).item() == 0.0  # bfloat16 bias: truly tied
    assert unbiased_accuracy(logits, bias, torch.tensor([1])).item() == 1.0


def test_unbiased_accuracy_refuses_a_wrong_bias():
    with pytest.raises(ValueError, match=r"bias must have shape \(2,\)"):
        unbiased_accuracy(torch.zeros(1, 2), torch.zeros(3), torch.tensor([0]))


def test_long_tail_groups():
    counts = torch.tensor([101, 100, 20, 19, 5000, 0])  # many, medium, medium, few, many, few
    target = torch.tensor([0, 0, 1, 2, 3, 3, 3, 3, 5])  # class 4 has no test sample
    predicted = torch.tensor([0, 1, 1, 0, 3, 3, 3, 0, 5])
    result = long_tail(torch.nn.functional.one_hot(predicted, 6).float(), target, counts)
    assert result.per_class.tolist() == pytest.approx([0.5, 1, 0, 0.75, math.nan, 1], nan_ok=True)
    assert (result.many.item(), result.medium.item(), result.few.item()) == (0.5, 0.5, 0.875)
    assert result.mean.item() == pytest.approx(3.25 / 5)


def test_long_tail_empty_group_is_nan():
    result = long_tail(torch.eye(2), torch.tensor([0, 1]), [500, 500])
    assert result.many.item() == 1
    assert result.medium.isnan()
    assert result.few.isnan()
    with pytest.raises(ValueError, match="train_counts"):
        long_tail(torch.eye(2), torch.tensor([0, 1]), [500])


@pytest.mark.parametrize(("count", "shown"), [(-3, "-3"), (math.nan, "nan")])
def test_counts_that_count_nothing_are_refused(count, shown):
    with pytest.raises(ValueError, match=f"train_counts must be numbers of samples, got {shown}.* for class 1"):
        long_tail(torch.eye(3), torch.arange(3), [5, count, 200])


@pytest.mark.parametrize("counts", [[3, 1], [4, 1], [300, 100, 200], [301, 100, 200], [5], [1, 0]])
def test_classes_are_skewed_beyond_a_factor_of_three(counts):
    expected = any(one > 3 * other for one in counts for other in counts)
    assert is_skewed(counts) == is_skewed(torch.tensor(counts)) == expected
