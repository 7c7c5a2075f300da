"""The list of claims, the kinds of criterion, and verdicts on what was run in part: never an error, never a guess."""

import csv
import math
import random
from collections.abc import Iterator, Mapping
from importlib.resources import files

import numpy as np
import pytest

from lastlayer.papers import NotRunError, Observations, Record, Store, artifact, artifacts, claims, judge, needs
from lastlayer.papers.engine.claims import Verdict, above, all_of, check, counted, equivalent, redrawn
from lastlayer.reports.statistics import paired, welch

TRAINED = [claim.id for claim in claims() if not any(artifact(name).compute for name in needs(claim.id))]
SIZE = "small"


def test_sixty_claims_with_a_criterion_each():
    assert len({claim.id for claim in claims()}) == 60
    assert {claim.paper for claim in claims()} == {"000", "001", "002", "003", "004"}
    for claim in claims():
        assert claim.id.startswith(f"{claim.paper}-")
        assert claim.claim
        assert claim.criterion
    header = (files("lastlayer.papers") / "claims.csv").read_text().splitlines()[0]
    assert next(csv.reader([header]))[-1] == "changed"


def test_no_check_without_a_claim():
    with pytest.raises(ValueError, match=r"no claim 000-99 in claims\.csv"):
        check("000-99", "sln.table1")


@pytest.mark.parametrize("claim", [claim.id for claim in claims()])
def test_without_runs_the_verdict_is_not_run_and_says_what_is_missing(claim, tmp_path):
    verdict = judge(claim, Store(tmp_path))
    assert verdict.outcome == "not run"
    assert needs(claim)
    assert set(needs(claim)) <= artifacts().keys()
    assert any(name in verdict.detail for name in needs(claim))


def test_a_part_of_the_paper_size_does_not_hide_the_whole_small_one(tmp_path):
    store = Store(tmp_path)

    def rows(arm, worse):
        values = {"train.batch_term": 0.1 + worse, "test.auprc": 0.9 - worse}
        return [Record({"arm": arm}, seed, 1, {n: v + seed * 1e-3 for n, v in values.items()}) for seed in range(3)]

    store.add("logit_separation.sample_term", "small", [*rows("with", 0.0), *rows("without", 0.1)])
    store.add("logit_separation.sample_term", "paper", rows("with", 0.0))
    verdict = judge("002-08", store)
    assert (verdict.outcome, verdict.size) == ("reproduced", "small")
    store.add("logit_separation.sample_term", "paper", rows("without", -0.1))
    verdict = judge("002-08", store)
    assert (verdict.outcome, verdict.size) == ("not reproduced", "paper")


# Kinds of criterion


def by_seed(values):
    return dict(enumerate(values))


@pytest.mark.parametrize("pair", [({0: 1.0}, {0: 0.0, 1: 1.0}), ({0: 1.0}, {0: 0.0})])
def test_one_value_decides_nothing(pair):
    for difference in (welch(*pair), paired(*pair)):
        assert above(difference).outcome == "inconclusive"


@pytest.mark.parametrize(
    ("shift", "outcome"), [(1.0, "reproduced"), (-1.0, "not reproduced"), (0.0, "inconclusive"), (0.5, "reproduced")]
)
def test_an_interval_decides_by_where_it_lies(shift, outcome):
    noise = [0.01, -0.01, 0.02, -0.02, 0.0]
    difference = welch(by_seed(np.add(noise, shift)), by_seed(noise))
    assert above(difference).outcome == outcome


@pytest.mark.parametrize(("shift", "outcome"), [(0.0, "reproduced"), (0.39, "inconclusive"), (2.0, "not reproduced")])
def test_two_one_sided_tests(shift, outcome):
    noise = [0.05, -0.05, 0.1, -0.1, 0.0]
    difference = welch(by_seed(np.add(noise, shift)), by_seed(noise))
    verdict = equivalent(difference, 0.4)
    assert verdict.outcome == outcome
    assert verdict.difference == pytest.approx(shift, abs=1e-9)


@pytest.mark.parametrize(
    ("groups", "outcome"),
    [
        ([[0.9, 0.91, 0.92], [0.8, 0.81, 0.82]], "reproduced"),
        ([[0.8, 0.81, 0.82], [0.9, 0.91, 0.92]], "not reproduced"),
        ([[0.8, 0.9, 0.85], [0.79, 0.91, 0.84]], "inconclusive"),
        ([[0.84, 0.80, 0.89], [0.8, 0.9, 0.85]], "inconclusive"),
        ([[0.9], [0.8, 0.800001, 0.8]], "reproduced"),  # one run spreads as much as the others
        ([[0.9], [0.8, 0.99]], "inconclusive"),
        ([[0.9], [0.8]], "inconclusive"),  # nobody knows how much
        ([[0.9, 0.91, math.nan], [0.8, 0.81, 0.82]], "inconclusive"),
    ],
)
def test_a_statement_on_means_stands_where_draws_of_the_means_agree(groups, outcome):
    verdict = redrawn(lambda means: means[0] > means[1], groups, "the first is higher")
    assert verdict.outcome == outcome
    assert ("one seed" in verdict.detail) == (len(groups[0]) == len(groups[1]) == 1)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("cases", [100, pytest.param(300, marks=pytest.mark.thorough)])
def test_what_is_equal_is_seldom_decided(seeds, cases):
    """At 95 % a comparison of equals comes out either way in a tenth of the cases, not in a quarter."""
    generator = np.random.default_rng(0)
    outcomes = [
        redrawn(lambda means: means[0] > means[1], generator.normal(size=(2, seeds)), "").outcome for _ in range(cases)
    ]
    assert 0 < sum(outcome != "inconclusive" for outcome in outcomes) <= cases / 10


def test_nothing_to_judge_is_not_run():
    assert all_of([]).outcome == "not run"


def test_all_parts_must_hold():
    yes, no, maybe, never = (Verdict(o, o) for o in ("reproduced", "not reproduced", "inconclusive", "not run"))
    assert all_of([yes, yes]).outcome == "reproduced"
    assert all_of([yes, maybe]).outcome == "inconclusive"
    assert all_of([maybe, never]).outcome == "inconclusive"
    assert all_of([maybe, no, never]).outcome == "not reproduced"
    assert counted(3, 5, 3, "cases").outcome == "reproduced"
    assert counted(2, 5, 3, "cases").outcome == "not reproduced"


# What was run in part


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
