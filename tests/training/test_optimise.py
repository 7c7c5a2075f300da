"""Learning rates step by step."""

import pytest

from lastlayer.training.optimise import rate_factor
from lastlayer.training.trial import Schedule


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_linear_falls_to_nothing_in_even_steps(warmup: float) -> None:
    schedule = Schedule("linear", epochs=10, warmup=warmup)
    rates = [rate_factor(schedule, step, 100) for step in range(100)]
    first = int(10 * warmup)
    assert rates[first] == 1.0
    assert rates[:first] == sorted(rates[:first])
    falls = [a - b for a, b in zip(rates[first:], [*rates[first + 1 :], 0.0], strict=True)]
    assert falls == pytest.approx([1 / (100 - first)] * (100 - first))
