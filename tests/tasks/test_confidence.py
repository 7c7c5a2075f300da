"""calibration against loops over bins, torchmetrics and scikit-learn."""

import math

import pytest
import torch
from sklearn.metrics import log_loss

from lastlayer.tasks import calibration, single_calibration

from . import reference


def loop(probabilities, target, bins):
    gap = brier = 0.0
    for b in range(bins):
        inside = [
            (max(row), row.index(max(row)) == y)
            for row, y in zip(probabilities.tolist(), target.tolist(), strict=True)
            if b / bins < max(row) <= (b + 1) / bins or (b == 0 and max(row) == 0)
        ]
        gap += abs(sum(right for _, right in inside) - sum(top for top, _ in inside))
    for row, y in zip(probabilities.tolist(), target.tolist(), strict=True):
        brier += sum((p - (j == y)) ** 2 for j, p in enumerate(row))
    return gap / len(target), brier / len(target)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("squash", [torch.sigmoid, lambda z: z.softmax(1)], ids=["sigmoid", "softmax"])
def test_equals_the_loop_over_bins(bins, squash):
    logits, target = reference.problem(300, 4)
    probabilities = squash(logits)
    result = calibration(probabilities, target, bins=bins)
    ece, brier = loop(probabilities, target, bins)
    assert result.ece.item() == pytest.approx(ece, abs=1e-13)
    assert result.brier.item() == pytest.approx(brier, rel=1e-13)
    nll = -sum(math.log(row[y]) for row, y in zip(probabilities.tolist(), target.tolist(), strict=True)) / 300
    assert result.nll.item() == pytest.approx(nll, rel=1e-13)


def test_equals_peers_on_softmax():
    from torchmetrics.functional.classification import multiclass_calibration_error

    logits, target = reference.problem(500, 6, separation=3.0)
    probabilities = logits.softmax(1)
    result = calibration(probabilities, target)
    assert result.ece.item() == pytest.approx(
        multiclass_calibration_error(probabilities, target, num_classes=6, n_bins=15).item(), abs=1e-6
    )
    assert result.nll.item() == pytest.approx(
        log_loss(target.numpy(), probabilities.numpy(), labels=range(6)), rel=1e-9
    )


def test_bin_edges_belong_to_the_bin_below():
    # 0.5 closes the first of two bins; with 0.75 in the second the errors do not cancel.
    probabilities = torch.tensor([[0.5, 0.0], [0.75, 0.25]], dtype=torch.float64)
    assert calibration(probabilities, torch.tensor([0, 1]), bins=2).ece.item() == (0.5 + 0.75) / 2
    assert calibration(torch.zeros(1, 2), torch.tensor([0])).ece.item() == 1.0


def test_nearly_perfect_probabilities_keep_their_digits():
    small = 2.0**-40
    probabilities = torch.tensor([[1 - small, small]], dtype=torch.float64)
    assert calibration(probabilities, torch.tensor([0])).brier.item() == pytest.approx(2 * small**2, rel=1e-12)


def test_zero_probability_of_the_label_is_infinite():
    assert calibration(torch.tensor([[0.0, 1.0]]), torch.tensor([0])).nll.item() == math.inf


def test_logits_given_by_mistake_are_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        calibration(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="bins"):
        calibration(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), bins=0)


@pytest.mark.parametrize("bins", [1, 4, 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_single_calibration_equals_the_loop_over_pairs(bins, dtype):
    logits, target = reference.problem(60, 4)
    probabilities = torch.sigmoid(logits).to(dtype)
    total = 0.0
    for b in range(bins):
        stated, true = 0.0, 0
        for row, y in zip(probabilities.tolist(), target.tolist(), strict=True):
            for k, p in enumerate(row):
                if b / bins < p <= (b + 1) / bins or (b == 0 and p == 0):
                    stated, true = stated + p, true + (k == y)
        total += abs(true - stated)
    assert single_calibration(probabilities, target, bins=bins).item() == pytest.approx(total / 240, abs=1e-13)


def test_single_probabilities_that_come_true_as_often_as_they_say_have_no_error():
    stated = torch.tensor([0.2, 0.8], dtype=torch.float64).expand(10, 2)
    target = torch.tensor([0] * 2 + [1] * 8)
    assert single_calibration(stated, target).item() == pytest.approx(0.0, abs=1e-15)
    assert single_calibration(1 - stated, target).item() == pytest.approx(0.6)
    assert single_calibration(torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)).item() == 0.0


def test_wrong_single_probabilities_are_refused():
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        single_calibration(torch.tensor([[1.5, 0.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="bins must be at least 1"):
        single_calibration(torch.ones(1, 2), torch.tensor([0]), bins=0)
