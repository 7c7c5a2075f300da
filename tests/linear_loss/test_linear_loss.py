"""linear_loss against the loss on the whole logits, by autograd in float64."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lastlayer import heads, losses
from lastlayer.linear_loss import Plan, _batch, _compiled, _margins, _rows, _spherical, linear_loss
from lastlayer.linear_loss import plan as linear_loss_plan
from tests.linear_loss.cases import (
    BATCH,
    BY_CLASSES,
    LABELS_BY_CLASSES,
    PER_SAMPLE,
    D,
    K,
    N,
    assert_same,
    dense,
    gradients,
    layer,
    make,
    target,
)  # fmt: skip

WHOLE = Plan("dense", "test")
KINDS = ["index", "probabilities", "pair", "pairs"]
REDUCTIONS = ["none", "mean", "sum"]
WEIGHT = torch.linspace(0.2, 2.0, K, dtype=torch.float64)


def rows(size: int) -> Plan:
    return Plan("rows", "test", rows=size)


def classes(size: int) -> Plan:
    return Plan("classes", "test", classes=size)


def options(name: str, reduction: str, weighted: bool) -> dict[str, Any]:
    weight = {"class_weight" if name == "large-margin" else "weight": WEIGHT} if weighted else {}
    return {"reduction": reduction, **weight}


@pytest.mark.parametrize("name", PER_SAMPLE)
@pytest.mark.parametrize("kind", KINDS)
def test_row_chunks_equal_dense(name: str, kind: str) -> None:
    for reduction, weighted, ignore, biased in itertools.product(REDUCTIONS, *[(False, True)] * 3):
        if (ignore and kind == "probabilities") or (biased and name == "large-margin"):
            continue
        module, labels = make(name, **options(name, reduction, weighted)), target(kind, ignore=ignore)
        parts = layer()[: 3 if biased else 2] + [None] * (not biased)
        if name == "arc-margin":  # cosines
            parts = [p if p is None else (p.detach() / 8).requires_grad_() for p in parts]
        expected = dense(module, parts, labels)
        for size in (4, 1, N, 100):  # uneven, one row, all, more than all
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=rows(size))
            assert_same(found, expected, parts, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", BY_CLASSES)
@pytest.mark.parametrize("kind", KINDS)
def test_class_tiles_equal_dense(name: str, kind: str) -> None:
    if name in LABELS_BY_CLASSES and kind == "probabilities":
        with pytest.raises(ValueError, match="'rows' takes it"):
            linear_loss(*layer()[:2], target(kind), make(name), plan=classes(3))
        return
    for reduction, weighted, ignore, biased in itertools.product(REDUCTIONS, *[(False, True)] * 3):
        if (ignore and kind == "probabilities") or (biased and name == "large-margin"):
            continue
        module, labels = make(name, **options(name, reduction, weighted)), target(kind, ignore=ignore)
        parts = layer()[: 3 if biased else 2] + [None] * (not biased)
        if name == "arc-margin":  # cosines
            parts = [p if p is None else (p.detach() / 8).requires_grad_() for p in parts]
        expected = dense(module, parts, labels)
        for size in (3, 1, K, 100):
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=classes(size))
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", BATCH)
@pytest.mark.parametrize("kind", KINDS)
def test_batch_losses_are_exact_across_chunks(name: str, kind: str) -> None:
    labels, parts = target(kind), layer()
    if name == "batch-max-margin" and kind in ("probabilities", "pairs"):
        with pytest.raises(ValueError, match="batch_max_margin"):
            linear_loss(parts[0], parts[1], labels, name, plan=rows(4))
        return
    expected = dense(make(name), parts, labels)
    plans = [rows(size) for size in (4, 1, N, 100)]
    if name == "batch-ce":
        plans += [classes(size) for size in (3, 1, K, 100)]
    for plan in plans:
        assert_same(linear_loss(parts[0], parts[1], labels, name, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("plan", [rows(2), classes(2)], ids=["rows", "classes"])
def test_batch_cross_entropy_survives_large_logits_in_any_order(order: int, plan: Plan) -> None:
    parts, labels = layer(), target("index")
    size = torch.logspace(-2.5 * order, 2.5 * order, N, dtype=torch.float64).unsqueeze(1)
    parts[0] = (parts[0].detach() * size).requires_grad_()
    expected = dense(make("batch-ce"), parts, labels)
    assert expected.isfinite()
    assert_same(linear_loss(*parts[:2], labels, "batch-ce", parts[2], plan=plan), expected, parts)


def test_batch_cross_entropy_takes_rows_that_do_not_sum_to_one() -> None:
    parts, labels = layer(), 0.5 * target("probabilities")
    expected = dense(make("batch-ce"), parts, labels)
    for plan in (rows(4), classes(3)):
        assert_same(linear_loss(*parts[:2], labels, "batch-ce", parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize(
    "module",
    [
        losses.CrossEntropyLoss(temperature=0.3, label_smoothing=0.2),
        losses.SoftLogitNormLoss(gamma=0.5, tau=0.8, label_smoothing=0.1),
        losses.SoftLogitNormLoss(gamma=0.0, tau=0.8),
        losses.BinaryCrossEntropyLoss(label_smoothing=0.3, pos_weight=WEIGHT, weight=WEIGHT),
        losses.MseLoss(kappa=2.5, beta=3.0),
        losses.LogitAdjustedLoss(counts=list(range(1, K + 1)), tau=0.5),
        losses.SelfNormLoss(alpha=0.7, weight=WEIGHT),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", KINDS)
def test_hyperparameters(module: losses.Loss, kind: str) -> None:
    parts, labels = layer(), target(kind, ignore=True)
    expected = dense(module, parts, labels)
    plans = [rows(4)] if isinstance(module, losses.MseLoss) and kind == "probabilities" else [rows(4), classes(3)]
    for plan in plans:
        assert_same(linear_loss(*parts[:2], labels, module, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("ignore_index", [-100, 2, 300])
def test_ignore_index_of_any_number(ignore_index: int) -> None:
    parts, labels = layer(), target("index")
    labels[::2] = ignore_index
    module = losses.CrossEntropyLoss(ignore_index=ignore_index, weight=WEIGHT)
    expected = F.cross_entropy(parts[0] @ parts[1].T + parts[2], labels, weight=WEIGHT, ignore_index=ignore_index)
    for plan in (rows(3), classes(3)):
        assert_same(linear_loss(*parts[:2], labels, module, parts[2], plan=plan), expected, parts)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_dtype(plan: Plan, dtype: torch.dtype) -> None:
    parts, labels = layer(), target("index")
    found = linear_loss(*parts[:2], labels.to(dtype), "ce", plan=plan)
    torch.testing.assert_close(found, F.cross_entropy(parts[0] @ parts[1].T, labels))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", ["ce", "bce", "sln", "mse", "max-margin", "batch-ce", "focal"])
def test_normalized_is_the_normalized_head(name: str, biased: bool) -> None:
    features, weight, bias = layer()
    scale = torch.tensor(6.0, dtype=torch.float64, requires_grad=True)
    head = heads.NormalizedHead(D, K, scale=torch.nn.Parameter(scale.detach()), bias=biased).double()
    with torch.no_grad():
        head.weight.copy_(weight)
        if biased:
            head.bias.copy_(bias)
    labels, module = target("index"), make(name)
    wanted = torch.autograd.grad(module(head(features), labels), [features, *head.parameters()])
    by_name = dict(zip(["features", *dict(head.named_parameters())], wanted, strict=True))
    for plan in (WHOLE, rows(4), classes(3)):
        if plan.path == "classes" and name == "max-margin":
            continue
        value = linear_loss(
            features, weight, labels, module, bias if biased else None, normalized=True, scale=scale, plan=plan
        )
        leaves = {"features": features, "weight": weight, "scale": scale} | ({"bias": bias} if biased else {})
        for key, found in zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True):
            torch.testing.assert_close(found, by_name[key])


def test_arc_margin_on_normalized_features() -> None:
    features, weight, _ = layer()
    module, labels = losses.ArcMarginLoss(scale=8.0), target("index")
    expected = module(F.normalize(features) @ F.normalize(weight).T, labels)
    found = linear_loss(features, weight, labels, module, normalized=True, plan=rows(4))
    assert_same(found, expected, [features, weight])


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["index", "pair", "pairs"])
def test_nce_samples(shared: bool, kind: str) -> None:
    parts, labels = layer(), target(kind, ignore=True)
    samples = torch.randint(K, (4,) if shared else (N, 4), generator=torch.Generator().manual_seed(5))
    samples[..., 0] = samples[..., 1]  # drawn twice
    noise = torch.tensor([0.0, 0.3, 0.2, 0.1, 0.1, 0.1, 0.2], dtype=torch.float64)
    every = itertools.product(REDUCTIONS, (True, False), (None, noise), (None, WEIGHT))
    for reduction, include_target, q, weight in every:
        module = losses.NceLoss(
            samples=samples, include_target=include_target, noise=q, weight=weight, reduction=reduction
        )
        expected = dense(module, parts, labels)
        for plan in (rows(4), classes(4)):
            found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
            assert_same(found, expected, parts, rtol=1e-9, atol=1e-10)


def test_nce_computes_the_drawn_logits_alone() -> None:
    """At a million classes the logits of 64 samples take 256 MB; a weight of 4 MB and 10 drawn classes must do."""
    n, k = 64, 1_000_000
    features, weight = torch.randn(n, 1), torch.randn(k, 1).requires_grad_()
    module = losses.NceLoss(samples=torch.randint(k, (n, 10)))

    def step() -> None:
        torch.autograd.grad(linear_loss(features, weight, torch.arange(n), module), weight)

    assert linear_loss_plan(n, 1, k, module).path == "classes"
    step()
    assert peak(step) < 4 * n * k / 8


def test_nce_of_probabilities_goes_by_rows() -> None:
    module = losses.NceLoss(samples=torch.arange(3))
    parts, labels = layer(), target("probabilities")
    assert linear_loss_plan(2**14, 4, 2**12, module, probabilities=True).path == "rows"
    with pytest.raises(ValueError, match="'rows' takes it"):
        linear_loss(*parts[:2], labels, module, plan=classes(3))


@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_empty_batch(name: str) -> None:
    parts = [*layer(n=0)[:2], None]
    labels = torch.empty(0, dtype=torch.long)
    plans = [rows(4)] + ([classes(3)] if name in [*BY_CLASSES, "batch-ce"] else [])
    for plan, reduction in itertools.product(plans, [None] if name in BATCH else REDUCTIONS):
        module = make(name) if reduction is None else make(name, reduction=reduction)
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        assert_same(found, dense(module, parts, labels), parts)
        assert not gradients(found, parts)[1].any()


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_all_ignored(name: str) -> None:
    parts = [*layer()[:2], None]
    labels = torch.full((N,), -100)
    plans = [rows(4)] + ([classes(3)] if name in BY_CLASSES else [])
    for plan, reduction in itertools.product(plans, REDUCTIONS):
        module = make(name, reduction=reduction)
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        torch.testing.assert_close(found, dense(module, parts, labels), equal_nan=True)
        for gradient in gradients(found, parts)[:2]:
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("name", ["max-margin", "batch-max-margin"])
@pytest.mark.parametrize("kind", ["index", "pair"])
def test_ties_share_the_gradient(name: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    features, weight = (torch.randint(-1, 2, s, generator=generator).double() for s in ((N, 3), (K, 3)))
    parts = [features.requires_grad_(), weight.requires_grad_(), None]
    labels = target(kind)
    false = (features @ weight.T).scatter(1, (labels if kind == "index" else labels[0]).unsqueeze(1), -9.0)
    assert ((false == false.amax(1, keepdim=True)).sum(1) > 1).any()  # there are ties to share
    module = make(name)
    for size in (2, N):
        found = linear_loss(parts[0], parts[1], labels, module, plan=rows(size))
        assert_same(found, dense(module, parts, labels), parts)


@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_one_class(name: str) -> None:
    parts = [*layer(k=1)[:2], None]
    labels = torch.zeros(N, dtype=torch.long)
    module = make(name, k=1)
    for plan in [rows(4)] + ([classes(3)] if name in [*BY_CLASSES, "batch-ce"] else []):
        found = linear_loss(parts[0], parts[1], labels, module, plan=plan)
        assert_same(found, dense(module, parts, labels), parts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_sln_of_a_zero_row_is_log_k_without_gradient(plan: Plan) -> None:
    features, weight, _ = layer()
    features = features.detach().clone()
    features[2] = 0
    features.requires_grad_()
    found = linear_loss(features, weight, target("index"), losses.SoftLogitNormLoss(reduction="none"), plan=plan)
    torch.testing.assert_close(found[2], torch.tensor(float(K), dtype=torch.float64).log())
    gradient = torch.autograd.grad(found.sum(), features)[0]
    assert not gradient[2].any()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["ce", "sln", "bce", "mse", "self-norm", "batch-ce", "focal", "large-margin"])
def test_gradcheck(name: str) -> None:
    parts, labels = layer(5, 3, 4), target("index", 5, 4)
    if name == "large-margin":
        parts = parts[:2]
    for plan in (rows(2), classes(3)):
        module = make(name, 4) if name == "batch-ce" else make(name, 4, reduction="none")
        assert torch.autograd.gradcheck(
            lambda h, w, b=None, module=module, plan=plan: linear_loss(h, w, labels, module, b, plan=plan), parts
        )


@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradients_asked_for(wanted: int) -> None:
    parts, labels = layer(), target("index")
    for i, part in enumerate(parts):
        part.requires_grad_(i == wanted)
    for name, plan in itertools.product(("ce", "sln", "bce", "mse", "max-margin", "batch-ce"), (rows(4), classes(3))):
        if name == "max-margin" and plan.path == "classes":
            continue
        found = linear_loss(*parts[:2], labels, name, parts[2], plan=plan)
        expected = dense(make(name), parts, labels)
        torch.testing.assert_close(*(torch.autograd.grad(v, parts[wanted])[0] for v in (found, expected)))


@pytest.mark.parametrize("name", ["ce", "max-margin", "batch-ce", "sln"])
def test_without_gradients_and_twice(name: str) -> None:
    parts, labels = layer(), target("index")
    with torch.no_grad():
        still = linear_loss(*parts[:2], labels, name, plan=rows(4))
    assert not still.requires_grad
    value = linear_loss(*parts[:2], labels, name, plan=rows(4))
    torch.testing.assert_close(value.detach(), still)
    first = torch.autograd.grad(value, parts[:2], retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(value, parts[:2]), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_second_derivatives_are_refused(plan: Plan) -> None:
    parts = layer()
    value = linear_loss(*parts[:2], target("index"), "ce", plan=plan)
    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.grad(value, parts[0], create_graph=True)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_function_transforms_are_refused_in_words_of_its_own(plan: Plan) -> None:
    features, weight, _ = (p.detach() for p in layer())
    labels = target("index")
    for transform in (torch.func.grad, torch.func.vmap):
        several = weight.expand(2, K, D) if transform is torch.func.vmap else weight
        with pytest.raises(RuntimeError, match="plan 'dense'"):
            transform(lambda w: linear_loss(features, w, labels, "ce", plan=plan))(several)
    found = torch.func.grad(lambda w: linear_loss(features, w, labels, "ce", plan=WHOLE))(weight)
    torch.testing.assert_close(found, torch.func.grad(lambda w: F.cross_entropy(features @ w.T, labels))(weight))


@pytest.mark.parametrize("name", ["sln", "ln"])
@pytest.mark.parametrize("d", [2, 64], ids=["W^T W", "a pass over the logits"])
def test_the_norm_of_the_logits_by_the_cheaper_way(name: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """W^T W takes K d^2, a pass N d K: the one is for few features, the other for few samples."""
    taken = []
    forward = _spherical.SquaredNorms.forward
    monkeypatch.setattr(_spherical.SquaredNorms, "forward", lambda *given: taken.append(d) or forward(*given))
    for kind, biased in itertools.product(["index", "pairs", "probabilities"], [True, False]):
        parts = [p if biased or p.dim() == 2 else None for p in layer(32, d, 29)]
        labels = target(kind, 32, 29, ignore=kind != "probabilities")
        with torch.no_grad():
            parts[0][3] = 0
        module = make(name, 29, weight=torch.linspace(0.2, 2.0, 29).double(), reduction="none")
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=classes(5))
        assert_same(found, dense(module, parts, labels), parts)
    assert bool(taken) == (d == 2)


@pytest.mark.parametrize("plan", [rows(4), classes(3)], ids=["rows", "classes"])
def test_learnable_numbers_of_the_loss(plan: Plan) -> None:
    parts, labels = layer(), target("index")
    for module in (
        losses.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))),
        losses.SoftLogitNormLoss(tau=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))),
        losses.SoftLogitNormLoss(gamma=torch.nn.Parameter(torch.tensor(0.6, dtype=torch.float64))),
        losses.FocalLoss(gamma=torch.nn.Parameter(torch.tensor(1.6, dtype=torch.float64)), reduction="none"),
        losses.SelfNormLoss(alpha=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64)), reduction="none"),
    ):
        (number,) = module.parameters()
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        assert_same(found, dense(module, parts, labels), [*parts, number])


# -- compiled, as on a GPU, but by a backend that any machine has ------------------------------------------------------


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "BACKEND", "aot_eager")
    monkeypatch.setattr(_compiled, "_compiled", {})
    for part in (_rows, _batch):
        monkeypatch.setattr(part, "pays", lambda tensor: True)


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("name", PER_SAMPLE + BATCH)
def test_compiled_row_functions_equal_dense(name: str) -> None:
    for kind, reduction in itertools.product(["index", "pairs", "probabilities"], ["mean", "none"]):
        if name in BATCH and (reduction == "none" or (name == "batch-max-margin" and kind != "index")):
            continue
        named = {} if name in BATCH else options(name, reduction, kind == "index")
        module, labels = make(name, **named), target(kind, ignore=name not in BATCH and kind != "probabilities")
        parts = [*layer()[:2], None] if name == "large-margin" else layer()
        if name == "arc-margin":
            parts = [(p.detach() / 8).requires_grad_() for p in parts]
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that it fell back
            found = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=rows(4))
            assert_same(found, dense(module, parts, labels), parts, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("compiles")
def test_a_mixed_pair_of_another_number_is_not_compiled_again() -> None:
    parts = layer()
    for lam in (0.3, 0.6, 0.1):
        labels = (*target("pair")[:2], lam)
        torch._dynamo.utils.counters.clear()
        found = linear_loss(*parts[:2], labels, "sln", plan=rows(6))
        torch.testing.assert_close(found, dense(make("sln"), [*parts[:2], None], labels))
    assert not torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.usefixtures("compiles")
@pytest.mark.parametrize("name", ["ce", "batch-ce"])
def test_where_compiling_fails_eager_code_goes_on_and_says_so_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        def call(*_: Any) -> None:
            raise RuntimeError("no compiler here")

        return call

    monkeypatch.setattr(torch, "compile", failing)
    parts, labels = layer(), target("index")
    expected = dense(make(name), parts, labels)
    with pytest.warns(UserWarning, match="no compiler here"):
        assert_same(linear_loss(*parts[:2], labels, name, parts[2], plan=rows(4)), expected, parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(linear_loss(*parts[:2], labels, name, parts[2], plan=rows(4)), expected, parts)


@pytest.mark.usefixtures("compiles")
def test_what_is_not_computed_in_place_goes_by_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a GPU is a quarter of its memory in place: values without a gradient, numbers to learn, ties."""
    monkeypatch.setitem(linear_loss_plan.__globals__, "CHUNK", 3 * K)
    monkeypatch.setattr(_margins, "pays", lambda tensor: True)
    seen = []
    for part in (_rows, _margins):
        monkeypatch.setattr(
            part, "logits_of", lambda *given, of=part.logits_of: seen.append(len(given[0])) or of(*given)
        )
    parts, labels = [*layer()[:2], None], target("index")
    tied = [p.detach().round().requires_grad_() for p in layer(d=1)[:2]]
    learnt = losses.CrossEntropyLoss(temperature=torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64)))
    for module, leaves in (
        (make("ce", reduction="none"), parts),
        (learnt, parts),
        (make("max-margin"), [*tied, None]),
    ):
        seen.clear()
        found = linear_loss(*leaves[:2], labels, module, plan=rows(N))
        assert_same(found, dense(module, leaves, labels), [*leaves, *module.parameters()])
        assert max(seen) == 3


