"""open_set against all pairs and scikit-learn, and against what public code gets wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from lastlayer.tasks import open_set

from . import reference


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from([None, 2, 8]), st.integers(0, 99))
def test_equals_all_pairs(known, unknown, levels, seed):
    logits, target = reference.problem(known, 3, levels=levels, seed=seed)
    others, _ = reference.problem(unknown, 3, levels=levels, separation=0.0, seed=seed + 100)
    result = open_set(logits, target, others)
    auroc, oscr = reference.open_set(logits, target, others)
    assert result.auroc.item() == pytest.approx(auroc, abs=1e-15)
    assert result.oscr.item() == pytest.approx(oscr, abs=1e-15)
    assert result.oscr.item() <= min(result.auroc.item(), result.accuracy.item()) + 1e-15


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_equals_scikit_learn(dtype):
    logits, target = (reference.problem(500, 4)[0].to(dtype), reference.problem(500, 4)[1])
    others = reference.problem(300, 4, separation=0.0, seed=1)[0].to(dtype)
    scores = torch.cat([logits, others]).double().max(1).values
    expected = roc_auc_score([1] * 500 + [0] * 300, scores.numpy())
    assert open_set(logits, target, others).auroc.item() == pytest.approx(expected, abs=1e-12)


def test_ties_count_half_and_not_against():
    same = torch.zeros(5, 2)
    result = open_set(same, torch.zeros(5, dtype=torch.long), same)
    assert (result.auroc.item(), result.oscr.item(), result.accuracy.item()) == (0.5, 0.5, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_ties_against_count_nothing(seed):
    logits, target = reference.problem(30, 3, levels=2, seed=seed)
    others = reference.problem(20, 3, levels=2, separation=0.0, seed=seed + 100)[0]
    above = logits.amax(dim=1)[:, None] > others.amax(dim=1)  # (30, 20)
    right = (logits.argmax(dim=1) == target)[:, None]
    result = open_set(logits, target, others, ties="against")
    assert result.auroc.item() == pytest.approx(above.double().mean().item(), abs=1e-15)
    assert result.oscr.item() == pytest.approx((above & right).double().mean().item(), abs=1e-15)
    assert result.auroc < open_set(logits, target, others).auroc
    with pytest.raises(ValueError, match="ties must be"):
        open_set(logits, target, others, ties="for")


def test_order_of_tied_samples_is_irrelevant():
    logits, target = reference.problem(60, 3, levels=2)
    others = reference.problem(60, 3, levels=2, separation=0.0, seed=1)[0]
    first = open_set(logits, target, others)
    for seed in range(5):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
        again = open_set(logits[order], target[order], others[order.flip(0)])
        assert (again.auroc, again.oscr) == (first.auroc, first.oscr)


def test_a_shift_of_forty_changes_nothing():
    logits, target = reference.problem(100, 3, levels=16)
    others = reference.problem(100, 3, levels=16, separation=0.0, seed=1)[0]
    plain = open_set(logits.float(), target, others.float())
    shifted = open_set(logits.float() + 40, target, others.float() + 40)
    assert (plain.auroc, plain.oscr) == (shifted.auroc, shifted.oscr)
    assert plain.auroc > 0.55


def test_perfect_and_inverted():
    high, low = torch.tensor([[9.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    assert open_set(high, torch.tensor([0]), low).oscr.item() == 1
    assert open_set(high, torch.tensor([1]), low).oscr.item() == 0
    assert open_set(low, torch.tensor([0]), high).auroc.item() == 0


def test_unknown_samples_need_the_same_columns():
    with pytest.raises(ValueError, match="2 columns"):
        open_set(torch.zeros(1, 2), torch.tensor([0]), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="unknown_logits is empty"):
        open_set(torch.zeros(1, 2), torch.tensor([0]), torch.zeros(0, 2))
