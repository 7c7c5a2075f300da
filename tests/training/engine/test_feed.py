"""Batches: every sample once per epoch, the part of each rank, and batches that worker processes gather."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lastlayer.data import Dataset, Split
from lastlayer.training import Augmentation, ModelChoice, Trial
from lastlayer.training.engine.feed import Batch, Feed, streamed
from lastlayer.training.engine.ranks import Ranks
from lastlayer.training.engine.state import State
from lastlayer.training.fit import begin


def batches(state: State, feed: Feed) -> list[Batch]:
    """Those of one epoch, as the steps of a training draw them."""
    feed.begin_epoch(state.begin_epoch())
    drawn = []
    for _ in range(state.steps_per_epoch):
        drawn.append(feed.draw(state))
        state.count(torch.zeros(()), drawn[-1].labels, drawn[-1].labels)
    return drawn


@pytest.fixture
def numbered() -> Dataset:
    """50 points, the number of each as its only entry."""
    split = Split(torch.arange(50.0)[:, None], torch.arange(50) % 2)
    return Dataset("numbered", split, split, ("even", "odd"))


def test_an_epoch_has_each_sample_once_in_an_order_of_its_own(numbered: Dataset) -> None:
    state, feed = begin(Trial(model=ModelChoice("identity"), batch_size=10).resolved(), numbered)
    orders = []
    for _ in range(2):
        drawn = batches(state, feed)
        assert [len(batch.inputs) for batch in drawn] == [10] * 5
        order = torch.cat([batch.inputs for batch in drawn]).flatten().int().tolist()
        assert sorted(order) == list(range(50))
        assert [number % 2 for number in order] == torch.cat([batch.labels for batch in drawn]).tolist()
        orders.append(order)
    assert orders[0] != orders[1]


def test_the_last_shorter_batch_is_left_out(numbered: Dataset) -> None:
    state, feed = begin(Trial(model=ModelChoice("identity"), batch_size=20).resolved(), numbered)
    assert [len(batch.inputs) for batch in batches(state, feed)] == [20, 20]


def test_mixed_batches_have_two_labels_and_the_share_of_the_first(numbered: Dataset) -> None:
    trial = Trial(model=ModelChoice("identity"), augmentation=Augmentation(mixup=0.4), batch_size=10).resolved()
    state, feed = begin(trial, numbered)
    for batch in batches(state, feed):
        first, second, share = batch.target
        assert torch.equal(first, batch.labels)
        assert second.sort().values.tolist() == first.sort().values.tolist()
        assert 0 <= float(share) <= 1


@pytest.mark.parametrize("count", [2, 5])
def test_the_parts_of_all_ranks_are_the_batch_of_one_process(numbered: Dataset, count: int) -> None:
    trial = Trial(model=ModelChoice("identity"), batch_size=10).resolved()
    parts = []
    for rank in range(count):
        fabric: Any = SimpleNamespace(global_rank=rank, world_size=count)
        parts.append(batches(*begin(trial, numbered, ranks=Ranks(fabric))))
    numbers = [torch.cat([batch.inputs for batch in together]).flatten() for together in zip(*parts, strict=True)]
    assert [len(batch) for batch in numbers] == [10] * 5
    assert torch.cat(numbers).sort().values.tolist() == list(range(50))


def test_streamed_batches_come_in_the_order_asked_for_and_whole(numbered: Dataset) -> None:
    order = torch.randperm(50)[:25]
    drawn = list(streamed(numbered.train, order, 10, torch.device("cpu")))
    assert [len(labels) for _, labels in drawn] == [10, 10]
    assert torch.equal(torch.cat([inputs for inputs, _ in drawn]).flatten().long(), order[:20])
    assert torch.equal(torch.cat([labels for _, labels in drawn]), order[:20] % 2)
