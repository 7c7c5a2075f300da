"""Observations on disk: what is written is read, newer rows replace older ones, nothing missing goes unnoticed."""

import concurrent.futures
import math
import time

import pytest

from lastlayer.papers import NotRunError, Observations, Record, Store
from lastlayer.papers.engine.store import read_spec

NAME = "sln.table1"


def row(loss, seed, epoch, accuracy, status="done"):
    return Record({"loss": loss}, seed, epoch, {"test.accuracy": accuracy}, status, {"seconds": "1.0", "run": "abc"})


def test_rows_survive_the_file_to_the_last_digit(tmp_path):
    store = Store(tmp_path)
    values = {"test.accuracy": 0.1 + 0.2, "train.nc1": 1e-300, "test.nc2": math.nan}
    first = Record({"loss": 'CE, "all"', "tau": "0.2"}, 3, 10, values, "done", {"run": "x", "machine": "a, b"})
    store.add(NAME, "small", [first])
    (read,) = store.read(NAME, "small").rows
    assert (read.labels, read.seed, read.epoch, read.status) == (first.labels, 3, 10, "done")
    assert read.facts == first.facts
    assert {name: repr(value) for name, value in read.values.items()} == {n: repr(v) for n, v in values.items()}


def test_later_runs_add_to_and_replace_earlier_ones(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [row("CE", 0, 5, 0.5), row("CE", 1, 5, 0.6)])
    store.add(NAME, "small", [row("CE", 1, 5, 0.7), row("SLN", 0, 5, 0.8)])
    observed = store.read(NAME, "small")
    assert observed.values("test.accuracy", loss="CE") == {0: 0.5, 1: 0.7}
    assert observed.points("loss") == ["CE", "SLN"]


def test_a_later_run_of_a_seed_leaves_nothing_of_the_one_before(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [row("CE", 0, epoch, 0.1) for epoch in (0, 30)])
    store.add(NAME, "small", [row("CE", 1, 0, 0.1, "failed")])
    store.add(NAME, "small", [row("CE", 0, 0, 0.3), row("CE", 0, 20, 0.4), row("CE", 1, 20, 0.5)])
    observed = store.read(NAME, "small")
    assert observed.values("test.accuracy", loss="CE") == {0: 0.4, 1: 0.5}
    assert observed.curve("test.accuracy", 0) == {0: 0.3, 20: 0.4}
    assert {one.status for one in observed.rows} == {"done"}


def test_what_several_add_at_once_is_all_kept(tmp_path):
    class Slow(Store):
        def read(self, *arguments, **options):
            found = super().read(*arguments, **options)
            time.sleep(0.05)  # in which the others read the same
            return found

    stores = [Slow(tmp_path) for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda seed: stores[seed].add(NAME, "small", [row("CE", seed, 5, 0.5)]), range(8)))
    assert sorted(one.seed for one in Store(tmp_path).read(NAME, "small").rows) == list(range(8))


def test_a_file_is_parsed_once_until_another_changes_it(tmp_path):
    Store(tmp_path).add(NAME, "small", [row("CE", 0, 5, 0.5)])
    store = Store(tmp_path)
    first = store.evidence(NAME).rows
    assert first is store.evidence(NAME, "small").rows is store.read(NAME, "small").rows
    Store(tmp_path).add(NAME, "small", [row("CE", 0, 5, 0.6)])
    assert store.evidence(NAME).values("test.accuracy") == {0: 0.6}


def test_no_rows_leave_no_file(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [])
    assert store.sizes(NAME) == []


def test_the_last_evaluation_counts_and_curves_keep_all(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [row("CE", 0, epoch, epoch / 10) for epoch in (0, 5, 2)])
    observed = store.read(NAME, "small")
    assert observed.values("test.accuracy", loss="CE") == {0: 0.5}
    assert observed.curve("test.accuracy", 0, loss="CE") == {0: 0.0, 2: 0.2, 5: 0.5}


