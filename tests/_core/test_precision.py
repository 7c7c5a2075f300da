"""Half precision widens, and products keep their digits."""

import contextlib

import pytest
import torch

from lastlayer._core.precision import at_least_float32, check_floating, full_precision, threads, without_tf32


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_half_precision_widens_and_the_rest_stays(given, expected):
    values = torch.tensor([1.5, -2.0], dtype=given)
    assert at_least_float32(values).dtype is expected
    assert at_least_float32(values).tolist() == [1.5, -2.0]


def test_products_have_all_digits_whatever_is_set():
    features = torch.full((1, 2), 1 + 2**-12)
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    try:
        setting.fp32_precision = "bf16"
        with torch.autocast("cpu", torch.bfloat16), full_precision(features):
            exact = features @ features.T
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before
    assert exact.dtype is torch.float32
    assert exact.item() == pytest.approx(2 * (1 + 2**-12) ** 2, rel=1e-6)


def test_full_precision_wants_a_tensor():
    with pytest.raises(TypeError, match="features must be a tensor, got list"), full_precision([1.0]):
        pass


def test_tf32_is_as_it_was_afterwards():
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    with without_tf32():
        inside = matmul.allow_tf32, cudnn.allow_tf32
    assert inside == (False, False)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == before


def test_values_that_are_no_floating_point_tensor_are_named():
    check_floating(torch.ones(2, dtype=torch.bfloat16), "features")
    with pytest.raises(TypeError, match="features must be a tensor, got list"):
        check_floating([1.0], "features")
    with pytest.raises(TypeError, match=r"bias must be floating point, got torch.int64: convert with bias.float\(\)"):
        check_floating(torch.ones(2, dtype=torch.int64), "bias")


@pytest.mark.parametrize(("count", "inside"), [(2, 2), (None, 1)])
def test_the_number_of_threads_is_restored_after_a_failure_too(count, inside):
    with contextlib.suppress(ValueError), threads(count):
        assert torch.get_num_threads() == inside
        torch.set_num_threads(3)
        raise ValueError
    assert torch.get_num_threads() == 1
