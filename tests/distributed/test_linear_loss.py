"""linear_loss with the weight sharded by class over real gloo processes: the value and gradients of one process."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
import torch.distributed as dist

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss
from tests.distributed.processes import joined

N, D, K = 9, 4, 11
SHARDS = {2: [3, 8], 3: [5, 1, 5]}
KINDS = ["index", "ignored", "pair", "probabilities"]
CLASS_WEIGHT = torch.linspace(0.2, 2.0, K, dtype=torch.float64)
LOSSES = {
    "ce": lambda **common: losses.CrossEntropyLoss(K, temperature=0.7, **common),
    "ls": lambda **common: losses.create("ls", K, **common),
    "sln": lambda **common: losses.SoftLogitNormLoss(K, **common),
    "sln, smoothed": lambda **common: losses.SoftLogitNormLoss(K, gamma=0.4, label_smoothing=0.2, **common),
    "ln": lambda **common: losses.create("ln", K, **common),
    "self-norm": lambda **common: losses.create("self-norm", K, **common),
    "logit-adjusted": lambda **common: losses.create("logit-adjusted", K, counts=torch.arange(1, K + 1), **common),
    "bce": lambda **common: losses.BinaryCrossEntropyLoss(
        K, label_smoothing=0.1, pos_weight=CLASS_WEIGHT.flip(0), **common
    ),
    "batch-ce": lambda **common: losses.create("batch-ce", K),
}
LAYERS = ["plain", "bias", "normalized", "far", "wide"]
COMMON = [{}, {"reduction": "sum"}, {"reduction": "none", "weight": CLASS_WEIGHT}, {"weight": CLASS_WEIGHT}]
CASES = list(itertools.product(LOSSES, KINDS, LAYERS, range(len(COMMON))))
CASES = [case for case in CASES if case[0] != "batch-ce" or case[1] != "ignored"]
CASES = [case for case in CASES if case[2] == "bias" or case[3] == 2 * (case[2] == "normalized")]


def sizes(case):
    """Classes in a tile: two, and once all of them."""
    return (2, 100) if case[2:] == ("bias", 0) else (2,)


def target(kind):
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randint(K, (N,), generator=generator) for _ in range(2))
    if kind == "ignored":
        first[::3] = -100
    if kind == "pair":
        return first, second, torch.rand(N, generator=generator, dtype=torch.float64)
    if kind == "probabilities":
        return torch.rand(N, K, generator=generator, dtype=torch.float64).softmax(1)
    return first


def parts(layer):
    """Features, weight, bias, and a learnable scale."""
    generator = torch.Generator().manual_seed(2)
    features, weight, bias = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((N, D), (K, D), (K,)))
    if layer == "far":  # logits so large that exponentials would overflow, the largest on another rank each time
        features, weight = 40 * features, 10 * weight
    if layer == "wide":  # of many features, for which the norms of the logits come from a pass of their own
        features, weight = features.repeat(1, 4), torch.cat([weight.roll(shift, 0) for shift in range(4)], 1) / 2
    scale = torch.tensor(3.0, dtype=torch.float64)
    return [features, weight, bias if layer in ("bias", "normalized") else None, scale]


def logits(layer, features, weight, bias, scale):
    if layer == "normalized":
        unit = torch.nn.functional.normalize
        return scale * unit(features) @ unit(weight).T - bias
    return features @ weight.T + (0 if bias is None else bias)


def gradients(value, leaves):
    upstream = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).reshape(value.shape) + 0.3
    return torch.autograd.grad(value, leaves, upstream, allow_unused=True, materialize_grads=True)


def whole(case):
    """One process with every class: value, and gradients of features, weight, bias and scale."""
    name, kind, layer, common = case
    leaves = [p if p is None else p.requires_grad_() for p in parts(layer)]
    value = LOSSES[name](**COMMON[common])(logits(layer, *leaves), target(kind))
    found = iter(gradients(value, [p for p in leaves if p is not None]))
    return value.detach(), [None if p is None else next(found) for p in leaves]


def rank(index, world, folder):
    start = sum(SHARDS[world][:index])
    mine = slice(start, start + SHARDS[world][index])
    with joined(index, world, folder) as answers:
        group = dist.group.WORLD
        for case in CASES:
            name, kind, layer, common = case
            features, weight, bias, scale = parts(layer)
            leaves = [features, weight[mine].clone(), None if bias is None else bias[mine].clone(), scale]
            leaves = [p if p is None else p.requires_grad_() for p in leaves]
            more = {"normalized": True, "scale": leaves[3]} if layer == "normalized" else {}
            for size in sizes(case):
                plan = Plan("classes", "test", classes=size)
                module = LOSSES[name](**COMMON[common])
                value = linear_loss(
                    leaves[0], leaves[1], target(kind), module, leaves[2], group=group, plan=plan, **more
                )
                found = iter(gradients(value, [p for p in leaves if p is not None]))
                answers[case, size] = value.detach(), [None if p is None else next(found) for p in leaves]
        answers["floats a row"] = floats_a_row(group, mine)
        answers["learnt"] = learnt(group, mine)
        answers["bfloat16"] = low_precision(group, mine)
        answers["errors"] = errors(group, mine, index)


def floats_a_row(group, mine):
    """How many numbers per sample are summed over ranks, without the gradient of the features."""
    counts, reduce = {}, dist.all_reduce
    for name in LOSSES:
        seen = []

        def counting(tensor, *args, seen=seen, **named):
            seen.append(tensor.numel())
            return reduce(tensor, *args, **named)

        features, weight, _, _ = parts("plain")
        leaves = [features.requires_grad_(), weight[mine].clone().requires_grad_()]
        dist.all_reduce = counting
        gradients(linear_loss(*leaves, target("index"), LOSSES[name](), group=group), leaves)
        dist.all_reduce = reduce
        counts[name] = sum(seen) / N - D
    return counts


def learnt_module():
    tau = torch.nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    return losses.SoftLogitNormLoss(tau=tau, gamma=torch.nn.Parameter(torch.tensor(0.6, dtype=torch.float64)))


def learnt(group, mine):
    features, weight, _, _ = parts("plain")
    module = learnt_module()
    value = linear_loss(features, weight[mine], target("index"), module, group=group)
    return torch.autograd.grad(value, list(module.parameters()))


def low_precision(group, mine):
    leaves = [p.bfloat16().requires_grad_() for p in (parts("plain")[0], parts("plain")[1][mine])]
    value = linear_loss(*leaves, target("index"), "ce", group=group)
    return value.detach(), torch.autograd.grad(value, leaves)


def errors(group, mine, index):
    """The error on each rank. All ranks must get the same one, or they would wait for each other."""
    features, weight, _, _ = parts("plain")
    calls = {
        "loss": lambda: linear_loss(features, weight[mine], target("index"), "max-margin", group=group),
        "path": lambda: linear_loss(
            features, weight[mine], target("index"), "ce", group=group, plan=Plan("rows", "", rows=2)
        ),
        "samples": lambda: linear_loss(features[: 5 + index], weight[mine], target("index"), "ce", group=group),
        "classes": lambda: linear_loss(
            features, weight[mine], target("index"), losses.CrossEntropyLoss(K + 1), group=group
        ),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LOSSES)
def test_shards_have_the_loss_and_gradients_of_one_process(ranks, name, kind):
    world, answers = ranks
    for case in [case for case in CASES if case[:2] == (name, kind)]:
        value, (d_features, d_weight, d_bias, d_scale) = whole(case)
        assert value.isfinite().all()
        for size, (index, answer) in itertools.product(sizes(case), enumerate(answers)):
            mine = slice(sum(SHARDS[world][:index]), sum(SHARDS[world][: index + 1]))
            wanted = [value, d_features, d_weight[mine], None if d_bias is None else d_bias[mine]]
            if case[2] == "normalized":
                wanted.append(d_scale)
            found_value, found_gradients = answer[case, size]
            for found, want in zip([found_value, *found_gradients], wanted, strict=False):
                assert (found is None) == (want is None)
                if want is not None:
                    torch.testing.assert_close(found, want, rtol=1e-8, atol=1e-9)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_at_most_five_floats_a_row_are_reduced(ranks):
    for answer in ranks[1]:
        assert answer["floats a row"]["ce"] == 3
        assert answer["floats a row"]["bce"] == 1
        assert max(answer["floats a row"].values()) <= 5


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_learnt_numbers_have_their_whole_gradient_on_every_rank(ranks):
    features, weight, _, _ = parts("plain")
    module = learnt_module()
    wanted = torch.autograd.grad(module(features @ weight.T, target("index")), list(module.parameters()))
    for answer in ranks[1]:
        for found, want in zip(answer["learnt"], wanted, strict=True):
            torch.testing.assert_close(found, want)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
def test_half_precision(ranks):
    world, answers = ranks
    exact = [p.bfloat16().double().requires_grad_() for p in parts("plain")[:2]]
    value = losses.cross_entropy(exact[0] @ exact[1].T, target("index"))
    d_features, d_weight = torch.autograd.grad(value, exact)
    for index, answer in enumerate(answers):
        mine = slice(sum(SHARDS[world][:index]), sum(SHARDS[world][: index + 1]))
        found, (found_features, found_weight) = answer["bfloat16"]
        assert found.dtype is torch.float32
        assert found_features.dtype is torch.bfloat16
        torch.testing.assert_close(found.double(), value.detach(), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(found_features.double(), d_features, rtol=2e-2, atol=2e-3)
        torch.testing.assert_close(found_weight.double(), d_weight[mine], rtol=2e-2, atol=2e-3)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file store")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("loss", "max-margin takes no weight sharded"),
        ("path", "'classes'"),
        ("samples", "same samples"),
        ("classes", "num_classes"),
    ],
)
def test_every_rank_is_told_what_is_wrong(ranks, call, words):
    for answer in ranks[1]:
        assert words in answer["errors"][call]
