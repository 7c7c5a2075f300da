"""Tiles of classes against the loss on the whole logits: values and gradients, by autograd in float64."""

from __future__ import annotations

import pytest

from lastlayer.linear_loss import linear_loss
from tests.linear_loss.cases import (
    BY_CLASSES,
    KINDS,
    LABELS_BY_CLASSES,
    PER_SAMPLE,
    K,
    assert_same,
    classes,
    dense,
    layer,
    make,
    target,
    variants,
)


@pytest.mark.parametrize("name", BY_CLASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_class_tiles_equal_dense(name: str, kind: str) -> None:
    if name in LABELS_BY_CLASSES and kind == "probabilities":
        with pytest.raises(ValueError, match="'rows' takes it"):
            linear_loss(*layer()[:2], target(kind), make(name), plan=classes(3))
        return
    for module, parts, labels in variants(name, kind):
        expected = dense(module, parts, labels)
        for size in (3, 1, K, 100):
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=classes(size))
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in [*PER_SAMPLE, "batch-max-margin"] if n not in BY_CLASSES])
def test_a_loss_without_a_form_by_classes_says_which_path_takes_it(name: str) -> None:
    parts = layer()
    with pytest.raises(ValueError, match="'rows' takes it"):
        linear_loss(*parts[:2], target("index"), make(name), plan=classes(3))
