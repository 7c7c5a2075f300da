"""What is kept of runs: when a run counts as having learned nothing."""

import pytest

from lastlayer.papers.engine.record import is_chance
from lastlayer.training import DataChoice, Schedule, Trial, finish_fit, fit, load_data


def test_chance_is_the_share_of_the_largest_class(tmp_path):
    data = DataChoice("digits", long_tail=10)
    trial = Trial(data, schedule=Schedule(epochs=1), evaluations=1).resolved()
    result = finish_fit(fit(trial, tmp_path / "run"))
    counts = load_data(data).train_counts.tolist()
    share = max(counts) / sum(counts)  # the accuracy of a network that says one class of all
    assert result["data"]["largest_class"] == pytest.approx(share)
    for biased, unbiased, chance in ((1, 0.9, True), (1.2, 0.9, False), (1, 1.2, False)):
        result["measures"]["train"] |= {"accuracy": biased * share, "unbiased_accuracy": unbiased * share}
        assert is_chance(result) is chance
