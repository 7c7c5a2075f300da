"""What the tests of the Triton kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lastlayer.linear_loss._function import Layer


@pytest.fixture(scope="module")
def kernels_anywhere() -> Iterator[None]:
    """Kernels where there is no GPU too, by Triton's interpreter, in blocks smaller than a row.

    Products are split at any size, and what lies between rows is no number.
    """
    pytest.importorskip("triton")
    from lastlayer.linear_loss import _batch, _compiled, _kernels, _label_rows, _margins, _products, _rows

    empty = _rows.logits_buffer

    def buffer(layer: Layer, rows: int) -> torch.Tensor:
        found = empty(layer, rows)
        found.as_strided((rows, found.stride(0)), found.stride()).fill_(float("nan"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "BLOCK", 16)
        patch.setattr(_products, "SPLIT_PAYS", 0)
        patch.setattr(_compiled, "NARROW", 0)
        for user in (_batch, _label_rows, _margins, _rows):
            patch.setattr(user, "logits_buffer", buffer)
        for module in (_compiled, _rows):
            patch.setattr(module, "pays", lambda tensor: True)
        yield
