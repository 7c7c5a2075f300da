"""What every head promises: its formula, some logits from some rows, features, the equivalent linear layer, state."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer import heads

D, K = 6, 4


def make(name, d=D, classes=K):
    torch.manual_seed(0)
    head = {
        "linear": lambda: heads.LinearHead(d, classes),
        "linear without bias": lambda: heads.LinearHead(d, classes, bias=False),
        "normalized": lambda: heads.NormalizedHead(d, classes, scale=5.0, bias_mean=2.0, bias_std=0.5),
        "normalized without bias": lambda: heads.NormalizedHead(d, classes, bias=False),
        "normalized learnable": lambda: heads.NormalizedHead(d, classes, scale=nn.Parameter(torch.tensor(3.0))),
        "batch norm": lambda: heads.BatchNormHead(d, classes),
        "batch norm frozen": lambda: heads.BatchNormHead(d, classes, gamma=0.3),
        "simplex": lambda: heads.SimplexHead(d, classes),
        "simplex scaled": lambda: heads.SimplexHead(d, classes, scale=7.0),
        "large margin": lambda: heads.LargeMarginHead(d, classes),
    }[name]()
    if name.startswith("batch norm"):
        with torch.no_grad():
            head.norm.running_mean.normal_()
            head.norm.running_var.uniform_(0.5, 2.0)
    return head.double().eval()


NAMES = [
    "linear", "linear without bias", "normalized", "normalized without bias", "normalized learnable", "batch norm",
    "batch norm frozen", "simplex", "simplex scaled", "large margin",
]  # fmt: skip
every_head = pytest.mark.parametrize("name", NAMES)


def inputs(*shape, seed=1):
    return torch.randn(*shape, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def naive(name, head, x):
    """Compute one logit at a time."""
    W = head.weight.detach().numpy()
    b = None if head.bias is None else head.bias.detach().numpy()
    logits = np.zeros((len(x), len(W)))
    for n, row in enumerate(x.numpy()):
        for k, w in enumerate(W):
            if name.startswith("normalized"):
                cosine = np.dot(w, row) / np.sqrt((w**2).sum()) / np.sqrt((row**2).sum())
                logits[n, k] = float(torch.as_tensor(head.scale).detach()) * cosine - (0.0 if b is None else b[k])
            elif name.startswith("batch norm"):
                norm = head.norm
                mean, var = norm.running_mean.numpy(), norm.running_var.numpy()
                h = norm.weight.detach().numpy() * (row - mean) / np.sqrt(var + norm.eps)
                logits[n, k] = np.dot(w, h)
            else:
                scale = head.scale if name == "simplex scaled" else 1.0
                logits[n, k] = scale * np.dot(w, row) + (0.0 if b is None else b[k])
    return logits


@every_head
def test_logits(name):
    head, x = make(name), inputs(5)
    np.testing.assert_allclose(head(x).detach().numpy(), naive(name, head, x), rtol=1e-10)


@every_head
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_some_logits_are_those_of_all(name, shape):
    head, x = make(name), inputs(*shape)
    every = head(x)
    assert every.shape == (*shape, K)
    for k in (0, K - 1, torch.tensor(2), np.int64(1)):
        found = head.logit(x, k)
        assert found.shape == shape
        torch.testing.assert_close(found, every[..., int(k)])
    for several in ([2], [3, 0, 3], (1, 2), torch.tensor([1, 0], dtype=torch.int32), range(K), np.array([2, 1])):
        found = head.logit(x, several)
        assert found.shape == (*shape, len(several))
        torch.testing.assert_close(found, every[..., [int(k) for k in several]])
    assert head.logit(x, []).shape == (*shape, 0)


def test_classes_in_arrays_that_torch_does_not_read():
    head, x = make("linear"), inputs(5)
    frozen = np.array([3, 1])
    frozen.flags.writeable = False
    unsigned = [torch.tensor([3, 1], dtype=dtype) for dtype in (torch.uint16, torch.uint32, torch.uint64)]
    reversed_ = np.array([1, 3])[::-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in (*unsigned, frozen, reversed_, np.array([3, 1], ">i4"), np.array([3, 1], np.uint64)):
            torch.testing.assert_close(head.logit(x, k), head(x)[:, [3, 1]])
        torch.testing.assert_close(head.logit(x, [torch.tensor(3), torch.tensor(1)]), head(x)[:, [3, 1]])


def test_classes_out_of_range_are_refused_before_they_reach_another_device():
    """On a GPU such classes would make the GPU useless to the process. The meta device stands in for a GPU."""
    head = make("linear").to("meta")
    for k in (K, [-1], torch.tensor(K)):
        with pytest.raises(ValueError, match=r"k must lie in 0\.\.3"):
            head.logit(torch.empty(2, D, device="meta"), k)
    assert head.logit(torch.empty(2, D, device="meta", dtype=torch.float64), [1, 2]).shape == (2, 2)


@every_head
def test_some_logits_read_only_their_rows(name):
    head, x = make(name), inputs(5)
    expected = head(x)[:, [2, 0]].detach()
    with torch.no_grad():
        for tensor in (head.weight, head.bias):
            if tensor is not None:
                tensor[[1, 3]] = float("nan")
    torch.testing.assert_close(head.logit(x, [2, 0]), expected)
    torch.testing.assert_close(head.logit(x, 2), expected[:, 0])
    assert head(x).isnan().any()


class LargestOutput(TorchDispatchMode):
    """The most elements that one operation wrote, without views and the parameters themselves."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.most = max(self.most, out.numel())
        return out


