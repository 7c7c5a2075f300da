"""Verdicts on what was run in part: half a grid, one label, one seed, failures; never an error, never a guess."""

import math
import random
from collections.abc import Iterator, Mapping

import pytest

from lastlayer.papers import NotRunError, Observations, Record, Store, artifact, claims, judge, needs

TRAINED = [claim.id for claim in claims() if not any(artifact(name).compute for name in needs(claim.id))]
SIZE = "small"


class Measures(Mapping[str, float]):
    """Every measure there could be, with a number that depends on the run."""

    def __init__(self, *run):
        self.run = run

    def __getitem__(self, name):
        return random.Random(f"{self.run}{name}").uniform(0.05, 0.95)

    def __contains__(self, name):
        return True

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


class Memory(Store):
    """A store that holds observations without files."""

    def __init__(self, *held):
        super().__init__("nowhere")
        self.held = {one.artifact: one for one in held}

    def sizes(self, name):
        return [SIZE] if name in self.held else []

    def read(self, name, size):
        return self.held[name]


def everything(name):
    """The whole grid of an artifact, with what its `observe` function would add."""
    one, rows = artifact(name), []
    grid = one.grid(SIZE)
    for cell in grid.cells:
        last = cell.trial.schedule.epochs
        for seed in grid.seeds:
            for epoch in range(1, last + 1, 5) if one.curves else [last]:
                rows.append(Record(cell.labels, seed, epoch, Measures(*cell.labels.values(), seed, epoch)))
    if one.observe == "over_splits":
        rows += [Record({**row.labels, "split": "all"}, int(row.labels["split"]), 1, row.values) for row in rows]
    if one.observe == "rotations":
        losses = [cell.labels["loss"] for cell in grid.cells]
        rows += [Record({"loss": f"{a} and {b}"}, 0, 1, Measures(a, b)) for a in losses for b in losses]
    return Observations(name, SIZE, tuple(rows))


def parts(whole: Observations) -> Iterator[Observations]:
    """Nothing; one label of each axis; half of the cells; one seed; failures alone."""

    def kept(holds):
        return Observations(whole.artifact, SIZE, tuple(row for row in whole.rows if holds(row)))

    yield kept(lambda row: False)
    yield kept(lambda row: row.seed == 0)
    for axis in artifact(whole.artifact).axes:
        for point in {row.labels[axis] for row in whole.rows if axis in row.labels}:
            yield kept(lambda row, axis=axis, point=point: row.labels.get(axis) == point)
    cells = sorted({tuple(row.labels.items()) for row in whole.rows})
    half = set(random.Random(0).sample(cells, len(cells) // 2))
    yield kept(lambda row: tuple(row.labels.items()) in half)
    failed = {
        (tuple(row.labels.items()), row.seed): Record(row.labels, row.seed, 0, {}, "failed") for row in whole.rows
    }
    yield Observations(whole.artifact, SIZE, tuple(failed.values()))


@pytest.mark.parametrize("claim", TRAINED)
def test_what_was_run_in_part_is_judged_without_error(claim):
    whole = {name: everything(name) for name in needs(claim)}
    assert judge(claim, Memory(*whole.values())).outcome != "not run"
    for name in whole:
        nothing, *others = parts(whole[name])
        for part in (nothing, others[-1]):  # no row, and failures alone
            assert judge(claim, Memory(*{**whole, name: part}.values())).outcome == "not run"
        for part in others:
            assert judge(claim, Memory(*{**whole, name: part}.values())).detail


class Nothing(Measures):
    """Every measure, and none is a number."""

    def __getitem__(self, name):
        return math.nan


@pytest.mark.parametrize("claim", TRAINED)
def test_what_is_not_a_number_decides_nothing(claim):
    held = []
    for name in needs(claim):
        whole = everything(name)
        rows = tuple(Record(row.labels, row.seed, row.epoch, Nothing()) for row in whole.rows)
        held.append(Observations(name, SIZE, rows))
    assert judge(claim, Memory(*held)).outcome in ("not run", "inconclusive")


@pytest.mark.parametrize("values", [{"computed.error": math.nan}, {"computed.error": 0.0}])
def test_a_computation_that_lacks_a_number_decides_nothing(values):
    rows = [
        Record(
            {"width": "16"}, 0, 0, {"computed.error": 0.0, "computed.error_eps": 0.0, "computed.error_evaluation": 0.0}
        )
    ]
    rows.append(Record({"width": "32"}, 0, 0, values))
    verdict = judge("004-03", Memory(Observations("bn_wd.lemma4", SIZE, tuple(rows))))
    assert verdict.outcome == "not run"
    assert "(width 32, seed 0)" in verdict.detail


def test_the_ends_of_an_axis_are_those_of_the_grid():
    """Two lengths of one width are no comparison of small and short with large and long."""
    whole = everything("equal_losses.fig3")
    narrow = tuple(row for row in whole.rows if row.labels["width"] == "0.25")
    for claim in ("001-07", "001-09"):
        verdict = judge(claim, Memory(Observations(whole.artifact, SIZE, narrow)))
        assert verdict.outcome == "not run"
        assert "width 1" in verdict.detail


def test_one_data_set_is_no_comparison_of_two():
    whole = everything("sln.table1_classes")
    ten = Observations(whole.artifact, SIZE, tuple(row for row in whole.rows if row.labels["dataset"] == "CIFAR-10"))
    verdict = judge("000-05", Memory(ten))
    assert verdict.outcome == "not run"
    assert "no dataset other than CIFAR-10" in verdict.detail


def test_without_batch_norm_alone_nothing_is_said_of_it():
    whole = everything("bn_wd.fig2")
    rows = tuple(row for row in whole.rows if row.labels["bn"] == "without BN")
    assert judge("004-04", Memory(Observations(whole.artifact, SIZE, rows))).outcome == "not run"


def test_the_missing_run_is_named():
    with pytest.raises(NotRunError, match="loss CE"):
        Observations("sln.table1", SIZE, ()).values("test.accuracy", loss="CE")
