"""Losses of one label per sample by kernels, seen by a caller: what may be written to, changed, moved and left out.

By Triton's interpreter where there is no GPU. The numbers themselves: test_kernels.py and test_label_kernels.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from lastlayer import losses
from lastlayer.linear_loss import Plan, kernels, linear_loss
from lastlayer.linear_loss import plan as choose
from lastlayer.linear_loss import rows as by_rows
from lastlayer.linear_loss.kernels import labels as label_kernels
from lastlayer.linear_loss.kernels import large_margin
from lastlayer.linear_loss.kernels import rows as row_kernels
from tests.linear_loss.cases import BY_KERNELS, DEVICE, PLANS, dense, every_plan, is_dense, make, on_device

K = 7
pytestmark = BY_KERNELS


@every_plan
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_loss_can_be_written_to(reduction: str, plan: Plan) -> None:
    """As training loops do: loss += penalty, loss /= steps."""
    parts, labels = on_device()
    module = losses.SoftLogitNormLoss(reduction=reduction)
    value = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
    expected = dense(module, parts, labels)
    for loss in (value, expected):
        loss += 3.0
        loss /= 2
    torch.testing.assert_close(value, expected)
    wanted = torch.autograd.grad(expected.sum(), parts)
    torch.testing.assert_close(torch.autograd.grad(value.sum(), parts), wanted, rtol=1e-4, atol=1e-5)


@every_plan
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_target_that_changed_before_the_backward_pass_is_an_error(reduction: str, plan: Plan) -> None:
    parts, labels = on_device()
    value = linear_loss(*parts[:2], labels, losses.CrossEntropyLoss(reduction=reduction), plan=plan)
    labels.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


@every_plan
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_class_weights_that_changed_since_are_those_of_the_forward_pass(reduction: str, plan: Plan) -> None:
    parts, labels = on_device()
    module = losses.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, K), reduction=reduction).to(DEVICE)
    wanted = torch.autograd.grad(dense(module, [*parts[:2], None], labels).sum(), parts[:2])
    value = linear_loss(*parts[:2], labels, module, plan=plan).sum()
    module.weight.mul_(3.0)
    for retain in (True, False):
        found = torch.autograd.grad(value, parts[:2], retain_graph=retain)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@every_plan
def test_no_label_is_ignored(plan: Plan) -> None:
    parts, labels = on_device()
    module = losses.CrossEntropyLoss(ignore_index=None)
    value = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
    torch.testing.assert_close(value, dense(module, parts, labels))
    labels[0] = -100
    message = rf"target has the label -100, but there are {K} classes: labels must lie in 0..{K - 1}$"
    with losses.check_labels(), pytest.raises(ValueError, match=message):
        linear_loss(*parts[:2], labels, module, plan=plan)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_classes_are_float32_whatever_the_default_is(dtype: torch.dtype) -> None:
    parts, labels = on_device()
    modules = [
        losses.CrossEntropyLoss(weight=torch.linspace(0.511, 2.0, K)).to(DEVICE),
        losses.LogitAdjustedLoss(counts=1001 * torch.arange(1, K + 1)).to(DEVICE),
    ]
    expected = [dense(module, parts, labels) for module in modules]
    torch.set_default_dtype(dtype)
    try:
        found = [linear_loss(*parts[:2], labels, module, parts[2], plan=PLANS[1]) for module in modules]
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


def test_a_class_without_samples_is_an_error_where_values_may_be_read() -> None:
    parts, labels = on_device()
    module = losses.LogitAdjustedLoss(counts=torch.arange(K)).to(DEVICE)
    with losses.check_labels(), pytest.raises(ValueError, match="counts must be positive"):
        linear_loss(*parts[:2], labels, module, plan=PLANS[1])


@pytest.mark.parametrize("normalized", [False, True])
def test_transforms_are_refused_in_words(normalized: bool) -> None:
    (h, w, _), labels = on_device()
    with pytest.raises(RuntimeError, match="plan 'dense' has it"):
        torch.func.grad(lambda x: linear_loss(x, w, labels, "ce", normalized=normalized, plan=PLANS[0]))(h.detach())


@every_plan
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", ["ce", "batch-max-margin"])
@pytest.mark.filterwarnings("error:linear_loss")
def test_code_under_torch_compile_leaves_the_kernels_alone(name: str, normalized: bool, plan: Plan) -> None:
    (h, w, _), labels = on_device()
    torch._dynamo.reset()
    kernels._row_kernels_on.cache_clear()
    step = torch.compile(
        lambda h: 2 * linear_loss(h.sin(), w, labels, name, normalized=normalized, plan=plan), backend="eager"
    )
    x, rows = h.sin(), w
    if normalized:
        x, rows = x / x.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True)
    expected = 2 * make(name, K)(x @ rows.T, labels)
    value = step(h)
    torch.testing.assert_close(value, expected)
    wanted = torch.autograd.grad(expected, [h, w])
    torch.testing.assert_close(torch.autograd.grad(value, [h, w]), wanted, rtol=1e-4, atol=1e-5)


def test_few_logits_that_the_kernels_do_not_take_are_dense(planned: Callable[[Plan], Any]) -> None:
    """A plan of rows counts on kernels, but they have no mixed pairs, no float64 and no learnable class weights."""
    planned(PLANS[0])
    (h, w, _), labels = on_device()
    class_weight = torch.nn.Parameter(torch.linspace(0.5, 2.0, K, device=DEVICE))
    learnable = losses.FocalLoss(weight=class_weight)
    for loss, given, dtype in (
        (make("ce", K), (labels, labels.flip(0), 0.3), h.dtype),
        (make("sln", K), labels, torch.float64),
        (learnable, labels, h.dtype),
    ):
        value = linear_loss(h.to(dtype), w.to(dtype), given, loss)
        torch.testing.assert_close(value, loss(h.to(dtype) @ w.to(dtype).T, given))
        assert is_dense(value, h)
    (wanted,) = torch.autograd.grad(learnable(h @ w.T, labels), class_weight)
    torch.testing.assert_close(torch.autograd.grad(value, class_weight)[0], wanted)


def test_few_logits_under_autocast_are_dense_where_the_kernels_do_not_take_its_dtype(
    planned: Callable[[Plan], Any],
) -> None:
    planned(PLANS[1])
    (h, w, _), labels = on_device()
    with torch.autocast(DEVICE, torch.float16):
        value = linear_loss(h, w, labels, "batch-ce")
        torch.testing.assert_close(value, losses.batch_cross_entropy(torch.nn.functional.linear(h, w), labels))
    assert is_dense(value, h)


@every_plan
def test_kernels_are_launched_on_the_device_of_the_features(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton takes the current device, which need not be that of a layer on the last of several GPUs."""
    current: list[torch.device] = []
    launched = []

    @contextlib.contextmanager
    def device_of(tensor: torch.Tensor) -> Iterator[None]:
        current.append(tensor.device)
        yield
        current.pop()

    def seen(module: Any, name: str) -> None:
        launch = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given: (launched.append((name, [*current])), launch(*given))[1])

    parts, labels = on_device()
    kernels._row_kernels_on.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for module, name in ((row_kernels, "times"), (row_kernels, "unit"), (label_kernels, "put_numbers")):
        seen(module, name)
    with torch.no_grad():
        linear_loss(*parts[:2], labels, "ce", normalized=True, plan=plan)
    linear_loss(*parts[:2], labels, "ce", normalized=True, plan=plan)
    assert {name for name, _ in launched} == {"times", "unit", "put_numbers"}
    assert all(devices == [parts[0].device] for _, devices in launched)


