"""Measures per class against scikit-learn and sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from lastlayer import tasks


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 60))
def test_equals_sklearn(seed: int, classes: int, samples: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, classes, generator=generator)
    target = torch.randint(classes, (samples,), generator=generator)
    decision = logits.argmax(1)
    found = tasks.per_class(decision, target, classes)
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        target, decision, labels=range(classes), zero_division=np.nan
    )
    assert found.precision.numpy() == pytest.approx(precision, nan_ok=True)
    assert found.recall.numpy() == pytest.approx(recall, nan_ok=True)
    assert found.support.tolist() == support.tolist()
    assert found.f1.numpy() == pytest.approx(f1, nan_ok=True)
    there = np.unique(target)
    assert tasks.balanced_accuracy(logits, target).item() == pytest.approx(recall[there].mean())
    assert tasks.macro_f1(logits, target).item() == pytest.approx(np.nanmean(f1))
    matrix = metrics.confusion_matrix(target, decision, labels=range(classes))
    np.fill_diagonal(matrix, 0)
    pairs = tasks.confusions(decision, target, classes, most=classes**2)
    rebuilt = np.zeros_like(matrix)
    rebuilt[pairs.label, pairs.decision] = pairs.count
    assert (rebuilt == matrix).all()
    assert pairs.count.tolist() == sorted(pairs.count.tolist(), reverse=True)


def test_the_most_frequent_confusions_of_very_many_classes() -> None:
    target = torch.randint(100_000, (5000,))
    decision = target.clone()
    decision[:300] = 99_999
    target[:200] = 7
    found = tasks.confusions(decision, target, 100_000, most=1)
    assert (found.label.item(), found.decision.item(), found.count.item()) == (7, 99_999, 200)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 8))
def test_top_k_equals_sorting(seed: int, classes: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(3, (20, classes), generator=generator).float()  # many ties
    target = torch.randint(classes, (20,), generator=generator)
    order = logits.sort(dim=1, descending=True, stable=True).indices[:, :k]
    assert tasks.top_k(logits, target, k).item() == pytest.approx((order == target[:, None]).any(1).double().mean())
    assert tasks.top_k(logits, target, 1).item() == pytest.approx(tasks.accuracy(logits, target).item())


def test_nan_is_wrong_and_k_must_be_positive() -> None:
    logits, target = torch.tensor([[1.0, float("nan")], [1.0, 0.0]]), torch.tensor([0, 0])
    assert tasks.top_k(logits, target, 2).item() == 0.5
    with pytest.raises(ValueError, match="k must be 1 or more, got 0"):
        tasks.top_k(logits, target, 0)


@pytest.mark.parametrize("name", ["balanced_accuracy", "macro_f1", "top_k"])
def test_labels_out_of_range_are_named(name: str) -> None:
    with pytest.raises(ValueError, match="2"):
        getattr(tasks, name)(torch.randn(3, 2), torch.tensor([0, 1, 2]))
