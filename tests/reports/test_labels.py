import pytest

from lastlayer.reports.labels import differing, labels_of, settings_of

from .factory import trial


def keys(*trials):
    return [{name: value for name, value in one.items() if name != "seed"} for one in trials]


def test_the_loss_alone_where_it_says_enough():
    assert labels_of(keys(trial("ce"), trial("sln", lr=0.01), trial("bce"))) == ["ce", "sln", "bce"]


def test_what_differs_among_groups_of_the_same_loss():
    made = labels_of(keys(trial("ce"), trial("sln", options={"gamma": 0.5}), trial("sln", options={"gamma": 0.7})))
    assert made == ["ce", "sln gamma=0.5", "sln gamma=0.7"]
    assert labels_of(keys(trial(lr=0.1), trial(lr=0.01))) == ["ce lr=0.1", "ce lr=0.01"]


def test_an_option_that_one_group_leaves_out():
    assert labels_of(keys(trial("sln"), trial("sln", options={"gamma": 0.5}))) == ["sln", "sln gamma=0.5"]


def test_the_name_of_a_part_is_called_by_the_part():
    other = {"name": "mlp", "options": {"name": "x"}}
    assert labels_of(keys(trial(), trial(model=other))) == ["ce", "ce options.name=x"]
    assert labels_of(keys(trial(), trial(model={"name": "cnn", "options": {}}))) == ["ce model=mlp", "ce model=cnn"]


def test_settings_with_the_same_last_name_are_told_apart():
    a = trial(model={"name": "mlp", "options": {"scale": 1}}, head={"name": "normalized", "options": {"scale": 8}})
    b = trial(model={"name": "mlp", "options": {"scale": 2}}, head={"name": "normalized", "options": {"scale": 16}})
    assert labels_of(keys(a, b)) == ["ce model.scale=1 head.scale=8", "ce model.scale=2 head.scale=16"]


@pytest.mark.parametrize(("a", "b"), [(None, 0.1), ([0.5], [0.6]), (True, 1), (0.1, 0.1000001)])
def test_labels_are_unique(a, b):
    made = labels_of(keys(trial(lr=a), trial(lr=b)))
    assert made[0] != made[1]


def test_differing_keeps_the_order_and_sees_absent_settings():
    assert differing([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None}]) == ["b", "c"]
    assert differing([{"a": None}, {"a": "none"}]) == []  # shown alike, so no column tells them apart
    assert settings_of({"loss": {"name": "ce", "options": {"x": {"y": 1}}}}) == {"loss.name": "ce", "loss.x": {"y": 1}}
