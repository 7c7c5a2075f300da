"""What the tests of the Triton kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(scope="module")
def kernels_anywhere() -> Iterator[None]:
    """Kernels where there is no GPU too, by Triton's interpreter, in blocks smaller than a row.

    Products are split at any size, and what lies between rows is no number.
    """
    pytest.importorskip("triton")
    from lastlayer.linear_loss import (
        _batch,
        _compiled,
        _kernels,
        _label_rows,
        _large_margin,
        _margins,
        _products,
        _rows,
    )

    empty = _products.empty_rows

    def strange(n: int, *like: Any) -> torch.Tensor:
        found = empty(n, *like)
        found.as_strided((n, found.stride(0)), found.stride()).fill_(float("nan"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "BLOCK", 16)
        patch.setattr(_products, "SPLIT_PAYS", 0)
        patch.setattr(_compiled, "ONE_ROW", 0)
        patch.setattr(_label_rows, "NARROW", 0)
        patch.setattr(_label_rows, "FEWEST_ROWS", 0)
        for user in (_batch, _label_rows, _large_margin, _margins, _rows):
            patch.setattr(user, "empty_rows", strange)
        for module in (_compiled, _rows):
            patch.setattr(module, "pays", lambda tensor: True)
        yield
