"""Triton's kernels compiled for Hopper where there is no GPU: imported by scripts that run with TRITON_INTERPRET=0."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget
from triton.runtime import driver


class Hopper:
    """What Triton asks its driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


driver.set_active(Hopper())