# -- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*(n for n in PER_SAMPLE if n != "arc-margin"), *BATCH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    exact = [(p.detach() / 2).to(dtype).double().requires_grad_() for p in layer(64, 16, 33)]
    if name == "large-margin":
        exact = [*exact[:2], None]
    parts = [None if p is None else p.detach().to(dtype).requires_grad_() for p in exact]
    labels, module = target("index", 64, 33), make(name, 33)
    expected = dense(module, exact, labels)
    wanted = gradients(expected, exact)
    # The dense form in the same dtype says how far rounding the logits takes any form from the exact one.
    sizes = [w.abs().max().item() for w in wanted]
    close = 2e-5 if dtype is torch.float32 else 2e-2
    margins = "margin" in name and dtype is not torch.float32  # which logit is the largest may change by rounding
    for plan in [rows(24)] + ([classes(10)] if name in [*BY_CLASSES, "batch-ce"] else []):
        value = linear_loss(parts[0], parts[1], labels, module, parts[2], plan=plan)
        assert value.dtype is torch.float32
        torch.testing.assert_close(value.double(), expected, rtol=close, atol=close)
        for found, want, size in zip(gradients(value, parts), wanted, sizes, strict=True):
            assert found.dtype is dtype
            off = (found.double() - want).abs()
            assert (off.mean() if margins else off.max()) <= 2 * close * size


