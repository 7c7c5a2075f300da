"""The kernels of losses of one label per sample: cases in which digits are easily lost, and wrong arguments.

By Triton's interpreter where there is no GPU. Equality with the dense form in general: test_kernels.py.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from triton import constexpr_function

from lastlayer import losses
from lastlayer.linear_loss import Plan, kernels, linear_loss
from lastlayer.linear_loss import layer as layers
from lastlayer.linear_loss.kernels import labels as label_kernels
from lastlayer.losses.forms import Kind
from tests.linear_loss.cases import BY_KERNELS, DEVICE, PLANS, dense, gradients, layer, make, target

N, D, K = 6, 5, 37
NAMES = [name for name in losses.available() if losses.entry(name).module.row_form is not None]
pytestmark = BY_KERNELS


def of_logits(name: str, z: torch.Tensor, y: torch.Tensor, plan: Plan, **options: Any) -> tuple[Any, Any, Any, Any]:
    """Value and gradient by the kernels on the logits given, and those of the loss itself in float64."""
    z = z.float().to(DEVICE)
    eye = torch.eye(z.shape[1], device=DEVICE)
    module = make(name, z.shape[1], **options).to(DEVICE)
    mine, exact = z.clone().requires_grad_(), z.double().requires_grad_()
    value = linear_loss(mine, eye, y.to(DEVICE), module, plan=plan)
    expected = module.double()(exact, y.to(DEVICE))
    upstream = torch.linspace(0.5, 1.5, value.numel(), device=DEVICE).reshape(value.shape)
    (found,) = torch.autograd.grad(value, mine, upstream)
    (wanted,) = torch.autograd.grad(expected, exact, upstream.double())
    return value.double(), expected, found.double(), wanted


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e-3, 1.0, 8.0]), k=st.sampled_from([1, 2, 3, 16, 37]))
def test_digits_at_any_size(name: str, seed: int, size: float, k: int) -> None:
    """Errors are relative to the largest value: also if the loss, or each entry of the gradient, is tiny."""
    generator = torch.Generator().manual_seed(seed)
    z = size * torch.randn(N, k, generator=generator)
    y = torch.randint(k, (N,), generator=generator)
    if name == "arc-margin":
        z = z.clamp(-1, 1) * 0.999
    z[0, y[0]] += 0.0 if name == "arc-margin" else 30.0  # sure of its label
    options = {} if losses.entry(name).module.couples_batch else {"reduction": "none"}
    value, expected, found, wanted = of_logits(name, z, y, PLANS[1], **options)
    torch.testing.assert_close(value, expected, rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=1e-6 * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("name", ["ce", "focal", "bce"])
def test_a_small_loss_keeps_its_digits(name: str) -> None:
    """At odds of e^-20, one minus a probability has no digits left in float32."""
    z = torch.full((2, 5), -10.0)
    z[:, 1] = 10.0
    value, expected, found, wanted = of_logits(name, z, torch.tensor([1, 1]), PLANS[1], reduction="none")
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0.0)


def test_many_small_terms_of_binary_cross_entropy_add_up() -> None:
    """If log(1 + e^-14) were computed from 1 + e^-14, every term would be wrong by 5 % in float32."""
    z = torch.full((1, 3000), -14.0)
    value, expected, _, _ = of_logits("bce", z, torch.tensor([0]), PLANS[1], reduction="none")
    torch.testing.assert_close(value - 14.0, expected - 14.0, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("name", ["ce", "ls", "focal", "self-norm", "soft-margin"])
def test_a_part_common_to_all_logits_costs_no_digits(name: str) -> None:
    """Logits near 5003 are exact to 5e-4 here. As powers of two, or in a log-sum, they would be rounded once more."""
    z = 5003.7 + torch.randn(N, K, generator=torch.Generator().manual_seed(0))
    value, expected, found, wanted = of_logits(name, z, torch.arange(N), PLANS[1], reduction="none")
    torch.testing.assert_close(value, expected, rtol=2e-6, atol=0.0)
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.why)
@pytest.mark.parametrize("name", ["max-margin", "batch-max-margin"])
def test_a_part_common_to_all_logits_costs_a_hinge_no_digits(name: str, plan: Plan) -> None:
    """At 1e8 logits are multiples of 8. A margin added to one would be rounded away, and a tie would cost nothing."""
    z = 1e8 + 8 * torch.randint(-2, 3, (N, K), generator=torch.Generator().manual_seed(0))
    z[:, :N] += 32 * torch.eye(N)
    z[0, 1] = z[0, 0] = z[0].max()
    value, expected, found, wanted = of_logits(name, z, torch.arange(N), plan, margin=0.3)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(found, wanted)
    assert wanted.any()


@pytest.mark.parametrize("name", ["sln", "ln"])
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_norms_whose_squares_overflow_or_vanish(name: str, size: float) -> None:
    z = size * torch.randn(N, K, generator=torch.Generator().manual_seed(0))
    z[1, 2:] = 0.0
    value, expected, found, wanted = of_logits(name, z, torch.arange(N), PLANS[1], reduction="none")
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()))


def test_self_norm_of_a_label_far_below_the_others() -> None:
    """The log-sum is near 3 for any true logit. If it were computed relative to that one, it would lose digits."""
    z = torch.randn(N, K, generator=torch.Generator().manual_seed(0))
    z[:, 0] = -3e4
    _, _, found, wanted = of_logits("self-norm", z, torch.zeros(N, dtype=torch.long), PLANS[1], reduction="none")
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=1e-7)


@pytest.fixture
def as_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the minimum of NaN and a number is the number. In the interpreter it is NaN."""
    if DEVICE == "cpu":
        builder = importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
        monkeypatch.setattr(builder, "create_minnumf", lambda self, a, b: self.binary_op(a, b, np.fmin))
        monkeypatch.setattr(builder, "create_maxnumf", lambda self, a, b: self.binary_op(a, b, np.fmax))


