"""The list of claims: complete, each decided by code that says what is missing when nothing was run."""

import csv
from importlib.resources import files

import pytest

from lastlayer.papers import Record, Store, artifacts, claims, judge, needs
from lastlayer.papers.engine.claims import check


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
