"""Products in pieces of whole widths and the few columns left over, against float64."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lastlayer.linear_loss import Plan, linear_loss, products
from lastlayer.linear_loss.layer import Layer
from lastlayer.linear_loss.plan import tile
from lastlayer.linear_loss.products import WIDTH, input_gradient, padded, pieces, put_product
from tests.linear_loss.cases import BATCH, DEVICE, assert_same, classes, dense, layer, make, rows, target

N, D = 13, 6
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_width = pytest.mark.parametrize("K", [1, 5, 8, 16, 17, 23])


@given(n=st.integers(0, 2**14), d=st.integers(1, 2**12), K=st.integers(1, 2**21))
def test_pieces_are_all_columns_once_in_whole_widths_and_a_rest(n: int, d: int, K: int) -> None:
    first, *rest = pieces(n, d, K)
    assert first.start == 0
    assert len(rest) <= 1
    if rest:
        assert first.stop % WIDTH == 0
        assert (rest[0].start, rest[0].stop) == (first.stop, K)
        assert rest[0].stop - rest[0].start < WIDTH
        assert n * d * K >= products.SPLIT_PAYS
    else:
        assert first.stop == K
    assert K <= padded(K) < K + WIDTH
    assert padded(K) % WIDTH == 0


def test_large_products_of_an_odd_number_of_classes_are_split() -> None:
    assert pieces(8192, 512, 21841) == [slice(0, 21840), slice(21840, 21841)]
    assert pieces(8192, 512, 21840) == [slice(0, 21840)]
    assert pieces(128, 64, 10) == [slice(0, 10)]


@every_dtype
@every_width
def test_products(K: int, dtype: torch.dtype, split: None) -> None:
    torch.manual_seed(0)
    dz, h, w, total = (torch.randn(s).to(DEVICE, dtype) for s in ((N, K), (N, D), (K, D), (K, D)))
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    found = torch.full((K, D), float("nan"), dtype=dtype, device=DEVICE)
    put_product(found, dz, h)
    torch.testing.assert_close(found.double(), dz.double().T @ h.double(), **close)
    exact = {"rtol": 1e-5, "atol": 1e-5}
    summed = total.float().clone()
    put_product(summed, dz, h, add=True)
    torch.testing.assert_close(summed.double(), total.double() + dz.double().T @ h.double(), **exact)
    wanted = dz.double() @ w.double()
    torch.testing.assert_close(input_gradient(dz, w).double(), wanted, **close)
    out = torch.full((N, D), float("nan"), dtype=dtype, device=DEVICE)
    assert input_gradient(dz, w, out=out) is out
    torch.testing.assert_close(out.double(), wanted, **close)


@every_dtype
@every_width
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("transposed", [False, True], ids=["weight", "transposed weight"])
def test_logits_in_place(K: int, dtype: torch.dtype, biased: bool, transposed: bool, split: None) -> None:
    """What lies between the rows stays as it was, and nothing is resized."""
    torch.manual_seed(0)
    h, w, b = (torch.randn(s).to(DEVICE, dtype) for s in ((N, D), (K, D), (K,)))
    bias = b if biased else None
    part = Layer(h, w.T.contiguous().T if transposed else w, bias)
    buffer = part.room(N)
    memory = buffer.as_strided((N, padded(K)), (padded(K), 1)).fill_(7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z = part.put_logits(buffer, 0, N)
    assert z.data_ptr() == memory.data_ptr()
    wanted = h.double() @ w.double().T + (b.double() if biased else 0.0)
    torch.testing.assert_close(z.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert bool((memory[:, K:] == 7.0).all())


@given(N=st.integers(0, 2**27), K=st.integers(1, 2**21), device=st.sampled_from(["cpu", "cuda"]))
def test_tiles_are_of_whole_widths(N: int, K: int, device: str) -> None:
    size = tile(N, K, device)
    assert 1 <= size <= K
    assert size == K or size < WIDTH or size % WIDTH == 0


@pytest.mark.parametrize("plan", [rows(4), rows(100), classes(9)], ids=str)
@pytest.mark.parametrize("name", ["ce", "sln", "bce", "focal", "mse", "max-margin", *BATCH])
def test_every_path_in_pieces(name: str, plan: Plan, split: None) -> None:
    if plan.path == "classes" and name in ("max-margin", "batch-max-margin"):
        pytest.skip("no form by classes")
    parts, labels = layer(11, 5, 19), target("index", 11, 19)
    module = make(name, 19)
    assert_same(linear_loss(*parts[:2], labels, module, parts[2], plan=plan), dense(module, parts, labels), parts)
