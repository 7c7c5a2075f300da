"""The sentences about a comparison: a winner, a tie, what differs, and what cannot be compared."""

from lastlayer.reports import load, summarise, verdict

from . import factory
from .factory import trial


def test_without_two_groups_that_have_finished_runs_nothing_is_compared(tmp_path):
    factory.failed(tmp_path, trial("ce"))
    assert "No run is finished" in verdict(summarise(load(tmp_path)))[0]
    factory.done(tmp_path, trial("sln"))
    assert "nothing to compare it with" in verdict(summarise(load(tmp_path)))[0]


def test_a_tie_and_the_measure_that_differs(tmp_path):
    for loss, nc3 in (("ce", 0.1), ("sln", 0.9)):
        for seed in range(3):
            train = {"nc1": 0.5 + 0.1 * seed, "nc2": 0.5 + 0.1 * seed, "nc3": nc3 + 0.01 * seed}
            factory.done(tmp_path, trial(loss, seed), train=train, test={"accuracy": 0.9 + 0.01 * seed})
    sentences = verdict(summarise(load(tmp_path)))
    assert sentences[0].startswith("Test accuracy ties")
    assert "NC3 (train, ce best)" in sentences[1]
    assert "nothing is called a winner" in sentences[2]


def test_the_verdict_names_a_winner_only_from_five_seeds(tmp_path):
    for loss, shift in (("ce", 0.0), ("sln", 0.1)):
        for seed, noise in enumerate([0.0, 0.003, 0.001, 0.004, 0.002]):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": 0.8 + shift + noise * (1 + 10 * shift)})
    assert verdict(summarise(load(tmp_path)))[0].startswith("sln wins on test accuracy")
    few = [tmp_path / factory.identity(trial(loss, seed)) for loss in ("ce", "sln") for seed in range(4)]
    sentences = verdict(summarise(load(few)))
    assert sentences[0].startswith("sln has the highest test accuracy")
    assert not any("wins" in sentence for sentence in sentences)