@every_head
def test_the_cost_of_some_logits_does_not_grow_with_the_classes(name):
    classes, d = 60, 80
    head, x = make(name, d, classes), torch.randn(1, d, dtype=torch.float64)
    with torch.no_grad(), LargestOutput() as some:
        head.logit(x, [2, 0])
    assert some.most <= 2 * d
    with torch.no_grad(), LargestOutput() as every:
        head(x)
    assert every.most >= classes


@every_head
def test_gradient_of_some_logits(name):
    """Only the rows of the given classes get a gradient, the same as through all logits."""
    head, x = make(name), inputs(5)
    if not head.weight.requires_grad:
        return
    (alone,) = torch.autograd.grad(head.logit(x, [2, 0]).sum(), head.weight)
    (among,) = torch.autograd.grad(head(x)[:, [2, 0]].sum(), head.weight)
    torch.testing.assert_close(alone, among)
    assert torch.equal(alone[[1, 3]], torch.zeros(2, D, dtype=torch.float64))


@every_head
def test_the_equivalent_linear_layer(name):
    head, x = make(name), inputs(5)
    weight, bias = head.linear()
    assert weight.shape == (K, D)
    layer = nn.Linear(D, K, bias=bias is not None).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    torch.testing.assert_close(layer(head.features(x)), head(x))


@every_head
def test_features(name):
    head, x = make(name), inputs(5)
    features = head.features(x)
    assert features.shape == x.shape
    if name.startswith("normalized"):
        torch.testing.assert_close(features, x / x.norm(dim=1, keepdim=True))
    elif not name.startswith("batch norm"):
        assert torch.equal(features, x)


@every_head
def test_raw_parameters_are_written_in_place(name):
    head, x = make(name), inputs(5)
    before = head(x).detach().clone()
    with torch.no_grad():
        head.weight[1] *= -1
        if head.bias is not None:
            head.bias[2] += 3.0
    after = head(x).detach()
    sign = -1.0 if name.startswith("normalized") else 1.0  # this head subtracts its bias
    offset = 0.0 if head.bias is None else 3.0 * sign
    torch.testing.assert_close(after[:, 2], before[:, 2] + offset)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert (after[:, 1] - before[:, 1]).abs().min() > 1e-6
    torch.testing.assert_close(naive(name, head, x), after.numpy())


@every_head
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda head: pickle.loads(pickle.dumps(head))])
def test_copies(name, clone):
    head, x = make(name), inputs(5)
    again = clone(head)
    assert torch.equal(again(x), head(x))
    assert repr(again) == repr(head)
    with torch.no_grad():
        again.weight.zero_()
    assert head.weight.abs().sum() > 0


@every_head
def test_state_dict_round_trip(name):
    head, x = make(name), inputs(5)
    buffer = io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    other = make(name)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            tensor.zero_()
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other(x), head(x))


@every_head
def test_compile(name):
    torch.compiler.reset()
    head, x = make(name), inputs(5).requires_grad_()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), head(x))
    found, expected = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, head))
    torch.testing.assert_close(found, expected)
    some = torch.compile(head.logit, fullgraph=True, backend="aot_eager")
    x = x.detach()
    torch.testing.assert_close(some(x, torch.tensor([2, 0])), head(x)[:, [2, 0]])


@every_head
def test_per_sample_gradients(name):
    """torch.func.vmap over samples of a functional head."""
    head, x = make(name), inputs(5)
    state = dict(head.named_parameters()) | dict(head.named_buffers())

    def first_logit(row):
        return torch.func.functional_call(head, state, (row.unsqueeze(0),))[0, 0]

    found = torch.func.vmap(torch.func.grad(first_logit))(x)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(found, torch.autograd.grad(head(leaf)[:, 0].sum(), leaf)[0])


