"""single_logit against brute force over all thresholds, scikit-learn, and what must leave it unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, precision_recall_curve

from lastlayer.tasks import single_logit

from . import reference


@pytest.mark.parametrize("levels", [None, 2, 8, 64])
@pytest.mark.parametrize(("samples", "classes"), [(1, 1), (2, 2), (30, 3), (120, 12)])
def test_equals_all_thresholds(samples, classes, levels):
    logits, target = reference.problem(samples, classes, levels=levels)
    result = single_logit(logits, target, recalls=(0.9,))
    areas, precision = reference.single_logit(logits, target)
    torch.testing.assert_close(
        result.auprc_per_class, torch.tensor(areas, dtype=torch.float64), rtol=0, atol=1e-13, equal_nan=True
    )
    assert result.auprc.item() == pytest.approx(np.nanmean(areas), abs=1e-13)
    assert result.precision_at[0.9].item() == pytest.approx(precision, abs=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("separation", [-1.0, 0.0, 3.0])
def test_equals_scikit_learn(dtype, separation):
    logits, target = reference.problem(4000, 5, separation=separation)
    logits = logits.to(dtype)
    result = single_logit(logits, target, recalls=(0.9, 0.5))
    for k in range(5):
        positive, scores = (target == k).numpy(), logits[:, k].double().numpy()
        assert abs(result.auprc_per_class[k].item() - average_precision_score(positive, scores)) < 1e-12
    for recall in (0.9, 0.5):
        best = []
        for k in range(5):
            precision, at, _ = precision_recall_curve((target == k).numpy(), logits[:, k].double().numpy())
            best.append(precision[at >= recall - 1e-9].max())
        assert result.precision_at[recall].item() == pytest.approx(np.mean(best), abs=1e-12)


small = st.integers(-3, 3).map(float)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_ties_order_and_increasing_functions(data):
    samples, classes = data.draw(st.integers(1, 25)), data.draw(st.integers(1, 4))
    logits = torch.tensor(
        data.draw(st.lists(small, min_size=samples * classes, max_size=samples * classes)), dtype=torch.float32
    ).view(samples, classes)
    target = torch.tensor(data.draw(st.lists(st.integers(0, classes - 1), min_size=samples, max_size=samples)))
    result = single_logit(logits, target)
    areas, _ = reference.single_logit(logits, target)
    torch.testing.assert_close(
        result.auprc_per_class, torch.tensor(areas, dtype=torch.float64), rtol=0, atol=1e-13, equal_nan=True
    )
    order = torch.tensor(data.draw(st.permutations(range(samples))))
    for same in (
        single_logit(logits[order], target[order]),
        single_logit(logits.double().exp(), target),
        single_logit(1000 + logits**3, target),
    ):
        torch.testing.assert_close(same.auprc_per_class, result.auprc_per_class, rtol=0, atol=1e-13, equal_nan=True)
        assert same.precision_at == result.precision_at or torch.isnan(result.auprc)


@pytest.mark.parametrize("shift", [40.0, 1000.0])
def test_no_sigmoid_is_applied(shift):
    # Metrics that squash scores outside [0, 1] see only ones here and report chance.
    logits, target = reference.problem(300, 3, levels=16)
    logits = logits.float()
    assert torch.equal(single_logit(logits + shift, target).auprc, single_logit(logits, target).auprc)


def test_scores_are_not_cast_down():
    # Equal in float32, not in float64.
    logits = torch.tensor([[1.0], [1.0 + 2**-40]], dtype=torch.float64).repeat(1, 2)
    assert single_logit(logits, torch.tensor([0, 1])).auprc_per_class.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("recall", "positives", "needed"), [(0.9, 10, 9), (0.7, 10, 7), (0.55, 100, 55), (0.99, 100, 99), (1.0, 3, 3)]
)
def test_recall_is_reached_despite_rounding(recall, positives, needed):
    # The first `needed` positives stand above one negative, the others below it.
    scores = torch.cat([torch.arange(needed) + 1.0, torch.zeros(1), -torch.arange(1, positives - needed + 1.0)])
    target = torch.tensor([0] * needed + [1] + [0] * (positives - needed))
    logits = torch.stack([scores, torch.zeros_like(scores)], dim=1)
    # Class 0 has precision 1 at this recall. Class 1 has a single positive, and all its scores are tied.
    precision = single_logit(logits, target, recalls=(recall,)).precision_at[recall].item()
    assert precision == pytest.approx((1 + 1 / len(target)) / 2, abs=1e-15)


def test_infinite_scores_rank_like_any_other():
    inf = float("inf")
    logits = torch.tensor([[inf, -inf], [inf, 0.0], [-inf, inf], [0.0, -inf]])
    target = torch.tensor([0, 1, 1, 0])
    areas, _ = reference.single_logit(logits, target)
    assert single_logit(logits, target).auprc_per_class.tolist() == pytest.approx(areas, abs=1e-15)


def test_missing_classes_are_nan_and_skipped():
    logits, target = reference.problem(40, 3)
    wide = torch.cat([torch.randn(40, 1, dtype=torch.float64), logits, torch.randn(40, 2, dtype=torch.float64)], dim=1)
    result = single_logit(wide, target + 1)
    assert result.auprc_per_class.isnan().tolist() == [True, False, False, False, True, True]
    assert torch.equal(result.auprc, single_logit(logits, target).auprc)
    assert result.precision_at == single_logit(logits, target).precision_at


def test_column_blocks_equal_the_whole():
    logits, target = reference.problem(200, 11, levels=16)
    whole = single_logit(logits, target)
    for width in (1, 4, 11):
        blocks = single_logit(lambda w=width: (logits[:, k : k + w] for k in range(0, 11, w)), target)
        assert torch.equal(blocks.auprc_per_class, whole.auprc_per_class)
        assert blocks.precision_at == whole.precision_at


def test_strided_and_transposed_memory():
    logits, target = reference.problem(5000, 3)
    assert torch.equal(single_logit(logits.T.contiguous().T, target).auprc, single_logit(logits, target).auprc)
    assert torch.equal(
        single_logit(logits.repeat_interleave(2, 1)[:, ::2], target).auprc, single_logit(logits, target).auprc
    )


def test_no_recalls_and_wrong_recalls():
    logits, target = reference.problem(10, 2)
    assert single_logit(logits, target, recalls=()).precision_at == {}
    for recall in (0.0, 1.1, float("nan")):
        with pytest.raises(ValueError, match="recalls"):
            single_logit(logits, target, recalls=(recall,))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_same_on_cuda():
    logits, target = reference.problem(5000, 20, levels=100)
    ours = single_logit(logits.cuda(), target.cuda())
    assert ours.auprc.is_cuda
    torch.testing.assert_close(
        ours.auprc_per_class.cpu(), single_logit(logits, target).auprc_per_class, rtol=0, atol=1e-13
    )
