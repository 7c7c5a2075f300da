"""Free memory: what the system says, or what is left of the limit of a container."""

import pytest

from lastlayer._core import memory

FILES = {
    "/proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n",
    "/sys/fs/cgroup/memory.max": "3000000\n",
    "/sys/fs/cgroup/memory.stat": "anon 1000000\nfile 900000\n",
}


@pytest.fixture
def files(system_files):
    """What the files of the system say. A test may change it."""
    system_files.update(FILES)
    return system_files


def test_the_limit_of_a_container_less_what_it_took(files):
    assert memory.free_memory() == 2_000_000  # memory that caches files counts as free


def test_what_is_available_where_the_limit_is_higher_or_none(files):
    files["/sys/fs/cgroup/memory.max"] = "9000000\n"
    assert memory.free_memory("cpu") == 4000 * 1024
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory.free_memory("cpu") == 4000 * 1024


def test_half_of_the_memory_where_the_system_does_not_tell(files, monkeypatch):
    files["/proc/meminfo"] = None
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert memory.free_memory() == 4096 * 500