@every_head
def test_mistakes(name):
    head = make(name)
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 6\), got \(2, 12\)"):
        head(torch.zeros(2, 2 * D, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"x must have shape"):
        head.logit(torch.zeros(2, D - 1, dtype=torch.float64), 0)
    for k in (-1, K, [0, K], torch.tensor([-1]), torch.tensor([K], dtype=torch.uint16)):
        with pytest.raises(ValueError, match=r"k must lie in 0\.\.3"):
            head.logit(inputs(2), k)
    wrong = ("1", ["1"], None, {1, 2}, [[0], [1, 2]], torch.tensor(1j), 2**63, [2**64])
    for k in (1.0, True, torch.tensor([[0, 1]]), [0.5], *wrong):
        with pytest.raises(TypeError, match=r"k must be a class index 0\.\.3 or a list of them, got"):
            head.logit(inputs(2), k)
    with pytest.raises(TypeError) as long:
        head.logit(inputs(2), [0.5] * 100_000)
    assert len(str(long.value)) < 200
    for x in (inputs(2).numpy(), [0.0] * D, None):
        with pytest.raises(TypeError, match="x must be a tensor, got"):
            head.logit(x, 0)


def test_batch_norm_features_check_their_width():
    """Otherwise a reshape would read two samples of width d as one of width 2 d."""
    with pytest.raises(ValueError, match="x must have shape"):
        make("batch norm").features(torch.zeros(2, 2 * D, dtype=torch.float64))


@pytest.mark.parametrize("head", [heads.LinearHead, heads.NormalizedHead, heads.BatchNormHead, heads.LargeMarginHead])
def test_sizes(head):
    for wrong in ((0, 3), (3, 0), (2.0, 3), ("4", 3)):
        with pytest.raises(ValueError, match="must be a positive integer, got"):
            head(*wrong)
    assert head(np.int64(4), np.int32(3)).weight.shape == (3, 4)


@every_head
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_head_in_half_precision(name, dtype):
    head = make(name).to(dtype)
    x = inputs(5).to(dtype).requires_grad_()
    logits = head(x)
    assert logits.isfinite().all()
    exact = make(name)(x.detach().double())
    torch.testing.assert_close(logits.double(), exact, rtol=0.05, atol=0.1)
    assert torch.autograd.grad(logits.float().sum(), x)[0].isfinite().all()


@every_head
def test_another_dtype_is_named_with_the_remedy(name):
    head, x = make(name).float(), inputs(5)
    for call in (head, lambda x: head.logit(x, [2, 0])):
        said = r"x is torch.float64 and the head's weight torch.float32: give x.to\(torch.float32\)"
        with pytest.raises(TypeError, match=said):
            call(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert call(x.bfloat16()).isfinite().all()


def test_other_errors_of_torch_stay_its_own():
    def fail(x):
        raise RuntimeError("out of memory")

    head = make("linear").float()
    head.features = fail
    with pytest.raises(RuntimeError, match="out of memory"):
        head.logit(inputs(2), 0)


@every_head
def test_under_autocast(name):
    head = make(name).float()
    x = inputs(5).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(x)
    assert logits.dtype is torch.bfloat16
    torch.testing.assert_close(logits.float(), head(x), rtol=0.05, atol=0.1)
    assert torch.autograd.grad(logits.float().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("linear", "LinearHead(in_features=6, num_classes=4)"),
        ("normalized", "NormalizedHead(in_features=6, num_classes=4, scale=5, bias=True)"),
        ("normalized learnable", "NormalizedHead(in_features=6, num_classes=4, scale=3, learnable, bias=True)"),
        ("simplex scaled", "SimplexHead(in_features=6, num_classes=4, scale=7.0)"),
        ("large margin", "LargeMarginHead(in_features=6, num_classes=4, margin=4, lam=(1000, 5))"),
    ],
)
def test_repr(name, shown):
    assert repr(make(name)) == shown


def test_linear_starts_as_torchs_does():
    torch.manual_seed(0)
    head = heads.LinearHead(400, 300)
    for tensor in (head.weight, head.bias):
        assert tensor.abs().max() <= 1 / 20
        assert tensor.std().item() == pytest.approx(1 / 20 / 3**0.5, rel=0.1)
    assert heads.LinearHead(3, 2, bias=False).bias is None
