"""The stacked network in float32 by torch's own convolutions against the separate ones: only the stacking is tested."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

import conv
import torch.nn.functional as F
from conv import conv3x3
from stacked import StackedResNet, plain_conv, stacked_loss
from torch import nn

from lastlayer import models

torch.set_num_threads(1)
G, N = 8, 4


def separate(count: int, name: str = "resnet20"):
    backbones, heads = [], []
    for seed in range(count):
        torch.manual_seed(seed)
        backbones.append(models.create(name, (3, 32, 32)))
        heads.append(nn.Linear(64, 10))
        with torch.no_grad():  # not all alike
            for module in backbones[-1].modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.2)
    return backbones, heads


@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_the_separate_models(major: bool, dtype: torch.dtype) -> None:
    backbones, heads = separate(G)
    for module in (*backbones, *heads):
        module.to(dtype)
    together = StackedResNet(backbones, heads, plain_conv, major)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(N, 3, 32, 32, generator=generator).to(dtype) for _ in range(G)]
    target = torch.randint(10, (G, N), generator=generator)
    tolerance = 1e-9 if dtype is torch.float64 else 2e-3
    each = [head(backbone(x)) for backbone, head, x in zip(backbones, heads, inputs, strict=True)]
    for logits, t in zip(each, target, strict=True):
        F.cross_entropy(logits, t).backward()
    logits = together.logits(together.features(together.stack_inputs(inputs)))
    stacked_loss(logits, target).backward()

    def near(a, b):
        return float(((a - b).norm() / b.norm()).detach()) < tolerance

    assert near(logits, torch.stack(each))
    convs = [[m for m in b.modules() if isinstance(m, nn.Conv2d)] for b in backbones]
    norms = [[m for m in b.modules() if isinstance(m, nn.BatchNorm2d)] for b in backbones]
    assert len(together.weights) == len(convs[0]) == len(norms[0]) == 19
    for i, weight in enumerate(together.weights):
        assert near(weight.grad, torch.cat([c[i].weight.grad for c in convs])), i
    for i, norm in enumerate(together.norms):
        assert near(norm.weight.grad, torch.cat([n[i].weight.grad for n in norms])), i
        assert near(norm.bias.grad, torch.cat([n[i].bias.grad for n in norms])), i
        assert near(norm.mean, torch.cat([n[i].running_mean for n in norms])), i
        assert near(norm.var, torch.cat([n[i].running_var for n in norms])), i
    assert near(together.head_weight.grad, torch.stack([h.weight.grad for h in heads]))
    assert near(together.head_bias.grad, torch.stack([h.bias.grad for h in heads]))
    parameters = sum(p.numel() for b in (*backbones, *heads) for p in b.parameters())
    assert sum(p.numel() for p in together.parameters()) == parameters


class Fast:
    """The operators with float32 products by torch in the place of the kernels, to test what surrounds them quickly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies = 0
        before = conv._last

        def last(t):
            self.copies += not t.is_contiguous(memory_format=conv.LAST)
            return before(t)

        monkeypatch.setattr(conv, "_last", last)
        monkeypatch.setattr(conv, "forward_call", self.forward)
        monkeypatch.setattr(conv, "input_call", self.input)
        monkeypatch.setattr(conv, "weight_calls", self.weight)

    def forward(self, x, w16, y, stride, groups, major):
        self.run = lambda: y.copy_(plain_conv(x.bfloat16().float(), w16.float(), stride, groups, major=major))
        return self

    def backward(self, dy, x, w, stride, groups, major, out, which):
        if major:  # each group's own
            n = x.shape[0] // groups
            parts = zip(dy.split(n), x.split(n), w.chunk(groups), out.chunk(groups), strict=True)
        else:
            parts = ((dy, x, w, out),)
        for d, a, v, o in parts:
            mask = [which == "input", which == "weight", False]
            both = torch.ops.aten.convolution_backward(
                d.float(), a.float(), v.float(), None, [stride] * 2, [1, 1], [1, 1], False, [0, 0],
                1 if major else groups, mask,
            )  # fmt: skip
            o.copy_(both[which == "weight"])

    def input(self, dy, w16, dx, stride, groups, major):
        self.run = lambda: self.backward(dy, dx, w16, stride, groups, major, dx, "input")
        return self

    def weight(self, x, dy, parts, dw, stride, groups, major):
        self.run = lambda: self.backward(dy, x.bfloat16(), dw, stride, groups, major, dw, "weight")
        return (self,)

    def launch(self) -> None:
        self.run()


@pytest.mark.parametrize("major", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_once_for_all_instances_and_never_copies(major, backend, monkeypatch) -> None:
    fast = Fast(monkeypatch)
    torch._dynamo.reset()
    count = 0

    def counting(gm, inputs):
        nonlocal count
        count += 1
        return torch._dynamo.lookup_backend(backend)(gm, inputs)

    features = torch.compile(lambda net, x: net.features(x), dynamic=False, fullgraph=True, backend=counting)
    groups = 2
    for _instance in range(3):
        backbones, heads = separate(groups)
        net = StackedResNet(backbones, heads, conv3x3, major)
        inputs = [torch.randn(2, 3, 32, 32) for _ in range(groups)]
        target = torch.randint(10, (groups, 2))
        with torch.autocast("cpu", torch.bfloat16):
            out = features(net, net.stack_inputs(inputs))
            loss = stacked_loss(net.logits(out), target)
        loss.backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in net.parameters())
        # as near to float32 as the separate models are under autocast
        grads = []
        for precise in (True, False):
            for g in range(groups):
                backbones[g].zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
                    part = F.cross_entropy(heads[g](backbones[g](inputs[g])).float(), target[g])
                part.backward()
            grads.append(torch.cat([b.conv1.weight.grad for b in backbones]))
        exact, usual = grads
        assert (net.weights[0].grad - exact).norm() < 1.5 * (usual - exact).norm() < 0.5 * exact.norm()
    assert count == 1
    assert fast.copies == 0
