"""Packed trials on one GPU against ordinary loops: seconds per model and epoch of ResNets on CIFAR-shaped data.

    python benchmarks/packed.py [--model resnet20] [--epochs 6] [--packs 1,4,8] [--precision bfloat16] [--json FILE]

The peers, in the same run on the same GPU: a plain PyTorch loop with a DataLoader that crops and flips each image in
worker processes; the same loop with data and augmentation on the GPU. Both train in the same precision and layout.
Ours trains through `lastlayer.runners`, run folders, checkpoints and one evaluation at the end included. Images are
random: speed does not depend on what is in them. The first epoch (compiling, capturing) is left out of every time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lastlayer import data
from lastlayer.runners import Plan, run_trials
from lastlayer.training import Augmentation, DataChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial
from lastlayer.training.loop import Training
from lastlayer.training.parts import load_data

BATCH = 128


def images(folder: Path, count: int) -> Path:
    """A file of random images with the shape of CIFAR-10."""
    generator = np.random.default_rng(0)
    path = folder / "random.npz"
    arrays = {}
    for part, size in (("train", count), ("test", max(count // 5, 1000))):
        arrays[f"x_{part}"] = generator.integers(0, 256, (size, 3, 32, 32), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(size) % 10
    np.savez(path, **arrays)
    return path


class Samples(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """What the usual script does: each image cropped, flipped and normalised by itself."""

    def __init__(self, split: data.Split) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = F.pad(self.split.inputs[i], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return image.float() / 255, int(self.split.target[i])


def plain_loop(trial: Trial, dataset: data.Dataset, epochs: int, *, on_device: bool) -> float:
    """Seconds an epoch of a loop anyone would write, after a first epoch of warm-up."""
    training = Training(trial, dataset, "cuda")
    network, loss = training.network, training.loss
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loader = torch.utils.data.DataLoader(
        Samples(dataset.train),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=8,
        persistent_workers=True,
        pin_memory=True,
    )
    resident = dataset.train.to("cuda")
    network.train()
    times = []
    for _ in range(epochs):
        torch.cuda.synchronize()
        began = time.perf_counter()
        if on_device:
            order = torch.randperm(len(resident), device="cuda")
            batches: Any = (
                (data.augment(resident.inputs[i], padding=4, flip=0.5).float() / 255, resident.target[i])
                for i in order.split(BATCH)
                if len(i) == BATCH
            )
        else:
            batches = ((x.cuda(non_blocking=True), y.cuda(non_blocking=True)) for x, y in loader)
        for x, y in batches:
            x = x.to(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.bfloat16, enabled=trial.precision == "bfloat16"):
                value = loss(network.head(network.backbone(x)), y)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return sum(times[1:]) / (epochs - 1)


def packed(trial: Trial, size: int, steps: int) -> float:
    """Seconds per model and epoch of a pack, after every trial's first epoch, the evaluation at the end included."""
    epochs = trial.schedule.epochs
    names = ["ce", "sln", "bce", "ls"]
    trials = [
        dataclasses.replace(
            trial, loss=LossChoice(names[i % len(names)]), seed=i, optimiser=Optimiser(lr=0.01, weight_decay=1e-4)
        ).resolved()
        for i in range(size)
    ]
    with tempfile.TemporaryDirectory() as folder:
        reached: dict[int, int] = {}
        started = None
        for event in run_trials(trials, Plan(Path(folder), "cuda", pack=size)):
            if event.kind == "failed":
                raise RuntimeError(event.message)
            if event.progress is not None:
                reached[event.index] = event.progress.step
            if started is None and len(reached) == size and min(reached.values()) > steps:
                torch.cuda.synchronize()
                started = time.perf_counter()
                done = sum(reached.values()) / steps
        torch.cuda.synchronize()
        assert started is not None
        seconds = time.perf_counter() - started
        return seconds / (size * epochs - done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--packs", default="1,4,8")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(
            data=DataChoice(str(images(Path(folder), options.samples))),
            model=ModelChoice(options.model),
            schedule=Schedule(epochs=options.epochs),
            augmentation=Augmentation(crop=4, flip=True),
            batch_size=BATCH,
            precision=options.precision,
            evaluations=1,
        ).resolved()
        dataset = load_data(trial.data)
        rows = []
        rows.append(("plain loop, DataLoader", plain_loop(trial, dataset, 3, on_device=False)))
        rows.append(("plain loop, data on the GPU", plain_loop(trial, dataset, 3, on_device=True)))
        for size in (int(n) for n in options.packs.split(",")):
            rows.append((f"lastlayer, pack of {size}", packed(trial, size, options.samples // BATCH)))
    table = Table("", "s per model-epoch", "times the DataLoader loop", "times the GPU-data loop")
    for name, seconds in rows:
        table.add_row(name, f"{seconds:.3f}", f"{rows[0][1] / seconds:.1f}", f"{rows[1][1] / seconds:.1f}")
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}"
    Console().print(f"{options.model}, batch {BATCH}, {options.precision}, {options.samples} images, {machine}", table)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "options": vars(options), "rows": rows}, default=str))


if __name__ == "__main__":
    main()