def test_weight_gradient_is_summed_in_float32() -> None:
    """In bfloat16, 1 + 1/256 is 1: a sum over many chunks kept there would stand still."""
    n = 1024
    features = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    module = losses.CrossEntropyLoss(reduction="sum")
    for plan in (rows(1), classes(1)):
        value = linear_loss(features, weight, torch.zeros(n, dtype=torch.long), module, plan=plan)
        gradient = torch.autograd.grad(value, weight)[0]
        torch.testing.assert_close(gradient.float(), torch.tensor([[-n / 2.0], [n / 2.0]]))


def test_float16_keeps_small_gradients_under_a_loss_scale() -> None:
    """The mean divides by N before a scaler multiplies by 65536: in float16 the part of one sample would vanish."""
    features, weight, _ = (p.detach().half().requires_grad_() for p in layer(4096, 4, 3))
    labels = target("index", 4096, 3)
    scaler = torch.tensor(65536.0)
    for plan in (rows(1000), classes(2)):
        value = linear_loss(features, weight, labels, "ce", plan=plan)
        found = torch.autograd.grad(value, features, scaler / 64)[0].double()
        h = features.detach().double().requires_grad_()
        wanted = torch.autograd.grad(F.cross_entropy(h @ weight.double().T, labels), h)[0] * 1024
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("name", ["ce", "ls", "bce", "self-norm", "batch-ce", "focal", "soft-margin", "large-margin"])
def test_confident_samples_keep_their_digits(name: str) -> None:
    """A true logit far above the others, the true class in any tile: the loss is small and must not be rounding."""
    parts = [
        torch.eye(K, dtype=torch.float64).requires_grad_(),
        (18 * torch.eye(K).double() - 9).requires_grad_(),
        None,
    ]
    labels, module = torch.arange(K), make(name)
    expected = dense(module, parts, labels)
    single = [None if p is None else p.detach().float().requires_grad_() for p in parts]
    for plan in (rows(3), classes(2)):
        found = linear_loss(single[0], single[1], labels, module, plan=plan)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=5e-7)
        for a, b in zip(gradients(found, single), gradients(expected, parts), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=2e-6)  # p - 1 holds 6e-8, times the weight


