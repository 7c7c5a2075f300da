"""What is refused, and how it is said, in every function that takes logits and labels."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer import tasks

PAIRED = {
    "accuracy": tasks.accuracy,
    "unbiased_accuracy": lambda z, y: tasks.unbiased_accuracy(z, torch.zeros(z.shape[-1]), y),
    "logit_difference": lambda z, y: tasks.logit_difference(z, y, gamma=0.7),
    "single_logit": tasks.single_logit,
    "logit_separation": tasks.logit_separation,
    "critical_conditions": tasks.critical_conditions,
    "collapsed": lambda z, y: tasks.collapsed(z, y, 0.1),
    "open_set": lambda z, y: tasks.open_set(z, y, torch.zeros(2, z.shape[-1])),
    "long_tail": lambda z, y: tasks.long_tail(z, y, [1] * z.shape[-1]),
    "calibration": tasks.calibration,
}
every = pytest.mark.parametrize("measure", PAIRED.values(), ids=PAIRED.keys())
LOGITS, TARGET = torch.tensor([[0.5, 0.25], [0.25, 0.75], [0.125, 0.25]]), torch.tensor([0, 1, 1])


def flat(result):
    values = vars(result).values() if hasattr(result, "__dataclass_fields__") else [result]
    return [v for value in values for v in (value.values() if isinstance(value, dict) else [value])]


@every
@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64],
    ids=str,
)
def test_every_integer_dtype_of_labels(measure, dtype):
    for ours, expected in zip(flat(measure(LOGITS, TARGET.to(dtype))), flat(measure(LOGITS, TARGET)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_floating_dtype_of_logits(measure, dtype):
    # The logits are representable in all of them, so the answer must be the same to the last bit.
    for ours, expected in zip(flat(measure(LOGITS.to(dtype), TARGET)), flat(measure(LOGITS, TARGET)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@every
def test_values_are_float64_scalars_without_gradient(measure):
    for value in flat(measure(LOGITS.clone().requires_grad_(), TARGET)):
        if isinstance(value, torch.Tensor):
            assert value.dtype == torch.float64
            assert not value.requires_grad


@every
@pytest.mark.parametrize(
    ("logits", "target", "error", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), ValueError, "empty"),
        (torch.zeros(3), TARGET, ValueError, "shape"),
        (torch.zeros(3, 2, 1), TARGET, ValueError, "shape"),
        (torch.zeros(3, 2, dtype=torch.long), TARGET, TypeError, "floating"),
        (LOGITS, TARGET[:2], ValueError, r"\(3,\)"),
        (LOGITS, TARGET[:, None], ValueError, r"\(3,\)"),
        (LOGITS, TARGET.float(), TypeError, "integer dtype"),
        (LOGITS, TARGET.bool(), TypeError, "integer dtype"),
        (LOGITS, TARGET.tolist(), TypeError, "list"),
        (LOGITS, torch.tensor([0, 1, 2]), ValueError, r"0\.\.1"),
        (LOGITS, torch.tensor([0, 1, -100]), ValueError, "-100"),
    ],
)
def test_wrong_input_is_named(measure, logits, target, error, message):
    with pytest.raises(error, match=message):
        measure(logits, target)


@pytest.mark.parametrize("name", ["single_logit", "logit_separation", "open_set", "calibration"])
def test_nan_is_refused_where_it_cannot_be_ranked(name):
    bad = LOGITS.clone()
    bad[1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"NaN|nan"):
        PAIRED[name](bad, TARGET)


class LargestOutput(TorchDispatchMode):
    """The most bytes any operation wrote."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.most = max(self.most, out.numel() * out.element_size())
        return out


@pytest.mark.parametrize("name", ["logit_difference", "calibration", "log_partition"])
def test_no_copy_of_a_wide_matrix_is_made(name):
    """A float64 copy of the logits of a million classes would take twice their memory."""
    logits = torch.full((24, 1_000_000), 0.5)
    target = torch.arange(24)
    measure = {**PAIRED, "log_partition": lambda z, _: tasks.log_partition(z)}[name]
    with LargestOutput() as written:
        measure(logits, target)
    assert written.most <= logits.numel() * logits.element_size() / 2


def test_blocks_that_are_not_columns_are_refused():
    with pytest.raises(ValueError, match="same 3 rows"):
        tasks.single_logit(lambda: iter([LOGITS, LOGITS[:2]]), TARGET)
    with pytest.raises(ValueError, match="no block"):
        tasks.single_logit(lambda: iter([]), TARGET)
    with pytest.raises(ValueError, match=r"0\.\.0"):
        tasks.single_logit(lambda: iter([LOGITS[:, :1]]), TARGET)
