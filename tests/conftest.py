"""What every test shares."""

import math
import os

import pytest
import torch

if not torch.cuda.is_available():  # read when triton is imported, which torch.compile does too, in any test
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def _one_thread_from_the_start() -> None:
    """Fixtures of a module come before those of a test: what they train is compared with what a test trains."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes on two cores: more threads than that fight, and results on the CPU depend on their number."""
    torch.set_num_threads(1)


@pytest.fixture
def checkpoint_after_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long writing takes."""
    monkeypatch.setattr("lastlayer.training.saving.SHARE", math.inf)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