@pytest.mark.parametrize("name", ["ce", "ls", "batch-ce"])
def test_a_part_common_to_all_logits_costs_no_digits(name: str) -> None:
    parts, labels, module = layer(dtype=torch.float32), target("index"), make(name)
    with torch.no_grad():
        parts[2] += 1000.0
    expected = dense(module, [p.detach().double() for p in parts], labels)
    for plan in (rows(3), classes(2)):
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        torch.testing.assert_close(found.double(), expected, rtol=3e-5, atol=1e-4)  # the logits hold 6e-5 themselves


@pytest.mark.parametrize("name", ["ce", "bce", "logit-adjusted", "batch-ce"])
def test_gradients_among_large_logits_keep_their_digits(name: str) -> None:
    """Logits near 5000 hold 5e-4, here exactly; 1 - p of a sample that leads by 8 is 0.002."""
    parts = [torch.eye(K).requires_grad_(), (5000 + 8 * torch.eye(K)).requires_grad_(), None]
    exact = [None if p is None else p.detach().double().requires_grad_() for p in parts]
    labels, module = torch.arange(K), make(name)
    wanted = gradients(dense(module, exact, labels), exact)
    for plan in (rows(3), classes(2)):
        found = gradients(linear_loss(*parts[:2], labels, module, plan=plan), parts)
        torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "name", [*(n for n in PER_SAMPLE if n not in ("mse", "sln", "ln", "ls", "large-margin")), *BATCH]
)
@pytest.mark.parametrize("masked", [[K - 1], [0, 1], [0, 3, 6]])
def test_classes_masked_by_a_bias_of_minus_infinity(name: str, masked: list[int]) -> None:
    """As a padded vocabulary has them; no sample has such a label. The first and the last of a tile, or all of it."""
    parts, labels = layer(), torch.tensor([2, 4, 5])[torch.arange(N) % 3]
    if name == "arc-margin":
        parts = [(p.detach() / 8).requires_grad_() for p in parts]
    with torch.no_grad():
        parts[2][masked] = float("-inf")
    module = make(name)
    expected = dense(module, parts, labels)
    wanted = gradients(expected, parts[:2])
    assert expected.isfinite()
    for plan in [rows(4)] + ([classes(1), classes(2), classes(3)] if name in [*BY_CLASSES, "batch-ce"] else []):
        found = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        torch.testing.assert_close(found, expected)
        for a, b in zip(gradients(found, parts[:2]), wanted, strict=True):
            torch.testing.assert_close(a, b)