def test_a_loss_of_the_users_own_with_a_name_of_ours() -> None:
    class ce(losses.Loss):
        function = staticmethod(losses.mse)

    parts, labels = on_device()
    with torch.no_grad():
        value = linear_loss(*parts[:2], labels, ce(), parts[2], plan=PLANS[0])
        torch.testing.assert_close(value, losses.mse(parts[0] @ parts[1].T + parts[2], labels))


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of K logits are too short for kernels that take one row per program."""
    monkeypatch.setattr(kernels, "ONE_ROW", K + 1)


@every_plan
@pytest.mark.parametrize("name", ["ce", "max-margin", "batch-ce", "batch-max-margin", "large-margin"])
@pytest.mark.usefixtures("compiles", "short_rows")
def test_rows_of_few_classes_are_not_for_kernels(name: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choose.__globals__, "NARROW", K + 1)
    parts, labels = on_device()
    parts = [*parts[:2], None]
    module = make(name, K).to(DEVICE)
    assert not by_rows.takes(labels, module, parts[0], K, len(labels))
    assert not large_margin.takes_angles(labels, module, parts[0], K)
    assert kernels.row_kernels(parts[0], K) is None
    value, expected = linear_loss(*parts[:2], labels, module, plan=plan), dense(module, parts, labels)
    torch.testing.assert_close(value, expected)
    found, wanted = (torch.autograd.grad(v, parts[:2]) for v in (value, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("short_rows")
def test_label_kernels_take_rows_too_short_for_those_of_one_row_a_program() -> None:
    parts, labels = on_device()
    taken = [by_rows.takes(labels, make(name, K), parts[0], K, len(labels)) for name in ("ce", "batch-ce")]
    assert taken == [True, True]


def test_single_entries_of_a_gradient_are_found_where_chunks_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of few samples would go over the whole gradient of the weight."""
    monkeypatch.setitem(choose.__globals__, "FEWEST_ROWS", 3)
    parts, labels = on_device()
    taken = {n: by_rows.takes(labels, make("max-margin", K), parts[0], K, n) for n in (2, 3)}
    assert taken == {2: False, 3: True}