@pytest.mark.usefixtures("as_the_hardware")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_number_is_seen(name: str, dtype: torch.dtype) -> None:
    """NaN in any logit shows in the loss, and in the gradient, which a loss scaler looks at."""
    for place in (0, 1):
        bias = torch.tensor([0.5, -0.5, 0.0], dtype=dtype, device=DEVICE)
        bias[place] = float("nan")
        h = torch.ones(1, 2, dtype=dtype, device=DEVICE, requires_grad=True)
        w = torch.zeros(3, 2, dtype=dtype, device=DEVICE, requires_grad=True)
        for plan in (PLANS[1], Plan("rows", "chunks", rows=1)):
            both, labels = torch.cat([h, h]), torch.zeros(2, dtype=torch.long, device=DEVICE)
            value = linear_loss(both, w, labels, make(name, 3).to(DEVICE), bias, plan=plan)
            assert value.isnan()
            assert torch.autograd.grad(value, w)[0].isnan().any()


@pytest.mark.parametrize("name", ["ce", "ls", "logit-adjusted", "sln"])
def test_a_true_logit_that_overflowed_is_no_perfect_answer(name: str) -> None:
    """70000 is infinite in float16. The dense form gives NaN, and a loss of 0 would hide it."""
    h = torch.ones(1, 1, dtype=torch.float16, device=DEVICE)
    w = torch.zeros(3, 1, dtype=torch.float16, device=DEVICE)
    bias = torch.tensor([float("inf"), 0.0, 1.0], dtype=torch.float16, device=DEVICE)
    labels, module = torch.tensor([0], device=DEVICE), make(name, 3).to(DEVICE)
    assert module(h @ w.T + bias, labels).isnan()
    assert linear_loss(h, w, labels, module, bias, plan=PLANS[1]).isnan()


@pytest.mark.parametrize("name", ["ce", "ls"])
@pytest.mark.parametrize("label", [0, 1])
def test_a_masked_class_is_as_in_the_dense_form(name: str, label: int) -> None:
    """Its bias is minus infinity. With a smoothed target, or with its own label, the loss is infinite and not NaN."""
    h, w = torch.ones(1, 1, device=DEVICE), torch.tensor([[1.0], [2.0], [0.5]], device=DEVICE)
    bias = torch.tensor([-float("inf"), 0.0, 1.0], device=DEVICE)
    y, module = torch.tensor([label], device=DEVICE), make(name, 3).to(DEVICE)
    whole = module((h @ w.T + bias).double(), y)
    torch.testing.assert_close(linear_loss(h, w, y, module, bias, plan=PLANS[1]).double(), whole)
    assert whole.isfinite() == (name == "ce" and label == 1)


