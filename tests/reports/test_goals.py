"""What goals ask of the data, and how they are named."""

import pytest

from lastlayer.measures import MEASURES
from lastlayer.reports.goals import GOALS, KnownData, answerable, default_goals, parse_goals


def test_every_goal_has_a_measure_with_a_direction() -> None:
    for goal in GOALS.values():
        assert MEASURES[goal.measure].direction == ("higher" if goal.higher_is_better else "lower")
        assert goal.noun == MEASURES[goal.measure].plain
        assert goal.is_share == (MEASURES[goal.measure].limits == (0.0, 1.0))
        assert all(name in MEASURES for name in goal.beside)


def test_goals_are_parsed_in_their_order_and_once() -> None:
    assert [goal.name for goal in parse_goals("tail,accuracy , tail")] == ["tail", "accuracy"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("calibraton", "did you mean 'calibration'?"), ("xyz", "there are accuracy, balanced"), (" ,", "names no goal")],
)
def test_unknown_goals(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="--for") as raised:
        parse_goals(text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        ((100, 100), ["accuracy"]),
        ((300, 100), ["accuracy"]),
        ((301, 100), ["balanced", "accuracy"]),
        ((3572, 246, 130, 52), ["balanced", "accuracy"]),
    ],
)
def test_skewed_classes_put_balanced_accuracy_first(counts: tuple[int, ...], names: list[str]) -> None:
    assert [goal.name for goal in default_goals(KnownData(counts), len(counts))] == names


def test_of_old_runs_only_the_share_of_the_largest_class_is_known() -> None:
    """With 0.9 of the samples in one of three classes, the smallest has at most a twentieth of them."""
    assert KnownData(largest=0.9).is_skewed(3)
    assert not KnownData(largest=0.34).is_skewed(3)
    assert not KnownData().is_skewed(3)
    assert KnownData.of_result({"largest_class": 0.5, "counts": [5, 3, 2]}) == KnownData((5, 3, 2), largest=0.5)


def test_what_the_data_cannot_answer_is_said_and_the_rest_is_kept() -> None:
    asked = parse_goals("open-set,transfer,tail,accuracy")
    kept, refused = answerable(asked, KnownData((50, 40), unknown_classes=0))
    assert [goal.name for goal in kept] == ["accuracy"]
    assert ["open-set" in refused[0], "transfer" in refused[1], "tail" in refused[2]] == [True] * 3
    assert "the smallest has 40" in refused[2]
    kept, refused = answerable(asked, KnownData((50, 19), unknown_classes=1))
    assert [goal.name for goal in kept] == ["open-set", "tail", "accuracy"]
    assert "one class" in refused[0]
    assert answerable(asked, KnownData((50, 19), unknown_classes=2)) == (asked, ())
    with pytest.raises(ValueError, match=r"cannot answer open-set.*--unknown"):
        answerable(parse_goals("open-set"), KnownData((50, 40), unknown_classes=0))