def test_failed_and_chance_runs_are_no_results(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [row("CE", 0, 5, 0.5), row("CE", 1, 5, 0.1, "chance"), row("SLN", 0, 0, 0.1, "failed")])
    observed = store.read(NAME, "small")
    assert observed.values("test.accuracy", loss="CE") == {0: 0.5}
    with pytest.raises(NotRunError, match="no finished run of loss SLN"):
        observed.values("test.accuracy", loss="SLN")
    with pytest.raises(NotRunError, match=r"test\.auprc was not measured"):
        observed.values("test.auprc", loss="CE")


def test_labels_must_name_one_cell(tmp_path):
    store = Store(tmp_path)
    rows = [Record({"loss": "CE", "tau": tau}, 0, 1, {"test.accuracy": 0.5}) for tau in ("1", "2")]
    store.add(NAME, "small", rows)
    with pytest.raises(ValueError, match="leaves several cells"):
        store.read(NAME, "small").values("test.accuracy", loss="CE")


def test_evidence_is_the_largest_size_and_never_smoke(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "smoke", [row("CE", 0, 5, 0.1)])
    with pytest.raises(NotRunError, match=r"sln\.table1 has not been run"):
        store.evidence(NAME)
    store.add(NAME, "paper", [row("CE", 0, 5, 0.9)])
    store.add(NAME, "small", [row("CE", 0, 5, 0.5)])
    assert store.evidence(NAME).values("test.accuracy", loss="CE") == {0: 0.9}
    assert store.sizes(NAME) == ["smoke", "small", "paper"]
    assert store.evidence(NAME, "small").values("test.accuracy", loss="CE") == {0: 0.5}


def test_a_size_without_a_finished_run_is_no_evidence(tmp_path):
    store = Store(tmp_path)
    store.add(NAME, "small", [row("CE", 0, 5, 0.5)])
    store.add(NAME, "paper", [row("CE", 0, 0, 0.1, "failed")])
    assert store.evidence(NAME).size == "small"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a,b\n1,2\n", "no columns seed"),
        (b"loss,seed,epoch,status,test.accuracy\nCE,zero,1,done,0.5\n", "line 2.*zero"),
        (b"loss,seed,epoch,status,test.accuracy\nCE,0\n", "line 2.* 5 columns"),
        (b"loss,seed\xff\xfe", "not text"),
    ],
)
def test_a_file_of_something_else_is_named(tmp_path, content, told):
    store = Store(tmp_path)
    store.path(NAME, "small").parent.mkdir(parents=True)
    store.path(NAME, "small").write_bytes(content)
    with pytest.raises(ValueError, match=rf"table1-small\.csv.*{told}"):
        store.read(NAME, "small")


def test_a_file_saved_by_a_spreadsheet_is_read(tmp_path):
    store = Store(tmp_path)
    path = store.add(NAME, "small", [row("CE", 0, 5, 0.5)])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert store.read(NAME, "small").values("test.accuracy", loss="CE") == {0: 0.5}


def test_an_axis_that_the_rows_lack_is_named(tmp_path):
    observed = Observations(NAME, "small", (row("CE", 0, 5, 0.5),))
    assert observed.points("loss") == ["CE"]
    with pytest.raises(ValueError, match=r"sln\.table1 \(small\).* no label 'tau'; they have loss"):
        observed.points("tau")


@pytest.mark.parametrize("value", [{}, {"test.accuracy": math.nan}])
def test_a_measure_that_is_not_there_or_no_number_is_not_run(value):
    one = Record({"loss": "CE"}, 3, 5, value)
    for ask in (lambda: one["test.accuracy"], lambda: Observations(NAME, "small", (one,)).values("test.accuracy")):
        with pytest.raises(NotRunError, match=r"test\.accuracy (was not measured|is not a number) \(loss CE, seed 3\)"):
            ask()


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("test.x", 0.25),
        ("test.x%", 25.0),
        ("1-test.x", 0.75),
        ("1-test.x%", 75.0),
        ("-test.x", -0.25),
        ("-test.x%", -25.0),
    ],
)
def test_specs(spec, value):
    assert read_spec(spec, {"test.x": 0.25}) == value
    assert math.isnan(read_spec(spec, {}))
