"""Training steps of ResNet-20 by cuDNN or by the kernels, compiled and captured, in a process of its own.

bench.py starts one for each kind of step and says what they are; files in a folder are how they speak:
NAME.ready when compiled, NAME.go to be timed, NAME.json with what was found, NAME.done.
"""

from __future__ import annotations

import collections
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conv
import torch
import torch.nn.functional as F
from stacked import StackedResNet, stacked_loss
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

from lastlayer import models

BEGAN = time.time()
N = 128
STEPS = 390  # of an epoch
TIMED = 40
GROUPS = 8


class Steps:
    """A network, or several as one, with its optimiser, a fixed batch for each, a stream and a graph."""

    def __init__(self, name: str, groups: int, seed: int, compiled: Callable[[Any, Tensor], Tensor]) -> None:
        self.name, self.groups, self.compiled = name, groups, compiled
        self.graph, self.stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        backbones, heads, inputs, target = [], [], [], []
        for g in range(groups):
            torch.manual_seed(seed + g)
            backbones.append(models.create("resnet20", (3, 32, 32)))
            heads.append(nn.Linear(64, 10))
            inputs.append(torch.randn(N, 3, 32, 32))
            target.append(torch.randint(10, (N,)))
        self.net: Any
        if name == "cudnn":
            self.net = nn.ModuleList([backbones[0], heads[0]]).cuda().to(memory_format=torch.channels_last)
            self.x, self.y = inputs[0].cuda(), target[0].cuda()
        else:
            self.net = StackedResNet(backbones, heads, major=name == "major").cuda()
            self.x, self.y = self.net.stack_inputs(inputs).cuda(), torch.stack(target).cuda()
        self.net.train()
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
        self.loss = torch.zeros(())

    def step(self) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            if self.name == "cudnn":
                logits = self.net[1](self.compiled(self.net[0], self.x))
                loss = F.cross_entropy(logits.float(), self.y)
            else:
                loss = stacked_loss(self.net.logits(self.compiled(self.net, self.x)), self.y)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.loss = loss.detach()

    def mean_loss(self) -> float:
        return round(float(self.loss) / self.groups, 3)

    def warm(self, steps: int) -> list[float]:
        """Steps outside a graph; the loss of each."""
        losses = []
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                self.step()
                losses.append(self.mean_loss())
        return losses

    def capture(self) -> None:
        with torch.cuda.stream(self.stream):
            self.optimiser.zero_grad(set_to_none=True)
            self.stream.synchronize()
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.step()
            finally:
                self.graph.capture_end()


def seconds_per_epoch(members: list[Steps]) -> float:
    """Of one model, all members running at once; the best of three."""
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(TIMED):
            for member in members:
                with torch.cuda.stream(member.stream):
                    member.graph.replay()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / TIMED)
    return best * STEPS / sum(member.groups for member in members)


def wait_for(path: Path, until: float) -> bool:
    while not path.exists():
        if time.time() > until:
            return False
        time.sleep(0.05)
    return True


def take_choices(folder: Path, until: float) -> None:
    """The tiles that bench.py found best, awaited when a step first runs: compiling goes on meanwhile."""
    plain, known = conv.tile_for, []

    def tile_for(key: conv.Key) -> conv.Tile:
        if not known:
            known.append(True)
            if wait_for(folder / "choices.json", until):
                for *name, i in json.loads((folder / "choices.json").read_text()):
                    conv.choose({tuple(name): conv.CANDIDATES[tuple(name)][i]})
        return plain(key)

    conv.tile_for = tile_for


def count_copies(found: dict[str, Any]) -> None:
    plain = conv._last

    def last(t: Tensor) -> Tensor:
        found["copies"] += not t.is_contiguous(memory_format=conv.LAST)
        return plain(t)

    found["copies"] = 0
    conv._last = last


def profile(member: Steps) -> None:
    """Where the time of a step goes, by kernel."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as result, torch.cuda.stream(member.stream):
        for _ in range(3):
            member.graph.replay()
        torch.cuda.synchronize()
    spent: collections.Counter[str] = collections.Counter()
    count: collections.Counter[str] = collections.Counter()
    for event in result.events():
        spent[event.name] += event.device_time
        count[event.name] += 1
    print(f"{member.name}: {sum(count.values()) / 3:.0f} kernels a step, {sum(spent.values()) / 3:.0f} us")
    for kernel, us in spent.most_common(16):
        print(f"  {us / 3:7.1f} us {count[kernel] / 3:5.1f}x {kernel[:100]}")


def main(name: str, folder: Path, until: float) -> None:
    found: dict[str, Any] = {"seconds": {}}

    def keep() -> None:
        part = folder / f"{name}.part"
        part.write_text(json.dumps(found))
        part.rename(folder / f"{name}.json")

    torch._dynamo.config.recompile_limit = 64
    torch.backends.cudnn.deterministic = True
    if name == "cudnn":
        compiled = torch.compile(lambda net, x: net(x), dynamic=False)
    else:
        compiled = torch.compile(lambda net, x: net.features(x), dynamic=False)
        take_choices(folder, until - 12)
        count_copies(found)
    if name in ("stacked", "major"):
        members = [Steps(name, GROUPS, GROUPS * i, compiled) for i in range(2)]
    else:
        members = [Steps(name, 1, i, compiled) for i in range(GROUPS)]
    found["losses"] = members[0].warm(1)
    found["compiled after"] = round(time.time() - BEGAN, 1)
    (folder / f"{name}.ready").touch()
    if not wait_for(folder / f"{name}.go", until):
        return
    torch.backends.cudnn.benchmark = True  # only now, when no other process is running
    gc.collect()
    gc.disable()
    found["losses"] += members[0].warm(3)
    members[0].capture()
    found["seconds"]["alone"] = seconds_per_epoch(members[:1])
    found[f"loss {3 * TIMED} steps later"] = members[0].mean_loss()
    keep()
    for member in members[1:]:
        member.warm(2)
        member.capture()
    found["seconds"][f"{len(members)} streams"] = seconds_per_epoch(members)
    found["graphs compiled"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    keep()
    (folder / f"{name}.done").touch()
    if wait_for(folder / f"{name}.profile", until):
        profile(members[0])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
