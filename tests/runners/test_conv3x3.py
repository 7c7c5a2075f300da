"""Who trains by our convolutions, and that nothing else of a network changes. The kernels: conv3x3/test_kernels.py.

Where there is no GPU, torch's convolutions stand in for the kernels.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer import data, models
from lastlayer.runners import Placement, conv3x3, graph, run_trials
from lastlayer.runners.conv3x3 import FewChannels, launch
from lastlayer.training import DataChoice, LossChoice, ModelChoice, Schedule, Trial
from lastlayer.training.build import build
from lastlayer.training.engine.feed import Feed
from lastlayer.training.engine.state import State
from lastlayer.training.engine.step import extract, loss_of
from lastlayer.training.facts import Facts
from lastlayer.training.fit import begin

LAST = torch.channels_last
TRIAL = Trial(
    data=DataChoice("digits"),
    model=ModelChoice("resnet20"),
    schedule=Schedule(epochs=1),
    batch_size=32,
    evaluations=1,
    precision="bfloat16",
)


@dataclasses.dataclass
class Call:
    """Stands for a launch.Call."""

    out: Tensor
    compute: Callable[[], Tensor]

    def launch(self) -> None:
        self.out.copy_(self.compute())


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The inputs that were convolved, one for each call."""
    convolved: list[Tensor] = []

    def forward(x: Tensor, weight: Tensor, y: Tensor, stride: int) -> Call:
        convolved.append(x)
        return Call(y, lambda: F.conv2d(x.bfloat16(), weight, stride=stride, padding=1))

    def towards_input(dy: Tensor, weight: Tensor, dx: Tensor, stride: int) -> Call:
        return Call(dx, lambda: torch.nn.grad.conv2d_input(dx.shape, weight, dy, stride, 1))

    def towards_weight(x: Tensor, dy: Tensor, dw: Tensor, stride: int) -> tuple[Call]:
        return (Call(dw, lambda: torch.nn.grad.conv2d_weight(x.bfloat16(), dw.shape, dy, stride, 1)),)

    monkeypatch.setattr(conv3x3, "capable", lambda device: True)
    monkeypatch.setattr(launch, "forward_call", forward)
    monkeypatch.setattr(launch, "input_call", towards_input)
    monkeypatch.setattr(launch, "weight_calls", towards_weight)
    return convolved


def pictures(channels: int = 3, size: int = 32, count: int = 256) -> data.Dataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    split = data.Split(inputs, torch.arange(count) % 10)
    names = tuple("0123456789")
    return data.Dataset("random", split, split, names, scale=255.0, mean=(0.5,) * channels, std=(0.3,) * channels)


