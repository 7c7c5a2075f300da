"""On a GPU: the same numbers as on the CPU, also compiled, and no step in which the CPU waits for the GPU."""

from __future__ import annotations

import contextlib

import pytest
import torch

from lastlayer import heads, losses

from .cases import BATCH, ONE_EACH, PER_SAMPLE, K, identity

pytestmark = pytest.mark.gpu

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@contextlib.contextmanager
def no_host_synchronisation():
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def targets(device):
    y = torch.tensor([0, 4, 2, -100], device=device)
    t = torch.rand(4, K, generator=torch.Generator().manual_seed(0)).softmax(1).to(device)
    a, b = torch.tensor([0, 4, 2, 1], device=device), torch.tensor([1, 4, 0, 1], device=device)
    return {"index": y, "probabilities": t, "pair": (a, b, 0.3), "pairs": (a, b, t[:, 0])}


def value_and_gradient(function, z, target):
    z = z.clone().requires_grad_()
    value = function(z, target)
    return value.detach(), torch.autograd.grad(value, z)[0]


@pytest.mark.parametrize("kind", ["index", "probabilities", "pair", "pairs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_agrees_with_the_cpu(case, dtype, kind):
    z = case.logits(4, K, dtype=dtype)
    found = value_and_gradient(case.call, z.cuda(), targets("cuda")[kind])
    expected = value_and_gradient(case.call, z, targets("cpu")[kind])
    half = dtype.itemsize == 2
    torch.testing.assert_close(found[0].cpu(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].cpu(), expected[1], rtol=1e-2 if half else 1e-4, atol=1e-2 if half else 1e-5)


@pytest.mark.parametrize("kind", ["index", "probabilities", "pair", "pairs"])
@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_per_sample_losses_do_not_make_the_host_wait(case, kind):
    """Tensors among the hyperparameters are on the GPU already, as buffers of the Module."""
    z = case.logits(4, K, dtype=torch.float32).cuda().requires_grad_()
    module = case.module().cuda()
    inputs, target = case.inputs(z), targets("cuda")[kind]
    weight = torch.rand(K, device="cuda")
    for step in range(2):  # in the first step torch may set up libraries
        with no_host_synchronisation() if step else contextlib.nullcontext():
            module(*inputs, target).backward(retain_graph=True)
            if case.smoothing:
                case.function(*inputs, target, label_smoothing=0.1, weight=weight).backward()


@pytest.mark.parametrize("loss", BATCH, ids=identity)
def test_batch_losses_do_not_make_the_host_wait(loss):
    z = torch.randn(4, K, device="cuda", requires_grad=True)
    target = torch.tensor([0, 4, 2, 1], device="cuda")
    for step in range(2):
        with no_host_synchronisation() if step else contextlib.nullcontext():
            loss(z, target).backward()


@pytest.mark.parametrize(
    "head",
    [heads.LinearHead(K, K), heads.NormalizedHead(K, K), heads.BatchNormHead(K, K), heads.SimplexHead(K, K),
     heads.LargeMarginHead(K, K)],
    ids=lambda head: type(head).__name__,
)  # fmt: skip
def test_heads_do_not_make_the_host_wait(head):
    head = head.cuda()
    x = torch.randn(6, K, device="cuda", requires_grad=True)
    target, some = torch.arange(6, device="cuda") % K, torch.tensor([2, 0], device="cuda")
    for step in range(2):
        with no_host_synchronisation() if step else contextlib.nullcontext():
            logits = head(x, target) if isinstance(head, heads.LargeMarginHead) else head(x)
            (losses.cross_entropy(logits, target) + head.logit(x, some).sum()).backward()


@pytest.mark.parametrize("case", ONE_EACH, ids=identity)
def test_compile(case):
    torch.compiler.reset()
    z = case.logits(4, K, dtype=torch.float32).cuda()
    compiled = torch.compile(case.call, fullgraph=True)
    for found, expected in zip(
        value_and_gradient(compiled, z, targets("cuda")["index"]),
        value_and_gradient(case.call, z, targets("cuda")["index"]),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_labels_are_checked_when_asked():
    z, y = torch.zeros(2, 3, device="cuda"), torch.tensor([0, 3], device="cuda")
    with losses.check_labels(), pytest.raises(ValueError, match="label 3"):
        losses.cross_entropy(z, y)


def test_tensors_on_two_devices_are_named():
    with pytest.raises(ValueError, match=r"target is on cpu, the logits on cuda:0: move one"):
        losses.focal(torch.zeros(2, 3, device="cuda"), torch.tensor([0, 1]))


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30])
def test_soft_logit_norm_at_every_size(size):
    row = torch.tensor([[3.0, -1.0, 0.5, 2.0]]) * size
    y = torch.tensor([1])
    options = {"gamma": 0.7, "tau": 0.5 * size**0.3}
    found = losses.soft_logit_norm(row.cuda(), y.cuda(), **options).cpu()
    torch.testing.assert_close(found, losses.soft_logit_norm(row.double(), y, **options).float(), rtol=1e-4, atol=0.0)


def test_autocast():
    head = heads.NormalizedHead(8, K).cuda()
    x = torch.randn(4, 8, device="cuda")
    x[0] = 0.0
    x.requires_grad_()
    with torch.autocast("cuda", torch.float16):
        loss = losses.soft_logit_norm(head(x), torch.tensor([0, 1, 2, 3], device="cuda"))
    assert loss.dtype is torch.float32
    loss.backward()
    assert x.grad.isfinite().all()
    assert torch.equal(x.grad[0], torch.zeros(8, device="cuda"))
