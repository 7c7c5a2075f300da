"""Losses under torch.compile and torch.func, and their first and second derivatives."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from lastlayer import losses

from .cases import BATCH, COUNTS, ONE_EACH, PER_SAMPLE, K, identity

y = torch.tensor([0, 4, -100])
TARGETS = {
    "index": y,
    "probabilities": torch.rand(3, K, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(1),
    "pair": (torch.tensor([0, 4, 2]), torch.tensor([1, 4, 0]), torch.tensor([0.3, 0.5, 1.0], dtype=torch.float64)),
}
every_target = pytest.mark.parametrize("kind", TARGETS)


def batch_target(loss, kind):
    """Batch losses ignore no label; batch_max_margin takes one lambda, and no probabilities."""
    if kind == "index":
        return torch.tensor([0, 4, 2])
    if loss is losses.batch_max_margin:
        return (TARGETS["pair"][0], TARGETS["pair"][1], 0.3) if kind == "pair" else None
    return TARGETS[kind]


def value_and_gradient(function, z, target):
    z = z.clone().requires_grad_()
    value = function(z, target)
    return value.detach(), torch.autograd.grad(value, z)[0]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def assert_compiles(function, z, target, backend):
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for found, expected in zip(
        value_and_gradient(compiled, z, target), value_and_gradient(function, z, target), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@every_target
@pytest.mark.parametrize("case", ONE_EACH, ids=identity)
def test_compile(case, kind):
    """The compiler captures the whole function, and of all but pairs the backward pass too: a pair is two indices."""
    assert_compiles(case.call, case.logits(3, K), TARGETS[kind], "eager" if kind == "pair" else "aot_eager")


@pytest.mark.thorough
@pytest.mark.parametrize("case", ONE_EACH, ids=identity)
def test_compile_the_backward_pass_of_pairs(case):
    assert_compiles(case.call, case.logits(3, K), TARGETS["pair"], "aot_eager")


@every_target
@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_compile_batch_losses(loss, kind):
    if (target := batch_target(loss, kind)) is not None:
        assert_compiles(loss, 3 * torch.randn(3, K, dtype=torch.float64), target, "aot_eager")


@pytest.mark.parametrize(
    ("loss", "dtype", "backend"),
    [
        (losses.soft_logit_norm, torch.float16, "inductor"),
        (losses.soft_logit_norm, torch.float32, "aot_eager"),
        (losses.focal, torch.float32, "inductor"),
        (losses.focal, torch.float16, "aot_eager"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_compile_in_both_precisions(loss, dtype, backend):
    """Inductor takes seconds to start, so it compiles each loss in one precision only."""
    z = 3 * torch.randn(3, K, generator=torch.Generator().manual_seed(0))
    z[1] = 0.0
    z = z.to(dtype)
    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    for found, expected in zip(value_and_gradient(compiled, z, y), value_and_gradient(loss, z, y), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_compiled_module_follows_its_hyperparameters():
    loss = losses.SoftLogitNormLoss(num_classes=K, weight=torch.ones(K, dtype=torch.float64))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    z = torch.randn(3, K, dtype=torch.float64)
    for gamma in (0.7, 0.2):
        loss.gamma = gamma
        expected = losses.soft_logit_norm(z, y, gamma=gamma, weight=torch.ones(K, dtype=torch.float64))
        torch.testing.assert_close(compiled(z, y), expected)


def test_a_module_with_numbers_of_numpy_compiles():
    loss = losses.create("ls", temperature=np.float32(2.0), label_smoothing=np.float64(0.2), ignore_index=np.int64(1))
    z = torch.randn(3, K, dtype=torch.float64)
    target = torch.tensor([0, 4, 1])
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(z, target)
    expected = torch.nn.functional.cross_entropy(z / 2.0, target, label_smoothing=0.2, ignore_index=1)
    torch.testing.assert_close(found, expected)


def test_modules_of_all_losses_compile_in_one_process():
    """torch.compile makes at most eight versions of one function, so each loss needs a `forward` of its own."""
    z = torch.randn(3, K, dtype=torch.float64)
    target = torch.tensor([0, 4, 2])
    names = [name for name in losses.available() if name not in ("large-margin", "kd", "fn-kd")]
    assert len(names) > torch._dynamo.config.recompile_limit
    for name in names:
        loss = losses.create(name, **({"counts": COUNTS} if name == "logit-adjusted" else {}))
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(z, target), loss(z, target))


@every_target
@pytest.mark.parametrize("case", ONE_EACH, ids=identity)
def test_functional_gradient(case, kind):
    z = case.logits(3, K)
    found = torch.func.grad(lambda z: case.call(z, TARGETS[kind]))(z)
    torch.testing.assert_close(found, value_and_gradient(case.call, z, TARGETS[kind])[1], rtol=1e-12, atol=1e-14)


@every_target
@pytest.mark.parametrize("case", ONE_EACH, ids=identity)
def test_vmap_over_problems(case, kind):
    """A batch of problems, each with its own logits and its own target."""
    problems = torch.stack([case.logits(3, K, seed=seed) for seed in range(4)])
    single = TARGETS[kind]
    if kind == "pair":
        targets = tuple(torch.stack([t] * 4) for t in single)
        targets = (targets[0], targets[1].flip(1), targets[2])
        one = [tuple(t[i] for t in targets) for i in range(4)]
    else:
        targets = torch.stack([single.roll(i, 0) for i in range(4)])
        one = list(targets)
    found = torch.func.vmap(case.call)(problems, targets)
    expected = torch.stack([case.call(z, t) for z, t in zip(problems, one, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    found = torch.func.vmap(torch.func.grad(case.call))(problems, targets)
    expected = torch.stack([value_and_gradient(case.call, z, t)[1] for z, t in zip(problems, one, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_vmap_of_batch_losses(loss):
    problems = torch.randn(4, 3, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(K, (4, 3), generator=torch.Generator().manual_seed(0))
    found = torch.func.vmap(torch.func.grad(loss))(problems, targets)
    expected = [value_and_gradient(loss, z, t)[1] for z, t in zip(problems, targets, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", [losses.soft_logit_norm, losses.logit_norm])
def test_vmap_of_float16(loss):
    problems = torch.randn(4, 3, K, generator=torch.Generator().manual_seed(0)).half()
    found = torch.func.vmap(torch.func.grad(loss), (0, None))(problems, torch.tensor([0, 1, 2]))
    expected = [value_and_gradient(loss, z, torch.tensor([0, 1, 2]))[1] for z in problems]
    torch.testing.assert_close(found, torch.stack(expected))


HYPERPARAMETERS = [
    (losses.cross_entropy, "temperature", [0.5, 1.0, 2.0]),
    (losses.focal, "gamma", [0.5, 1.0, 3.0]),
    (losses.mse, "kappa", [0.5, 1.0, 2.0]),
    (losses.mse, "beta", [1.0, 5.0, 15.0]),
    (losses.soft_logit_norm, "gamma", [0.1, 0.7, 0.9]),
    (losses.soft_logit_norm, "tau", [0.1, 0.2, 1.0]),
    (losses.logit_norm, "tau", [0.1, 0.2, 1.0]),
    (losses.max_margin, "margin", [0.5, 1.0, 2.0]),
    (losses.self_norm, "alpha", [0.05, 0.1, 1.0]),
    (losses.soft_margin, "margin", [0.5, 1.0, 2.0]),
    (losses.arc_margin, "margin", [0.1, 0.5, 1.0]),
    (losses.arc_margin, "scale", [1.0, 4.0, 64.0]),
    (functools.partial(losses.logit_adjusted, counts=COUNTS), "tau", [0.5, 1.0, 2.0]),
]


@pytest.mark.parametrize(("loss", "name", "numbers"), HYPERPARAMETERS)
def test_a_tensor_as_hyperparameter(loss, name, numbers):
    """One call takes several numbers, and a learnable number gets its gradient."""
    z = 0.95 * torch.randn(3, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tanh()
    target = torch.tensor([0, 4, 2])
    grid = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
    found = torch.func.vmap(lambda number: loss(z, target, **{name: number}))(grid)
    expected = torch.stack([loss(z, target, **{name: number}) for number in numbers])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    assert gradcheck(lambda number: loss(z, target, **{name: number}), grid[1:2].detach().squeeze().requires_grad_())


@every_target
@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_gradient_is_the_derivative(case, kind):
    z = case.logits(3, K, scale=1.5).requires_grad_()
    assert gradcheck(lambda z: case.call(z, TARGETS[kind], reduction="sum"), (z,), fast_mode=True)


@every_target
@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.smooth], ids=identity)
def test_second_derivative(case, kind):
    z = case.logits(3, 5, scale=1.0)[:2].requires_grad_()
    target = TARGETS[kind]
    target = tuple(t[:2] for t in target) if kind == "pair" else target[:2]
    assert gradgradcheck(lambda z: case.call(z, target, reduction="sum"), (z,), fast_mode=True)


@every_target
@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_derivatives_of_batch_losses(loss, kind):
    z = torch.randn(3, K, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    if (target := batch_target(loss, kind)) is None:
        return
    assert gradcheck(lambda z: loss(z, target), (z,), fast_mode=True)
    if loss is losses.batch_cross_entropy:
        assert gradgradcheck(lambda z: loss(z, target), (z,), fast_mode=True)


@pytest.mark.parametrize("case", [c for c in PER_SAMPLE if c.smooth], ids=identity)
def test_hessian(case):
    """torch.func.hessian, forward over reverse, equals a difference quotient of the gradient."""
    z = case.logits(2, K, scale=1.0)
    target = torch.tensor([3, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its decompositions
        hessian = torch.func.hessian(lambda z: case.call(z, target, reduction="sum"))(z)
    hessian = hessian.reshape(2 * K, 2 * K)
    gradient = torch.func.grad(lambda z: case.call(z, target, reduction="sum"))
    step = 1e-6
    for i in range(2 * K):
        e = torch.zeros(2 * K, dtype=torch.float64)
        e[i] = step
        quotient = (gradient(z + e.reshape(2, K)) - gradient(z - e.reshape(2, K))).flatten() / (2 * step)
        scale = 1 + hessian.abs().max().item()
        torch.testing.assert_close(hessian[i], quotient, rtol=1e-5, atol=1e-7 * scale)


def test_hessian_of_cross_entropy_is_the_softmax_covariance():
    z = torch.randn(K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = z.softmax(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.func.hessian(lambda z: losses.cross_entropy(z, torch.tensor(1)))(z)
    torch.testing.assert_close(found, p.diag() - torch.outer(p, p))


def test_no_gradient_reaches_the_teacher():
    z, teacher, h, g = (torch.randn(3, K, dtype=torch.float64).requires_grad_() for _ in range(4))
    target = torch.tensor([0, 1, 2])
    losses.distillation(z, teacher, target).backward()
    losses.feature_norm_distillation(z, h, teacher, g, target).backward()
    assert teacher.grad is None
    assert g.grad is None
    assert z.grad.abs().min() > 0
    assert h.grad.abs().min() > 0


def test_gradients_reach_every_input():
    h, W = (
        torch.randn(3, K, dtype=torch.float64, generator=torch.Generator().manual_seed(s)).requires_grad_()
        for s in (4, 5)
    )
    target = torch.tensor([0, 1, 2])
    for margin in (1, 2, 3, 4):
        assert gradcheck(lambda h, W, m=margin: losses.large_margin(h, W, target, margin=m, lam=0.5), (h, W))
    teacher = torch.randn(3, K, dtype=torch.float64)
    assert gradcheck(lambda z, h: losses.feature_norm_distillation(z, h, teacher, teacher, target), (h, W))