@pytest.mark.skipif(DEVICE != "cpu", reason="takes no memory on a CPU alone")
def test_more_samples_than_their_numbers_have_places_in_32_bits(tmp_path: Path) -> None:
    """Lines lie 310 million entries apart, in a file of which almost nothing is written."""
    lines, many = kernels.LINES, 310_000_000
    far = torch.from_file(str(tmp_path / "numbers"), shared=True, size=lines * many).view(lines, many)[:, :2]
    near = torch.zeros(lines, 2)
    loss = kernels.RowLoss(Kind.NORM, (1.0, 0.7, 0.0, 0.0), -100)
    z, y = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 4])
    found = []
    for numbers in (far, near):
        found.append(z.clone())
        label_kernels.put_numbers(z, y, loss, numbers)
        label_kernels.put_gradient(found[-1], y, loss, numbers)
    assert torch.equal(far, near)
    assert torch.equal(*found)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.why)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_samples_count_for_nothing_whatever_their_logits(reduction: str, plan: Plan) -> None:
    for name in ("ce", "sln", "bce", "max-margin"):
        z = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
        z[1] = torch.tensor([1e30, -1e30, 0.0, float("inf"), 3.0])
        y = torch.tensor([0, -100, 2, 3, -100, 1])
        weight = torch.linspace(0.5, 2.0, 5)
        value, _, found, _ = of_logits(name, z, y, plan, reduction=reduction, weight=weight)
        assert value.isfinite().all()
        assert (found[[1, 4]] == 0).all()
        kept = y != -100
        _, expected, _, wanted = of_logits(name, z[kept], y[kept], plan, reduction=reduction, weight=weight)
        if reduction == "none":
            torch.testing.assert_close(value[kept.to(DEVICE)], expected, rtol=1e-5, atol=1e-6)
        else:
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found[kept.to(DEVICE)], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.why)
def test_where_every_sample_is_ignored_the_mean_is_nan_and_the_gradient_zero(plan: Plan) -> None:
    parts = [p.detach().float().to(DEVICE).requires_grad_() for p in layer(N, D, K)]
    value = linear_loss(*parts[:2], torch.full((N,), -100, device=DEVICE), "sln", parts[2], plan=plan)
    assert value.isnan()
    for found in torch.autograd.grad(value, parts):
        assert (found == 0).all()


def test_the_largest_false_logits_share_the_gradient_of_the_hinge() -> None:
    z = torch.tensor([[1.0, 2.0, 2.0, 0.0], [9.0, 1.0, 1.0, 1.0], [0.0, float("nan"), 1.0, 1.0], [1.0, 2.0, 0.0, 2.0]])
    y = torch.tensor([0, 0, 0, 1])
    value, expected, found, wanted = of_logits("max-margin", z, y, PLANS[1], reduction="none")
    torch.testing.assert_close(value, expected, equal_nan=True)
    sure = [0, 1, 3]
    torch.testing.assert_close(found[sure], wanted[sure])
    assert found[0].tolist() == [-0.5, 0.25, 0.25, 0.0]