def test_a_pair_may_be_a_list() -> None:
    parts, labels = layer(), target("pairs")
    for plan in (WHOLE, rows(3), classes(2)):
        found = linear_loss(*parts[:2], list(labels), "ce", plan=plan)
        torch.testing.assert_close(found, dense(make("ce"), [*parts[:2], None], labels))


def test_autocast_multiplies_in_the_lower_precision() -> None:
    parts, labels = layer(dtype=torch.float32), target("index")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = losses.cross_entropy(F.linear(*parts), labels)
        for plan in (WHOLE, rows(4), classes(3)):
            found = linear_loss(*parts[:2], labels, "ce", parts[2], plan=plan)
            assert found.dtype is torch.float32
            torch.testing.assert_close(found, expected)
            for a, b in zip(gradients(found, parts), gradients(expected, parts), strict=True):
                assert a.dtype is torch.float32
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)


# -- memory ----------------------------------------------------------------------------------------------------------


def peak(step: Any) -> int:
    """Most bytes held at once during a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    held = most = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("name", [n for n in PER_SAMPLE if n != "logit-adjusted"] + BATCH)
def test_chunks_hold_far_less_than_the_logits(name: str) -> None:
    n, d, k = 2048, 8, 1024
    parts, labels = layer(n, d, k, dtype=torch.float32), target("index", n, k)
    matrix = 4 * n * k
    plans = [rows(64)] + ([classes(32)] if name in [*BY_CLASSES, "batch-ce"] else [])
    for plan in plans:

        def step(plan: Plan = plan) -> None:
            torch.autograd.grad(linear_loss(*parts[:2], labels, name, plan=plan), parts[:2])

        step()
        assert peak(step) < matrix / 3


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in [*PER_SAMPLE, "batch-max-margin"] if n not in BY_CLASSES])
def test_a_loss_without_a_form_by_classes_says_which_path_takes_it(name: str) -> None:
    parts = layer()
    with pytest.raises(ValueError, match="'rows' takes it"):
        linear_loss(*parts[:2], target("index"), make(name), plan=classes(3))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"group": object()}, ValueError, "init_process_group"),
        ({"group": object(), "loss": "focal"}, ValueError, "focal takes no weight sharded"),
        ({"loss": "kd"}, ValueError, "teacher"),
        ({"loss": "cee"}, ValueError, "did you mean"),
        ({"loss": torch.nn.CrossEntropyLoss()}, TypeError, "lastlayer.losses"),
        ({"loss": losses.CrossEntropyLoss(num_classes=K + 1)}, ValueError, "num_classes"),
        ({"loss": losses.CrossEntropyLoss(temperature=-1.0), "plan": classes(3)}, ValueError, "temperature"),
        ({"loss": losses.MaxMarginLoss(margin=-1.0), "plan": rows(3)}, ValueError, "margin"),
        ({"loss": "large-margin", "bias": torch.zeros(K).double()}, ValueError, "no bias"),
        ({"features": torch.zeros(2, N, D).double()}, ValueError, "reshape"),
        ({"features": torch.zeros(N, D + 1).double()}, ValueError, "agree in d"),
        ({"features": torch.zeros(N, D)}, TypeError, "convert one"),
        ({"features": torch.zeros(N, D).long()}, TypeError, "floating point"),
        ({"bias": torch.zeros(K + 1)}, ValueError, "bias"),
        ({"bias": [0.0] * K}, TypeError, "bias must be a floating-point tensor, got list"),
        ({"bias": torch.zeros(K).long()}, TypeError, "floating-point"),
        ({"target": [0] * N}, TypeError, "target must be a tensor"),
        ({"target": [0] * N, "plan": rows(3)}, TypeError, "target must be a tensor"),
        ({"scale": 3.0}, ValueError, "normalized"),
        ({"normalized": True, "scale": torch.ones(D).double()}, ValueError, "one number"),
        ({"normalized": True, "scale": -1.0}, ValueError, "positive"),
        ({"target": torch.full((N,), K), "plan": rows(3)}, ValueError, "labels must lie"),
        ({"target": torch.zeros(N + 1).long(), "plan": classes(3)}, ValueError, "class indices"),
        ({"target": torch.zeros(N, K), "loss": losses.CrossEntropyLoss(ignore_index=1), "plan": rows(3)}, ValueError,
         "ignore_index"),
        ({"plan": "rows"}, TypeError, "Plan"),
        ({"target": torch.rand(N, K).double().requires_grad_(), "plan": rows(3)}, ValueError, "detach"),
        ({"loss": losses.BatchCrossEntropyLoss(group=object()), "plan": rows(3)}, ValueError, "ranks"),
        ({"loss": losses.CrossEntropyLoss(weight=torch.nn.Parameter(WEIGHT)), "plan": rows(3)}, ValueError, "weight"),
    ],
)  # fmt: skip
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    features, weight, _ = layer()
    given = {"features": features, "weight": weight, "target": target("index"), "loss": "ce"} | change
    with pytest.raises(error, match=words):
        linear_loss(**given)


def test_imports_torch_and_numpy_alone() -> None:
    code = (
        "import sys, torch, numpy; before = set(sys.modules); import lastlayer.linear_loss; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - {'lastlayer', 'torch', 'numpy'}"
        " - set(sys.stdlib_module_names)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*(n for n in PER_SAMPLE if n != "large-margin"), *BATCH])
def test_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    parts = [(p.detach() / 8).to(dtype).cuda().requires_grad_() for p in layer(64, 16, 33)]
    exact = [p.detach().double().requires_grad_() for p in parts]
    labels, module = target("index", 64, 33).cuda(), make(name, 33).cuda()
    wanted = torch.autograd.grad(dense(module, exact, labels), exact)
    close = 1e-4 if dtype is torch.float32 else 3e-2
    for plan in [rows(24)] + ([classes(10)] if name in [*BY_CLASSES, "batch-ce"] else []):
        value = linear_loss(*parts[:2], labels, module, parts[2], plan=plan)
        for found, want in zip(torch.autograd.grad(value, parts), wanted, strict=True):
            assert (found.double() - want).abs().mean() <= close * want.abs().max()
