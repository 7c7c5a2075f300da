"""What the tests of the Triton kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def kernels_anywhere() -> Iterator[None]:
    """Kernels where there is no GPU too, by Triton's interpreter, in blocks smaller than a row."""
    pytest.importorskip("triton")
    from lastlayer.linear_loss import _compiled, _kernels, _rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "BLOCK", 16)
        for module in (_compiled, _rows):
            patch.setattr(module, "pays", lambda tensor: True)
        yield