def test_cosines_past_one_and_large_angles() -> None:
    z = torch.tensor([[1.0, 0.2], [1.004, -0.3], [-1.0, 0.1], [-0.95, 0.5], [0.3, 1.01]])
    value, expected, found, wanted = of_logits("arc-margin", z, torch.tensor([0, 0, 0, 0, 1]), PLANS[1])
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_upstream_numbers_that_are_one_number_in_memory() -> None:
    parts, labels = [p.detach().float().to(DEVICE).requires_grad_() for p in layer(N, D, K)], target("index", N, K)
    module = losses.SoftLogitNormLoss(K, reduction="none")
    for plan in PLANS:
        value = linear_loss(*parts[:2], labels.to(DEVICE), module, plan=plan)
        found = torch.autograd.grad(value.sum(), parts[:2])  # its gradient is expanded from one entry
        wanted = torch.autograd.grad(dense(module, [*parts[:2], None], labels.to(DEVICE)).sum(), parts[:2])
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (losses.SoftLogitNormLoss(K, gamma=1.5), "gamma must lie in"),
        (losses.CrossEntropyLoss(K, temperature=-1.0), "temperature must lie in"),
        (losses.CrossEntropyLoss(K, weight=torch.ones(K + 1)), "weight must have shape"),
        (losses.CrossEntropyLoss(K, reduction="avg"), "reduction must be"),
        (losses.CrossEntropyLoss(K, weight=torch.nn.Parameter(torch.ones(K))), "weight of the loss wants a gradient"),
    ],
)
def test_what_is_wrong_is_said_as_elsewhere(module: losses.Loss, message: str) -> None:
    h, w = torch.randn(N, D, device=DEVICE), torch.randn(K, D, device=DEVICE, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        linear_loss(h, w, torch.zeros(N, dtype=torch.long, device=DEVICE), module.to(DEVICE), plan=PLANS[1])


@pytest.mark.parametrize("label", [K, -1])
def test_a_label_that_is_no_class(label: int) -> None:
    labels = torch.full((N,), label, device=DEVICE)
    with losses.check_labels(), pytest.raises(ValueError, match=f"target has the label {label}, but there are {K}"):
        linear_loss(torch.randn(N, D, device=DEVICE), torch.randn(K, D, device=DEVICE), labels, "ce", plan=PLANS[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_unit_rows(dtype: torch.dtype) -> None:
    """Against float64, with a zero row and rows whose squares overflow or vanish in float32."""
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    x[2] = 0
    if dtype is not torch.float16:
        x[3] *= 1e30
        x[4] *= 1e-30
    x = x.to(dtype).to(DEVICE)
    g = torch.randn(7, 5, generator=torch.Generator().manual_seed(1)).to(dtype).to(DEVICE)
    exact = x.double().requires_grad_()
    norm = torch.where(exact == 0, 1.0, exact).norm(dim=1, keepdim=True)
    wanted = 3.0 * exact / norm
    (d_wanted,) = torch.autograd.grad(wanted, exact, g.double())
    mine = x.clone().requires_grad_()
    found = layers.unit_rows(mine, 3.0, dtype)
    (d_found,) = torch.autograd.grad(found, mine, g)
    single = torch.finfo(torch.float32).eps  # a GPU divides to one or two of these, and here three times
    rtol = torch.finfo(dtype).eps + 3 * single
    torch.testing.assert_close(found.double(), wanted.detach(), rtol=rtol, atol=single)
    assert (d_found[2] == 0).all()
    rest = [0, 1, 3, 4, 5, 6]
    scale = (3.0 / norm.detach())[rest]
    torch.testing.assert_close(d_found.double()[rest] / scale, d_wanted[rest] / scale, rtol=rtol, atol=8 * single)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.why)
def test_a_normalized_layer_by_kernels(plan: Plan) -> None:
    exact = layer(N, D, K)
    labels = target("index", N, K)
    normal = [p / p.norm(dim=1, keepdim=True) for p in exact[:2]]
    expected = losses.cross_entropy(8.0 * normal[0] @ normal[1].T - exact[2], labels)
    wanted = gradients(expected, exact)
    mine = [p.detach().float().to(DEVICE).requires_grad_() for p in exact]
    value = linear_loss(*mine[:2], labels.to(DEVICE), "ce", mine[2], normalized=True, scale=8.0, plan=plan)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(value, mine, torch.tensor(1.7, device=DEVICE))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-6)


COMPILE = """
import json
import re
import torch
from tests import hopper

hopper.pretend()

class Compiled:
    kernels = []
    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel
    def __getitem__(self, grid):
        def compile(*arguments, **named):
            Compiled.kernels.append((self.name, self.kernel.warmup(*arguments, grid=grid, **named)))
        return compile

from lastlayer.linear_loss.kernels import LINES, RowLoss, coupled, labels, rows as over_rows
from lastlayer.losses.forms import Kind

for module, names in (
    (over_rows, ("_sums", "_exponentials", "_best", "_times", "_unit", "_unit_gradient")),
    (labels, ("_numbers", "_gradient", "_reduce")),
    (coupled, ("_softmax", "_hinge")),
):
    for name in names:  # the rest is called by these
        setattr(module, name, Compiled(name, getattr(module, name)))

def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")

z, y, rows = empty(64, 1000, dtype=torch.bfloat16), empty(64, dtype=torch.long), empty(LINES, 64)
fused = []
for kind in Kind:
    loss = RowLoss(kind, (1.0, 0.5, 0.1, 0.2), -100, empty(1000), None, False)
    if kind is Kind.SOFTMAX:
        loss = RowLoss(kind, (1.0, 0.5, 0.1, 0.2), -100, None, empty(1000), True)
    labels.put_numbers(z, y, loss, rows)
    labels.put_gradient(z, y, loss, rows, empty(64))
    fused += [[kind.name, name] for name, kernel in Compiled.kernels[-2:] if "fma.rn.f32" in kernel.asm["ptx"]]
labels.put_gradient(z.half(), y, loss, rows, empty(1), empty(1))
over_rows.sums(z, y)
over_rows.put_exponentials(z, empty(1))
over_rows.best(z, y)
over_rows.times(z, empty(1), z)
over_rows.unit_gradient(z, over_rows.unit(z, 2.0, z.dtype), 2.0)
several = re.compile(r"ld\\.global(\\.\\w+)*\\.v[24]\\.b32")
slow = [name for name, kernel in Compiled.kernels if not several.search(kernel.asm["ptx"])]

odd = empty(64, 1008, dtype=torch.bfloat16)[:, :1001]
start = len(Compiled.kernels)
over_rows.sums(odd, y)
over_rows.put_exponentials(odd, empty(1))
over_rows.best(odd, y)
for kind in Kind:
    labels.put_numbers(odd, y, RowLoss(kind, (1.0, 0.5, 0.1, 0.2), -100, None, None, False), rows)
    labels.put_gradient(odd, y, RowLoss(kind, (1.0, 0.5, 0.1, 0.2), -100, None, None, False), rows)
one = re.compile(r"st\\.global(\\.\\w+)*\\.b16")
slow_odd = [
    name for name, kernel in Compiled.kernels[start:]
    if not several.search(kernel.asm["ptx"]) or one.search(kernel.asm["ptx"])
]
long = empty(64, 600_000, dtype=torch.bfloat16)
labels.put_numbers(long, y, RowLoss(Kind.NORM, (1.0, 0.5, 0.1, 0.2), -100, None, None, False), rows)
ahead = ["cp.async" in kernel.asm["ptx"] for _, kernel in (Compiled.kernels[start + 3], Compiled.kernels[-1])]
del Compiled.kernels[start:]
labels.reduced(rows, y, loss, True)
for kind in (Kind.SOFTMAX, Kind.HINGE):
    loss = RowLoss(kind, (1.0, 0.5, 0.1, 0.2), -100, coupled=True)
    labels.put_numbers(z, y, loss, rows)
    coupled.coupled(rows, loss)
done = len(Compiled.kernels)

z, y, rows = torch.empty(5, 37), torch.empty(15, dtype=torch.long), torch.empty(LINES, 15)
for low in (0, 5, 10):
    some = slice(low, low + 5)
    labels.put_numbers(z, y[some], loss, rows[:, some])
    labels.put_gradient(z, y[some], loss, rows[:, some], rows[0, some])
of_chunks = len({kernel.hash for _, kernel in Compiled.kernels[done:]})
wrapped = [value for m in (over_rows, labels, coupled) for value in vars(m).values()]
compared = [w.name for w in wrapped if isinstance(w, Compiled) and w.kernel.used_global_vals]
found = {"done": done, "fused": fused, "slow": slow, "of_chunks": of_chunks, "odd": slow_odd, "ahead": ahead}
print(json.dumps({**found, "compared": compared}))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the compiler says about each kernel for Hopper, without a GPU."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_kernel_in_the_cache_of_triton_is_not_taken_for_one_with_other_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache knows a kernel by its text and by that of the functions it calls. A number elsewhere is not seen."""
    lines, first = inspect.getsourcelines(kernels.place)
    text = "\n" * (first - 1) + "".join(lines)
    monkeypatch.syspath_prepend(tmp_path)
    known = []
    for name, place in (("same_places", '"slope": 4'), ("other_places", '"slope": 5')):
        (tmp_path / f"{name}.py").write_text(text.replace('"slope": 4', place))
        copy = constexpr_function(importlib.import_module(name).place)
        known.append(copy.cache_key == label_kernels._place.cache_key)
    assert known == [True, False]


def test_compiles_without_a_gpu(compiled: dict[str, Any]) -> None:
    """The interpreter accepts Python that the compiler refuses."""
    assert compiled["done"] == 28


def test_the_largest_score_less_itself_is_zero_where_it_is_compiled(compiled: dict[str, Any]) -> None:
    """If one instruction made product and difference, it would not be 0. The interpreter does not show that."""
    assert [kind for kind, _ in compiled["fused"] if kind != "BINARY"] == []
    assert ["BINARY", "_numbers"] in compiled["fused"]  # by that name they are found


def test_rows_of_a_thousand_classes_are_read_several_at_a_time(compiled: dict[str, Any]) -> None:
    """1000 is a multiple of 8 and not of 16. The compiler knows this only if the number is a constant."""
    assert compiled["slow"] == []


def test_rows_of_an_odd_number_of_classes_are_read_and_written_several_at_a_time(compiled: dict[str, Any]) -> None:
    """There is room between the rows. If a mask ended within a width, the compiler would read entries one by one."""
    assert compiled["odd"] == []


def test_long_rows_are_read_ahead(compiled: dict[str, Any]) -> None:
    assert compiled["ahead"] == [False, True]


def test_a_launch_has_no_constants_to_compare(compiled: dict[str, Any]) -> None:
    """At every launch Triton compares each constant that a kernel takes from its module. That takes longest."""
    assert compiled["compared"] == []


def test_chunks_are_compiled_once_wherever_they_start(compiled: dict[str, Any]) -> None:
    assert compiled["of_chunks"] == 2
