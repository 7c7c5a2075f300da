"""Triton's kernels compiled for Hopper where there is no GPU, by scripts that run with TRITON_INTERPRET=0."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class _Hopper:
    """What Triton asks its driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def pretend() -> None:
    """Be a Hopper to Triton from here on. Not on import, which pytest does in its own process to look for doctests."""
    driver.set_active(_Hopper())
