"""Independent jobs side by side: in order, each on one thread, and the number of threads restored."""

import threading

import pytest
import torch

from lastlayer.theory._threads import side_by_side


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
