"""What every test shares."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes on two cores: more threads than that fight, and results on the CPU depend on their number."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
