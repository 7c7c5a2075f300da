"""What every test shares."""

import math
import os
import random
import signal

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():  # read when triton is imported, which torch.compile does too, in any test
    os.environ["TRITON_INTERPRET"] = "1"

# In a shell's background Ctrl-C is ignored, and what a test starts would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A run fails for what was changed, not for what was drawn; `--seed N --hypothesis-profile default` draws otherwise.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The seed, to try others."""
    parser.addoption("--seed", type=int, default=0, help="what the generators start from in every test")


def _seed(item: pytest.Item) -> None:
    """A test draws the same whichever came before it in its process."""
    seed = item.config.getoption("--seed")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """For the fixtures."""
    _seed(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """For the test, whether or not a fixture of its module was there already."""
    _seed(item)


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
    monkeypatch.setattr("lastlayer.training.engine.checkpoint.SHARE", math.inf)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
