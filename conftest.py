"""What every test shares."""

import contextlib
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():  # read when triton is imported, which torch.compile does too, in any test
    os.environ["TRITON_INTERPRET"] = "1"

# A shell ignores Ctrl-C for its background jobs, and the programs that a test starts would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Each run draws the same examples, so that only a change can make it fail. `--seed N --hypothesis-profile default`
# draws others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--seed`, to try other random numbers."""
    parser.addoption("--seed", type=int, default=0, help="the seed of all random generators in every test")


def _seed(item: pytest.Item) -> None:
    """Seed all generators, so that a test draws the same numbers whichever test ran before it."""
    seed = item.config.getoption("--seed")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed before the fixtures of a test."""
    _seed(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Seed again before the test: a fixture that its module shares may have been made already, or not."""
    _seed(item)


@pytest.fixture(scope="session", autouse=True)
def _one_thread_from_the_start() -> None:
    """Also for fixtures of a module, which are made before `_one_thread`: tests compare what they train."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Test processes share the cores, so more threads would slow them down. Results on the CPU depend on the number."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint_share() -> Callable[[float], AbstractContextManager[None]]:
    """Sets for some time how much of the time checkpoints may take. Infinity: one after every epoch."""

    @contextlib.contextmanager
    def of(share: float) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lastlayer.training.engine.checkpoint.SHARE", share)
            yield

    return of


@pytest.fixture
def checkpoint_after_every_epoch(checkpoint_share: Callable[[float], AbstractContextManager[None]]) -> Iterator[None]:
    """Write a checkpoint after every epoch, however long that takes."""
    with checkpoint_share(math.inf):
        yield


@pytest.fixture
def failing_disk() -> Callable[..., AbstractContextManager[None]]:
    """Makes every write end in an error for some time. By default it says that the disk is full."""

    @contextlib.contextmanager
    def failing(error: BaseException | None = None) -> Iterator[None]:
        def fail(descriptor: int) -> None:
            raise error or OSError(28, "No space left on device")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            yield

    return failing


@pytest.fixture
def system_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What files of the system say, by path: a test enters their text, or None for no such file."""
    said: dict[str, str | None] = {}
    read = Path.read_text

    def told(path: Path, *rest: Any, **options: Any) -> str:
        if str(path) not in said:
            return read(path, *rest, **options)
        if (text := said[str(path)]) is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", told)
    return said


@pytest.fixture
def free_memory(system_files: dict[str, str | None]) -> Callable[[int], None]:
    """Sets how many bytes of memory the system says are free: as many as the limit of a container leaves."""

    def say(free: int) -> None:
        system_files["/proc/meminfo"] = f"MemAvailable: {1 << 50} kB\n"
        system_files["/sys/fs/cgroup/memory.max"] = f"{free}\n"
        system_files["/sys/fs/cgroup/memory.stat"] = "anon 0\n"

    return say


@pytest.fixture
def import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds to the path of imports is taken away at its end."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def stream_data(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes data be streamed from now on, as if they did not fit on the device."""
    return lambda: monkeypatch.setattr("lastlayer.training.engine.feed.fits", lambda *_: False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a GPU, skip the tests that need one."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
