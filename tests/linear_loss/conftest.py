"""What the tests of linear_loss share: kernels and compiled code on any device, and plans for large sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from lastlayer.linear_loss import Plan, batch, kernels, plan, products


@pytest.fixture(scope="module")
def kernels_anywhere() -> Iterator[None]:
    """Kernels where there is no GPU too, by Triton's interpreter, in blocks smaller than a row.

    Products are split at any size, and the room between rows is filled with NaN.
    """
    pytest.importorskip("triton")
    from lastlayer.linear_loss import layer
    from lastlayer.linear_loss.kernels import rows

    room = layer.Layer.room

    def strange(self: layer.Layer, n: int, *dtype: Any) -> torch.Tensor:
        found = room(self, n, *dtype)
        found.as_strided((n, found.stride(0)), found.stride()).fill_(float("nan"))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "BLOCK", 16)
        patch.setattr(kernels, "ONE_ROW", 0)
        patch.setitem(plan.__globals__, "NARROW", 0)
        patch.setitem(plan.__globals__, "FEWEST_ROWS", 0)
        patch.setattr(layer.Layer, "room", strange)
        _split_products(patch)
        _as_if_it_paid(patch)
        yield


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in pieces at any size."""
    _split_products(monkeypatch)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row functions are compiled on any device, by a backend that any machine has."""
    _as_if_it_paid(monkeypatch)
    monkeypatch.setattr(kernels, "BACKEND", "aot_eager")
    monkeypatch.setattr(kernels, "_compiled", {})


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], list[Any]]:
    """Make few logits be planned in this way, as a GPU plans more of them. The list gets the sizes asked about."""

    def as_if(found: Plan) -> list[Any]:
        asked: list[Any] = []
        module = sys.modules["lastlayer.linear_loss.linear_loss"]  # its name is that of the function
        monkeypatch.setattr(module, "choose", lambda *sizes, **_: asked.append(sizes) or found)
        return asked

    return as_if


def _split_products(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(products, "SPLIT_PAYS", 0)
    patch.setattr(batch, "MANY", 0)


def _as_if_it_paid(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kernels, "pays", lambda tensor: True)
