"""Roots and minima that are known, L-BFGS from many starts, and independent jobs side by side."""

import math
import threading

import pytest
import torch

from lastlayer.theory import numbers
from lastlayer.theory.numbers import side_by_side


def test_a_root_to_the_last_bit() -> None:
    root = numbers.bisect(lambda x: x**2 - 2.0, 0.0, 2.0)
    assert abs(root - math.sqrt(2.0)) <= math.ulp(math.sqrt(2.0))


def test_a_minimum_among_several_valleys() -> None:
    wave = lambda x: math.sin(3.0 * x) + 0.1 * x  # noqa: E731
    found = numbers.minimise(wave, -3.0, 3.0)
    assert 3.0 * math.cos(3.0 * found) + 0.1 == pytest.approx(0.0, abs=1e-6)
    assert wave(found) <= min(wave(i / 1000) for i in range(-3000, 3001))


def solve(function, starts: torch.Tensor, **options) -> numbers.Ends:
    def evaluate(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        values = function(x)
        (gradients,) = torch.autograd.grad(values.sum(), x)
        return values.detach(), gradients

    settings = {"tolerance": 1e-10, "max_iterations": 2000, "memory": 20, **options}
    return numbers.lbfgs(evaluate, starts, norm=lambda x, g: g.norm(dim=1), **settings)


def test_rosenbrock_from_many_starts() -> None:
    torch.manual_seed(0)

    def rosenbrock(x: torch.Tensor) -> torch.Tensor:
        return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)

    found = solve(rosenbrock, torch.randn(20, 2, dtype=torch.float64))
    torch.testing.assert_close(found.points, torch.ones(20, 2, dtype=torch.float64), rtol=0, atol=1e-8)
    assert (found.gradients.norm(dim=1) <= 1e-10).all()
    assert len(set(found.iterations.tolist())) > 1  # every start stops on its own


def test_badly_conditioned_and_degenerate_quadratics() -> None:
    torch.manual_seed(1)
    scales = torch.cat([torch.zeros(5), torch.logspace(-2, 2, 15)]).double()
    found = solve(lambda x: 0.5 * (scales * x**2).sum(1) + 2.0, torch.randn(4, 20, dtype=torch.float64))
    assert (found.values - 2.0).abs().max() < 1e-14


def test_a_start_at_a_saddle_or_a_minimum_stays() -> None:
    starts = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.3, 0.2]], dtype=torch.float64)
    found = solve(lambda x: (x[:, 0] ** 2 - 1) ** 2 + x[:, 1] ** 2, starts)
    assert found.iterations[:2].tolist() == [0, 0]
    assert found.values[2] < 1e-15


def test_a_kink_ends_without_a_gradient() -> None:
    torch.manual_seed(2)
    found = solve(lambda x: x.abs().sum(1), torch.randn(5, 3, dtype=torch.float64), max_iterations=300)
    assert found.values.max() < 1e-3


def test_results_do_not_depend_on_the_company() -> None:
    torch.manual_seed(3)
    starts = torch.randn(6, 4, dtype=torch.float64)
    function = lambda x: ((x**2 - 1) ** 2).sum(1) + x.sum(1)  # noqa: E731
    together = solve(function, starts)
    alone = numbers.join([solve(function, row.unsqueeze(0)) for row in starts])
    torch.testing.assert_close(together.points, alone.points, rtol=0, atol=1e-9)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_jobs_run_at_the_same_time_each_on_one_thread() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def job(item: int) -> tuple[int, int]:
        meeting.wait()  # returns only if two jobs are here at once
        return item * item, torch.get_num_threads()

    assert side_by_side(job, [3, 1, 2, 4], 10**9) == [(9, 1), (1, 1), (4, 1), (16, 1)]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_one_job_keeps_the_threads_it_is_worth() -> None:
    assert side_by_side(lambda _: torch.get_num_threads(), [0], 10**9) == [2]
    assert side_by_side(lambda _: torch.get_num_threads(), [0], 10) == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_failure_is_raised_and_the_threads_restored() -> None:
    def job(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 7"):
        side_by_side(job, [7, 8], 10)
    assert torch.get_num_threads() == 2