def conv(ci: int = 16, co: int = 16, kernel: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(ci, co, kernel, **{"padding": 1, "bias": False, **options})


class Other(nn.Conv2d):
    """Someone else's convolution: nobody knows what its forward pass does."""


@pytest.mark.parametrize("shape", launch.TILES)
def test_takes_the_shapes_with_tiles(stand_ins: list[Tensor], shape: tuple[int, int, int]) -> None:
    assert conv3x3.eligible(conv(shape[0], shape[1], stride=shape[2]))


REFUSED = {
    "1x1": conv(kernel=1, padding=0),
    "1x1 padded": conv(kernel=1),
    "5x5": conv(kernel=5, padding=2),
    "not padded": conv(padding=0),
    "padded by words": conv(padding="same"),
    "padded by pixels": conv(padding_mode="reflect"),
    "dilated": conv(dilation=2),
    "in groups": conv(groups=2),
    "with bias": conv(bias=True),
    "stride 3": conv(stride=3),
    "two strides": conv(16, 32, stride=(2, 1)),
    "48 channels": conv(16, 48),
    "128 channels": conv(64, 128, stride=2),
    "a stem of stride 2": conv(3, 16, stride=2),
    "4 channels": conv(4, 16),
    "float64": conv().double(),
    "bfloat16": conv().bfloat16(),
    "a subclass": Other(16, 16, 3, padding=1, bias=False),
    "transposed": nn.ConvTranspose2d(16, 16, 3, padding=1, bias=False),
    "no convolution": nn.Linear(16, 16),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_everything_else(stand_ins: list[Tensor], what: str) -> None:
    assert not conv3x3.eligible(REFUSED[what])


def test_refuses_a_cpu() -> None:
    assert not conv3x3.eligible(conv())
    assert conv3x3.replacement(models.create("resnet20", (3, 32, 32))) is None


@pytest.mark.parametrize(
    ("capability", "has_triton", "capable"), [((9, 0), True, True), ((7, 5), True, False), ((9, 0), False, False)]
)
def test_refuses_old_gpus_and_a_missing_triton(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], has_triton: bool, capable: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if has_triton else None)
    assert conv3x3.capable(torch.device("cuda")) is capable


def ours_in(network: nn.Module | None) -> int:
    return 0 if network is None else sum(isinstance(module, FewChannels) for module in network.modules())


@pytest.mark.parametrize(
    ("name", "count"), [("resnet20", 19), ("resnet56", 55), ("resnet18", 0), ("vgg11", 0), ("mlp", 0)]
)
def test_takes_cifar_resnets_whole_and_no_wider_network(stand_ins: list[Tensor], name: str, count: int) -> None:
    backbone = models.create(name, (3, 32, 32))
    assert ours_in(conv3x3.replacement(backbone)) == count
    assert ours_in(backbone) == 0


def test_a_replacement_shares_its_state_with_the_network_and_leaves_it_as_it_was(stand_ins: list[Tensor]) -> None:
    torch.manual_seed(0)
    backbone = models.create("resnet20", (3, 8, 8)).to(memory_format=LAST).train()
    plain = copy.deepcopy(backbone)
    kinds = [type(module) for module in backbone.modules()]
    drawn = torch.get_rng_state()
    ours = conv3x3.replacement(backbone)
    assert ours is not None
    assert torch.equal(drawn, torch.get_rng_state())
    assert [name for name, _ in ours.named_modules()] == [name for name, _ in backbone.named_modules()]
    for named in ("named_parameters", "named_buffers"):
        for (name, one), (other_name, other) in zip(getattr(ours, named)(), getattr(backbone, named)(), strict=True):
            assert (one is other, name) == (True, other_name)
    assert list(ours.state_dict()) == list(plain.state_dict())
    assert [type(module) for module in backbone.modules()] == kinds
    assert [vars(m).keys() for m in backbone.modules()] == [vars(m).keys() for m in plain.modules()]
    images = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        ours(images).sum().backward()
        plain(images)
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    for name, buffer in plain.named_buffers():  # both have seen the batch once
        torch.testing.assert_close(backbone.get_buffer(name), buffer, rtol=0.1, atol=0.02)
    for parameter in backbone.parameters():
        parameter.grad = None
    plain.load_state_dict(backbone.state_dict())
    assert torch.equal(backbone.eval()(images), plain.eval()(images))
    assert torch.equal(copy.deepcopy(backbone)(images), plain(images))


class Stem(nn.Module):
    """A model of the user's own, which does with its parts what ours do not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.register_buffer("average", torch.zeros(()))
        self.opened = open(__file__) if how == "holds what cannot be copied" else None  # noqa: SIM115
        if how == "watches its convolution":
            self.conv.register_forward_hook(lambda *given: given[2] + 1)
        if how == "computes its weight":
            nn.utils.spectral_norm(self.conv)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        if self.how == "sets another buffer":
            self.average = self.average + x.mean().detach()
        return x

    def __deepcopy__(self, memo: dict[int, Any]) -> Stem:
        if self.how == "copies itself":
            return Stem(self.how)
        copied = Stem.__new__(Stem)
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied


@pytest.mark.parametrize(
    "how", ["holds what cannot be copied", "watches its convolution", "computes its weight", "copies itself"]
)
def test_a_model_that_a_copy_would_change_has_no_replacement(stand_ins: list[Tensor], how: str) -> None:
    assert conv3x3.replacement(Stem("is plain")) is not None
    assert conv3x3.replacement(Stem(how)) is None


def test_a_model_that_sets_another_buffer_no_longer_shares_it(stand_ins: list[Tensor]) -> None:
    for how, shares in (("is plain", True), ("sets another buffer", False)):
        backbone = Stem(how)
        ours = conv3x3.replacement(backbone)
        assert ours is not None
        ours(torch.randn(2, 16, 8, 8))
        assert conv3x3.shares_state(ours, backbone) == shares


@pytest.mark.parametrize(
    ("ci", "images"),
    [(16, torch.randn(2, 16, 6, 8)), (16, torch.randn(2, 16, 8, 7)), (3, torch.randn(2, 3, 8, 8).requires_grad_())],
)
def test_inputs_without_a_kernel_are_convolved_plainly(stand_ins: list[Tensor], ci: int, images: Tensor) -> None:
    one = conv(ci)
    ours = conv3x3.replacement(nn.Sequential(one))
    assert ours_in(ours) == 1
    assert ours is not None
    assert torch.equal(ours(images), one(images))
    assert not stand_ins


def test_too_many_elements_for_32_bits_are_convolved_plainly(stand_ins: list[Tensor]) -> None:
    one = conv().weight
    assert conv3x3.has_kernel(torch.empty(2**19 - 1, 16, 16, 16, device="meta"), one)
    assert not conv3x3.has_kernel(torch.empty(2**19, 16, 16, 16, device="meta"), one)
    widening = conv(16, 32, stride=2).weight
    assert not conv3x3.has_kernel(torch.empty(2**18, 16, 16, 16, device="meta"), widening)


def gradients(state: State, feed: Feed, extract: graph.Extract) -> list[Tensor]:
    network, batch = state.network, feed.draw(state)
    with torch.autocast("cpu", torch.bfloat16):
        loss, logits = loss_of(network.head, state.loss, extract(network.backbone, batch.inputs), batch.target, None)
    return [loss.detach(), logits.detach(), *torch.autograd.grad(loss, list(network.parameters()))]


def test_a_step_is_that_of_torch_and_compiled_once_for_all(stand_ins: list[Tensor]) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = graph.compile_extract(counted)
    dataset = pictures(size=16)
    for seed, name in enumerate(("ce", "sln")):
        trial = dataclasses.replace(TRIAL, loss=LossChoice(name), seed=seed).resolved()
        (plain, plain_feed), (ours, our_feed) = begin(trial, dataset), begin(trial, dataset)
        for state in (plain, ours):
            state.network.to(memory_format=LAST).train()
        copied = conv3x3.replacement(ours.network.backbone)
        assert copied is not None
        features = graph.using(compiled, {ours.network.backbone: copied})
        with torch.no_grad():  # the rounded weights follow the weights
            for state in (plain, ours):
                state.network.backbone.conv1.weight.mul_(1.5)
        for a, b in zip(gradients(ours, our_feed, features), gradients(plain, plain_feed, extract), strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert (a - b).norm() <= 0.02 * b.norm()
    assert len(graphs) == 1
    ours_in_graph = sum("conv3x3" in str(node.target) for node in graphs[0].graph.nodes)
    assert ours_in_graph == 19


def run_first(state: State, take_step: graph.Step) -> graph.Step:
    take_step()
    return take_step


@pytest.mark.parametrize("works", [True, False])
def test_a_training_whose_kernels_fail_falls_to_plain_convolutions(
    stand_ins: list[Tensor], monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    def broken(*_: object) -> Call:
        raise RuntimeError("out of shared memory")

    if not works:
        monkeypatch.setattr(launch, "weight_calls", broken)
    state, feed = begin(TRIAL.resolved(), pictures(size=16))
    before = {name: value.clone() for name, value in state.network.state_dict().items()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step = graph.accelerate(state, feed, compiled=extract, capture=run_first)
    falls = [str(one.message) for one in said if "does not run as" in str(one.message)]
    assert len(falls) == (not works)
    assert all("convolutions of our own (RuntimeError: out of shared memory)" in fall for fall in falls)
    assert all(torch.equal(before[name], value) for name, value in state.network.state_dict().items())
    stand_ins.clear()
    step()
    assert len(stand_ins) == (19 if works else 0)
    assert int(state.cursor) == 1
    assert float(state.total) > 0


@pytest.mark.parametrize("works", [True, False])
def test_a_teacher_convolves_by_our_kernels_though_it_does_not_train(stand_ins: list[Tensor], works: bool) -> None:
    dataset, trial = pictures(size=16), dataclasses.replace(TRIAL, loss=LossChoice("kd"), teacher="another").resolved()
    teacher = build(dataclasses.replace(TRIAL, seed=1).resolved(), Facts.of(dataset))[0]
    state, feed = begin(trial, dataset, teacher=teacher)

    def capture(state: State, take_step: graph.Step) -> graph.Step:
        take_step()
        if not works and stand_ins:
            stand_ins.clear()
            raise RuntimeError("out of shared memory")
        return take_step

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = graph.accelerate(state, feed, compiled=extract, capture=capture)
    stand_ins.clear()
    step()
    assert len(stand_ins) == (2 * 19 if works else 0)
    assert not any(parameter.grad is not None for parameter in teacher.parameters())
    stand_ins.clear()
    copied = conv3x3.replacement(teacher.backbone)
    assert copied is not None
    images = torch.randn(2, 3, 16, 16).contiguous(memory_format=LAST)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, wanted = copied(images), teacher.backbone(images)
        assert len(stand_ins) == 19
        assert state.network.eval().backbone(images).isfinite().all()
    assert len(stand_ins) == 19  # evaluation is by the network itself
    assert (found - wanted).norm() <= 0.02 * wanted.norm()


@pytest.mark.parametrize(("precision", "convolutions"), [("float32", True), ("bfloat16", False)])
def test_only_bfloat16_and_only_if_wanted(stand_ins: list[Tensor], precision: str, convolutions: bool) -> None:
    state, feed = begin(dataclasses.replace(TRIAL, precision=precision).resolved(), pictures(size=8))
    graph.accelerate(state, feed, convolutions=convolutions, compiled=extract, capture=run_first)()
    assert not stand_ins


def test_what_a_graph_reads_lives_as_long_as_its_step(stand_ins: list[Tensor]) -> None:
    """A graph holds addresses. If the rounded weights were freed, its replays would write into memory of others."""
    state, feed = begin(TRIAL.resolved(), pictures(size=8))
    rounded: list[weakref.ref[nn.Module]] = []

    def capture(state: State, take_step: graph.Step) -> graph.Step:
        take_step()
        rounded.extend(weakref.ref(module) for module in gc.get_objects() if type(module) is FewChannels)
        return lambda: None  # like a graph's replay, it refers to nothing

    step = graph.accelerate(state, feed, compiled=extract, capture=capture)
    gc.collect()
    assert len(rounded) == 19
    assert all(module() is not None for module in rounded)
    del step
    gc.collect()
    assert all(module() is None for module in rounded)


@pytest.mark.gpu
def test_on_a_gpu_captured_steps_follow_those_with_cudnn() -> None:
    dataset = pictures(count=512).to("cuda")
    losses = []
    for convolutions in (True, False):
        state, feed = begin(TRIAL.resolved(), dataset, "cuda")
        assert ours_in(conv3x3.replacement(state.network.backbone)) == 19
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".* does not run as")
            take_step = graph.accelerate(state, feed, convolutions=convolutions)
        totals = []
        for _ in range(8):
            take_step()
            totals.append(float(state.total))
        losses.append(totals)
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


@pytest.mark.gpu
def test_on_a_gpu_a_trial_by_our_kernels_has_the_same_bits_alone_and_packed(tmp_path: Path) -> None:
    dataset = pictures(count=512)
    names = ("ce", "sln", "bce", "ls")
    trials = [dataclasses.replace(TRIAL, loss=LossChoice(name), seed=i).resolved() for i, name in enumerate(names)]
    packed, alone = Placement(tmp_path / "packed", "cuda", pack=4), Placement(tmp_path / "alone", "cuda", pack=1)
    for placement in (packed, alone):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".* does not run as")
            events = list(run_trials(trials, placement, dataset))
        assert [event.kind for event in events if event.kind in ("done", "failed")] == ["done"] * 4
    for trial in trials:
        ours, theirs = (placement.folder(trial).tensors("weights") for placement in (packed, alone))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), trial.loss.name
