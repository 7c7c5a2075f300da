"""Critical conditions and the stopping rule on cases worked by hand and by loops."""

import math

import pytest
import torch

from lastlayer.tasks import collapse_gap, collapsed, critical_conditions, scores

from . import reference


@pytest.mark.parametrize("shift", [0.0, 3.0, -3.0])
@pytest.mark.parametrize("separation", [0.0, 8.0, 20.0])
def test_conditions_equal_the_loop(shift, separation):
    scores, target = reference.problem(40, 4, separation=separation)
    scores = scores + shift
    one, two = [], []
    for row, y in zip(scores.tolist(), target.tolist(), strict=True):
        others = [v for j, v in enumerate(row) if j != y]
        one.append(row[y] > max(others))
        two.append(row[y] > 0 > max(others))
    result = critical_conditions(scores, target)
    assert (result.one, result.two) == (all(one), all(two))
    assert (result.share_one.item(), result.share_two.item()) == (sum(one) / 40, sum(two) / 40)
    assert result.one or not result.two


def test_conditions_are_strict():
    assert not critical_conditions(torch.tensor([[1.0, 1.0]]), torch.tensor([0])).one
    assert not critical_conditions(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).two
    assert not critical_conditions(torch.tensor([[0.0, -1.0]]), torch.tensor([0])).two
    assert critical_conditions(torch.tensor([[1.0, -1.0]]), torch.tensor([0])).two


def test_nan_meets_no_condition_and_one_class_has_no_negatives():
    for row in ([math.nan, -1.0], [1.0, math.nan]):
        result = critical_conditions(torch.tensor([row]), torch.tensor([0]))
        assert (result.one, result.two) == (False, False)
        assert not collapsed(torch.tensor([row]), torch.tensor([0]), 2.0)
    single = critical_conditions(torch.tensor([[0.5], [-0.5]]), torch.tensor([0, 0]))
    assert (single.one, single.two, single.share_two.item()) == (True, False, 0.5)
    assert collapsed(torch.tensor([[1.0]]), torch.tensor([0]), 0.0)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_collapsed_at_the_simplex_and_not_beyond(classes):
    gram = classes / (classes - 1) * (torch.eye(classes, dtype=torch.float64) - 1 / classes)
    target = torch.arange(classes)
    assert collapsed(gram, target, 1e-12)
    for i, j in ((0, 0), (0, 1)):
        for sign in (-1, 1):
            off = gram.clone()
            off[i, j] += sign * 0.0011
            assert not collapsed(off, target, 0.001)
            assert collapsed(off, target, 0.0012)
    assert not collapsed(gram.roll(1, 0), target, 0.5)
    with pytest.raises(ValueError, match="tol"):
        collapsed(gram, target, -1.0)


def test_the_gap_is_the_largest_distance_from_collapse():
    generator = torch.Generator().manual_seed(0)
    cosines = 2 * torch.rand(20, 4, generator=generator) - 1
    target = torch.randint(0, 4, (20,), generator=generator)
    worst = 0.0
    for row, label in zip(cosines.tolist(), target.tolist(), strict=True):
        for k, value in enumerate(row):
            worst = max(worst, abs(value - (1.0 if k == label else -1 / 3)))
    assert float(collapse_gap(cosines, target)) == pytest.approx(worst, abs=1e-12)
    assert collapsed(cosines, target, worst + 1e-6)
    assert not collapsed(cosines, target, worst - 1e-6)
    assert math.isnan(float(collapse_gap(torch.tensor([[math.nan, 0.0]]), torch.tensor([0]))))


def test_scores_of_one_class_have_no_negatives():
    spread = scores(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 0]))
    assert (float(spread.positive_mean), float(spread.positive_std)) == (3.0, 1.0)
    assert math.isnan(float(spread.negative_mean))
