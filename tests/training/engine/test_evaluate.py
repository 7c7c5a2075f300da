"""A split whose logits would not fit is measured on an even share of each class, and its accuracy on all of it."""

import itertools
from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score

from lastlayer import geometry, losses
from lastlayer.data import Dataset, Normalize, Split
from lastlayer.heads import BatchNormHead, LinearHead
from lastlayer.models import create
from lastlayer.training.build import Network
from lastlayer.training.engine import evaluate


@pytest.fixture
def many(largest_logits: Callable[[int], None]) -> tuple[Network, Dataset]:
    largest_logits(4 * 100)
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(1030) % 4  # a stride of 10 would meet two of the four classes
    target[:400] = 0
    inputs = torch.randn(1030, 8, generator=generator) + target[:, None]
    split = Split(inputs, target)
    dataset = Dataset("many", split, split.select(torch.arange(90)), tuple("abcd"))
    return Network(Normalize(), create("identity", (8,)), LinearHead(8, 4)), dataset


def test_every_class_keeps_its_share(many: tuple[Network, Dataset]) -> None:
    _, dataset = many
    part = evaluate.measured_part(dataset.train, 4)
    assert len(part) == 100
    shares = part.target.bincount(minlength=4) / dataset.train_counts
    assert torch.allclose(shares, torch.full((4,), 100 / 1030), atol=0.01)
    assert evaluate.measured_part(dataset.test, 4) is dataset.test


def test_accuracy_is_that_of_all_samples(many: tuple[Network, Dataset]) -> None:
    network, dataset = many  # batches of 100, the last one shorter
    made = evaluate.outputs(network, dataset.train)
    assert made.logits.shape == (100, 4)
    with torch.no_grad():
        expected = (network(dataset.train.inputs).argmax(1) == dataset.train.target).double().mean().item()
    values = evaluate.measure(network, losses.create("ce", 4), dataset, made, on_test=False)
    assert values["accuracy"] == expected
    with torch.no_grad():
        decision = network(dataset.train.inputs).argmax(1)
    assert values["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(dataset.train.target, decision))
    assert values["macro_f1"] == pytest.approx(f1_score(dataset.train.target, decision, average="macro"))
    assert 0 < values["auprc"] <= 1


@pytest.mark.parametrize("limit", [10**6, 100])
def test_groups_of_frequent_and_rare_classes_where_the_training_set_is_skewed(
    many: tuple[Network, Dataset], largest_logits: Callable[[int], None], limit: int
) -> None:
    """Classes of 400 + 150 and of 160 samples: the largest has more than three times as many. The test set has 90."""
    largest_logits(limit)
    network, dataset = many
    rare = dataset.train.select(
        torch.cat([torch.arange(560), torch.arange(560, 1030)[dataset.train.target[560:] != 3]])
    )
    dataset = dataset.replace(train=rare, test=Split(dataset.train.inputs[400:490], dataset.train.target[400:490]))
    made = evaluate.outputs(network, dataset.test)
    values = evaluate.measure(network, losses.create("ce", 4), dataset, made, on_test=True)
    with torch.no_grad():
        decision = network(dataset.test.inputs).argmax(1)
    recall = recall_score(dataset.test.target, decision, average=None)
    counts = dataset.train_counts
    assert counts.max() > 3 * counts.min()
    assert values["many"] == pytest.approx(recall[(counts > 100).numpy()].mean())
    assert values["medium"] == pytest.approx(recall[((counts >= 20) & (counts <= 100)).numpy()].mean(), nan_ok=True)
    assert "many" not in evaluate.measure(network, losses.create("ce", 4), dataset, made, on_test=False)


def test_a_data_set_with_even_classes_has_no_groups(many: tuple[Network, Dataset]) -> None:
    network, dataset = many
    even = dataset.replace(train=Split(dataset.train.inputs[400:], dataset.train.target[400:]))
    made = evaluate.outputs(network, even.test)
    assert "many" not in evaluate.measure(network, losses.create("ce", 4), even, made, on_test=True)


def test_norms_of_a_batch_norm_head_and_new_classes_are_measured(many: tuple[Network, Dataset]) -> None:
    _, dataset = many
    head = BatchNormHead(8, 4, gamma=0.5)
    network = Network(Normalize(), create("identity", (8,)), head)
    opened = dataset.replace(unknown=Split(dataset.train.inputs[:60], torch.arange(60) % 3 + 20))
    made = evaluate.finish(evaluate.read_test(network, opened, None))
    values = evaluate.measure(network, losses.create("ce", 4), opened, made, on_test=True)
    assert values["gamma_norm"] == pytest.approx(0.5 * 8**0.5)
    assert values["weight_norm"] == pytest.approx(head.weight.detach().square().sum(1).mean().sqrt().item())
    assert made.unknown is not None
    assert values["nearest_mean"] == geometry.nearest_mean_accuracy(made.unknown.features, made.unknown.target).item()


def test_no_batch_makes_more_logits_than_are_held(many: tuple[Network, Dataset]) -> None:
    network, dataset = many
    seen: list[int] = []
    network.head.register_forward_hook(lambda _module, _inputs, made: seen.append(made.numel()))
    evaluate.outputs(network, dataset.train)
    assert max(seen) <= 4 * 100


@pytest.mark.parametrize(("shape", "sizes"), [((3, 32, 32), [100, 100, 30]), ((2,), [230]), ((3, 400, 400), [1, 1])])
def test_batches_of_images_on_a_cpu_are_small(shape: tuple[int, ...], sizes: list[int]) -> None:
    network = Network(Normalize(), create("identity", shape), LinearHead(torch.Size(shape).numel(), 2))
    seen: list[int] = []
    network.backbone.register_forward_hook(lambda _module, inputs, _made: seen.append(len(inputs[0])))
    inputs = torch.zeros(1, *shape).expand(sum(sizes), *shape)
    made = evaluate.outputs(network, Split(inputs, torch.arange(sum(sizes)) % 2))
    assert seen == sizes
    assert made.logits.shape == (sum(sizes), 2)


def test_snapshots_point_at_measured_samples(many: tuple[Network, Dataset]) -> None:
    network, dataset = many
    chosen = evaluate.snapshot_samples(dataset.train, 4)
    made = evaluate.outputs(network, dataset.train)
    assert int(chosen.max()) < len(made.target)
    picture = evaluate.snapshot(made, chosen)
    assert len(picture["features"]) == len(chosen)


def test_evaluations_never_exceed_the_epochs() -> None:
    assert evaluate.evaluation_epochs(2, 10) == {0, 1, 2}
    assert max(evaluate.evaluation_epochs(7, 3)) == 7


def test_of_many_evaluations_sixty_leave_a_snapshot() -> None:
    chosen = sorted(evaluate.snapshot_epochs(set(range(0, 1001, 5))))
    assert (len(chosen), chosen[0], chosen[-1]) == (60, 0, 1000)
    gaps = {b - a for a, b in itertools.pairwise(chosen)}
    assert gaps == {15, 20}
    assert evaluate.snapshot_epochs({0, 3, 9}) == {0, 3, 9}
