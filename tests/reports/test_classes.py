"""How each class fares, against scikit-learn on the rows of all seeds put together."""

import numpy
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_score, recall_score

from lastlayer.reports import load, summarise
from lastlayer.reports.classes import MOST_PAIRS, classes_of
from lastlayer.reports.evidence import Rows

from . import factory
from .factory import trial

NAMES = ("cat", "dog", "owl", "yak")


def logits_of(decision, classes):
    return torch.nn.functional.one_hot(torch.as_tensor(decision), classes).float()


def run(root, loss, seed, target, decision, names=NAMES, **options):
    rows = factory.rows(logits_of(decision, len(names)), torch.as_tensor(target))
    factory.done(root, trial(loss, seed), classes=names, rows=rows, **options)


@pytest.fixture
def drawn():
    """Labels, and decisions by loss and seed."""
    random = numpy.random.default_rng(0)
    target = random.integers(0, 4, 60)
    wrong = {"ce": 0.2, "sln": 0.5}
    decisions = {
        (loss, seed): numpy.where(random.random(60) < share, random.integers(0, 4, 60), target)
        for loss, share in wrong.items()
        for seed in range(3)
    }
    return target, decisions


def test_equals_sklearn_on_the_rows_of_all_seeds(tmp_path, drawn):
    target, decisions = drawn
    for (loss, seed), decision in decisions.items():
        run(tmp_path, loss, seed, target, decision, counts=(9, 8, 7, 6))
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert found.labels == ("ce", "sln")
    assert found.names == NAMES
    assert found.rows.tolist() == numpy.bincount(target).tolist()
    assert found.training.tolist() == [9, 8, 7, 6]
    matrices = []
    for i, loss in enumerate(found.labels):
        labels, decided = numpy.tile(target, 3), numpy.concatenate([decisions[loss, seed] for seed in range(3)])
        assert found.recall[i] == pytest.approx(recall_score(labels, decided, average=None))
        assert found.precision[i] == pytest.approx(precision_score(labels, decided, average=None))
        matrices.append(confusion_matrix(labels, decided))
    for pair in found.pairs:
        assert pair.counts == tuple(matrix[pair.label, pair.decision] for matrix in matrices)
        assert pair.rows == tuple(matrix[pair.label].sum() for matrix in matrices)
    added = [sum(pair.counts) for pair in found.pairs]
    assert added == sorted(added, reverse=True)
    off = sum(matrices) * (1 - numpy.eye(4, dtype=int))
    assert len(found.pairs) == min(MOST_PAIRS, (off > 0).sum())
    assert found.by_recall == numpy.argsort(found.recall.mean(0), kind="stable").tolist()


def test_seeds_on_other_folds_add_up_to_more_rows(tmp_path):
    for loss in ("ce", "sln"):
        for seed, target in enumerate(([0, 1, 1], [0, 2, 3])):
            run(tmp_path, loss, seed, target, target)
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert found.rows.tolist() == [2, 2, 1, 1]
    assert found.pairs == ()


def test_only_what_few_rows_cannot_explain_differs(tmp_path):
    target = [0] * 100 + [1] * 100 + [2, 2] + [3] * 20
    for loss, of_cat, of_owl in (("ce", 90, 2), ("sln", 40, 0)):
        decision = [0] * of_cat + [1] * (100 - of_cat) + [1] * 100 + [2] * of_owl + [3] * (2 - of_owl) + [3] * 20
        run(tmp_path, loss, 0, target, decision)
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert [found.names[k] for k in found.differing] == ["cat"]  # of owls there are but two rows
    assert [found.names[k] for k in found.by_recall[:2]] == ["owl", "cat"]


def test_a_class_without_test_rows_is_not_listed(tmp_path):
    run(tmp_path, "ce", 0, [0, 1, 1, 3], [0, 1, 0, 3])
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert sorted(found.by_recall) == [0, 1, 3]
    assert found.differing == []


def test_old_runs_and_runs_of_other_classes_are_left_out_and_named(tmp_path):
    factory.done(tmp_path, trial("bce"), classes=NAMES)
    assert classes_of(summarise(load(tmp_path)), Rows()) is None
    run(tmp_path, "ce", 0, [0, 1], [0, 1])
    run(tmp_path, "sln", 0, [0, 1], [0, 1], names=("ant", "bee"))
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert found.labels == ("ce",)
    assert any("bce" in note and "Train them again" in note for note in found.notes)
    assert any("sln" in note for note in found.notes)


def test_a_damaged_file_of_rows_counts_as_none(tmp_path):
    run(tmp_path, "ce", 0, [0, 1], [0, 1])
    file = tmp_path / factory.identity(trial("ce")) / "rows.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert classes_of(summarise(load(tmp_path)), Rows()) is None


def test_a_thousand_classes(tmp_path):
    names = tuple(f"class {k}" for k in range(1000))
    target = torch.arange(3000) % 1000
    decision = torch.where(torch.arange(3000) < 1000, (target + 1) % 1000, target)
    run(tmp_path, "ce", 0, target, decision, names=names)
    found = classes_of(summarise(load(tmp_path)), Rows())
    assert len(found.pairs) == MOST_PAIRS
    assert found.recall[0] == pytest.approx(numpy.full(1000, 2 / 3))
