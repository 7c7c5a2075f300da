"""What the tests of the Triton kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lastlayer.linear_loss import plan


@pytest.fixture(scope="module")
def kernels_anywhere() -> Iterator[None]:
    """Kernels where there is no GPU too, by Triton's interpreter, in blocks smaller than a row.

    Products are split at any size, and the room between rows is filled with NaN.
    """
    pytest.importorskip("triton")
    from lastlayer.linear_loss import kernels, layer, products
    from lastlayer.linear_loss.kernels import rows

    room = layer.Layer.room

    def strange(self: layer.Layer, n: int, *dtype: Any) -> torch.Tensor:
        found = room(self, n, *dtype)
        found.as_strided((n, found.stride(0)), found.stride()).fill_(float("nan"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", 16)
        patch.setattr(products, "SPLIT_PAYS", 0)
        patch.setattr(kernels, "ONE_ROW", 0)
        patch.setitem(plan.__globals__, "NARROW", 0)
        patch.setitem(plan.__globals__, "FEWEST_ROWS", 0)
        patch.setattr(layer.Layer, "room", strange)
        patch.setattr(kernels, "pays", lambda tensor: True)
        yield
