"""Each resampled value is that of the measure itself on the rows that were drawn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from lastlayer import tasks
from lastlayer.tasks import resampling
from lastlayer.tasks.resampling import resample_counts, resampled_auprc, resampled_ece, resampled_open_set


def drawn(counts: Tensor) -> list[Tensor]:
    """The rows of each resample, as often as they were drawn."""
    return [torch.repeat_interleave(torch.arange(len(one)), one) for one in counts]


def scores(rows: int, classes: int, *, ties: bool = False) -> tuple[Tensor, Tensor]:
    target = torch.arange(rows) % classes
    logits = torch.randn(rows, classes)
    logits[torch.arange(rows), target] += 1.0
    return (logits.mul(2).round() if ties else logits), target


@pytest.mark.parametrize("ties", [False, True])
def test_equals_the_measure_on_the_drawn_rows(ties: bool) -> None:
    logits, target = scores(60, 4, ties=ties)
    unknown = scores(35, 4, ties=ties)[0] - 0.5
    counts, of_unknown = resample_counts(60, 7), resample_counts(35, 7, seed=1)
    probabilities = logits.softmax(1)
    auprc, ece = resampled_auprc(logits, target, counts), resampled_ece(probabilities, target, counts)
    opened = resampled_open_set(logits, target, unknown, counts, of_unknown)
    for i, (rows, others) in enumerate(zip(drawn(counts), drawn(of_unknown), strict=True)):
        z, y = logits[rows], target[rows]
        single = [average_precision_score(y == k, z[:, k]) for k in range(4)]
        assert auprc[i].item() == pytest.approx(sum(single) / 4, abs=1e-12)
        assert ece[i].item() == pytest.approx(tasks.calibration(probabilities[rows], y).ece.item(), abs=1e-12)
        expected = tasks.open_set(z, y, unknown[others])
        assert opened["auroc"][i].item() == pytest.approx(expected.auroc.item(), abs=1e-12)
        assert opened["oscr"][i].item() == pytest.approx(expected.oscr.item(), abs=1e-12)


def test_a_class_that_is_not_drawn_is_left_out() -> None:
    logits, target = scores(6, 3)
    counts = torch.tensor([[1, 1, 0, 1, 1, 0]])  # class 2 is missing
    rows = drawn(counts)[0]
    expected = tasks.single_logit(logits[rows], target[rows]).auprc
    assert resampled_auprc(logits, target, counts)[0].item() == pytest.approx(expected.item())


def test_counts_are_those_of_draws_with_replacement_and_the_same_for_all() -> None:
    counts = resample_counts(1000, 50)
    assert torch.equal(counts, resample_counts(1000, 50))
    assert counts.sum(1).eq(1000).all()
    assert counts.double().var().item() == pytest.approx(1.0, abs=0.03)  # nearly Poisson
    assert not torch.equal(counts, resample_counts(1000, 50, seed=1))


def test_classes_are_thinned_if_all_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is a constant of the machine, so a test sets a smaller one."""
    logits, target = scores(60, 6)
    counts = resample_counts(60, 5)
    monkeypatch.setattr(resampling, "WORK", 2 * counts.numel() * 10)
    rows = drawn(counts)[0]
    per_class = tasks.single_logit(logits[rows], target[rows]).auprc_per_class
    assert resampled_auprc(logits, target, counts)[0].item() == pytest.approx(per_class[[0, 5]].mean().item())


def test_the_spread_is_that_of_other_test_sets() -> None:
    """The deviation over resamples of one test set is that over many test sets."""
    many = torch.stack([tasks.single_logit(*scores(400, 3)).auprc for _ in range(200)]).std().item()
    logits, target = scores(400, 3)
    assert resampled_auprc(logits, target, resample_counts(400, 200)).std().item() == pytest.approx(many, rel=0.25)
