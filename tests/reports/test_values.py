import csv

from lastlayer.reports import load, summarise, write_csv

from . import factory
from .factory import trial


def test_csv_holds_every_value_and_every_run(tmp_path):
    for seed in range(2):
        factory.done(tmp_path, trial("ce", seed))
        factory.done(tmp_path, trial("sln", seed), train={"nc1": 0.1 + 0.2 + seed})
    factory.failed(tmp_path, trial("sln", 2))
    path = tmp_path / "values.csv"
    write_csv(summarise(load(tmp_path)), path)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    done = [row for row in rows if row["status"] == "done"]
    assert len(done) == 4 * (2 * len(factory.MEASURED) + 1)
    (one,) = [r for r in done if (r["group"], r["seed"], r["split"], r["measure"]) == ("sln", "1", "train", "nc1")]
    assert float(one["value"]) == 0.1 + 0.2 + 1
    assert [(row["group"], row["seed"]) for row in rows if row["status"] == "failed"] == [("sln", "2")]
