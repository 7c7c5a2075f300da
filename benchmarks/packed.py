"""Many trials on one GPU, compared with ordinary loops: seconds per model and epoch of ResNets on images of 32x32.

    python benchmarks/packed.py [--models resnet20,resnet56] [--epochs 6] [--packs 1,8] [--csv FILE]
    python benchmarks/packed.py --agreement [--data cifar10] [--data-root FOLDER] [--epochs 10] [--csv FILE]

There are two peers, in the same run on the same GPU. One is a plain PyTorch loop with a DataLoader, whose worker
processes crop and flip each image. The other is the same loop with data and augmentation on the GPU. Both train in the
same precision and layout as ours. Ours trains through `lastlayer.runners`, and its time includes run folders,
checkpoints and an evaluation of all samples at the end. The images are random, because speed does not depend on them.
Ours is timed after its first epoch, in which it compiles and captures. The loops are timed over some hundred steps
after their first ones.

--agreement trains ResNet-20 with cross-entropy from five seeds in two ways: packed in bfloat16, and each in its own
process in plain float32, neither compiled nor captured. The difference of the means should lie within the spread over
seeds. The first seed is also trained alone, which must give the same bits as in the pack.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from common import describe_machine
from lastlayer import data
from lastlayer.runners import Placement, run_trials
from lastlayer.training import (
    Augmentation,
    DataChoice,
    LossChoice,
    ModelChoice,
    Optimiser,
    Schedule,
    Trial,
    finish_fit,
    fit,
    load_data,
)
from lastlayer.training.fit import begin

BATCH = 128
Row = dict[str, object]


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
    """Samples as in the usual script: each image is cropped, flipped and normalised by itself."""

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


def plain_loop(trial: Trial, dataset: data.Dataset, steps: int, *, on_device: bool) -> float:
    """Seconds per epoch of a loop that anyone would write, from some of its steps. A quarter as many warm it up."""
    state, _ = begin(trial, dataset, "cuda")
    network, loss = state.network, state.loss
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    batches = _resident_batches(dataset.train) if on_device else _loaded_batches(dataset.train)
    network.train()
    warm_up = steps // 4
    for step, (x, y) in enumerate(batches):
        if step in (warm_up, warm_up + steps):
            torch.cuda.synchronize()
            if step > warm_up:
                break
            began = time.perf_counter()
        x = x.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, enabled=trial.precision == "bfloat16"):
            value = loss(network.head(network.backbone(x)), y)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return (time.perf_counter() - began) / steps * (len(dataset.train) // BATCH)


def _resident_batches(split: data.Split) -> Iterator[tuple[Tensor, Tensor]]:
    resident = split.to("cuda")
    while True:
        for i in torch.randperm(len(resident), device="cuda").split(BATCH):
            if len(i) == BATCH:
                yield data.augment(resident.inputs[i], padding=4, flip=0.5).float() / 255, resident.target[i]


def _loaded_batches(split: data.Split) -> Iterator[tuple[Tensor, Tensor]]:
    loader = torch.utils.data.DataLoader(
        Samples(split), BATCH, shuffle=True, drop_last=True, num_workers=8, persistent_workers=True, pin_memory=True
    )
    while True:
        for x, y in loader:
            yield x.cuda(non_blocking=True), y.cuda(non_blocking=True)


def packed(trial: Trial, size: int, steps: int) -> float:
    """Seconds per model and epoch of a pack, after the first epoch of every trial, including evaluations."""
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
        # every step is told, so that what is done when the clock starts is known
        for event in run_trials(trials, Placement(Path(folder), "cuda", pack=size, report_seconds=0.0)):
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
        return seconds / (size * trial.schedule.epochs - done)


def cifar_like(folder: Path, samples: int, epochs: int = 6, precision: str = "bfloat16") -> Trial:
    """A training on random images of the shape of CIFAR-10, kept in a folder."""
    return Trial(
        data=DataChoice(str(images(folder, samples))),
        schedule=Schedule(epochs=epochs),
        augmentation=Augmentation(crop=4, flip=True),
        batch_size=BATCH,
        precision=precision,
        evaluations=1,
    )


def compare(options: argparse.Namespace, console: Console) -> Iterator[Row]:
    """One row per model and way to train it, as soon as it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        trial = cifar_like(Path(folder), options.samples, options.epochs, options.precision)
        dataset = load_data(trial.data)
        for name in options.models.split(","):
            model = dataclasses.replace(trial, model=ModelChoice(name)).resolved()
            usual, slow = (plain_loop(model, dataset, options.loop_steps, on_device=where) for where in (True, False))

            def row(what: str, seconds: float, name: str = name, usual: float = usual, slow: float = slow) -> Row:
                return {
                    "model": name,
                    "what": what,
                    "seconds_per_model_epoch": round(seconds, 3),
                    "times_dataloader_loop": round(slow / seconds, 1),
                    "times_gpu_data_loop": round(usual / seconds, 1),
                }

            yield row("plain loop, data on the GPU", usual)
            yield row("plain loop, DataLoader", slow)
            for size in (int(n) for n in options.packs.split(",")):
                yield row(f"lastlayer, pack of {size}", packed(model, size, options.samples // BATCH))


def agreement(options: argparse.Namespace, console: Console) -> Iterator[Row]:
    """One row per way to train: mean and standard deviation over five seeds of what was measured."""
    trial = Trial(
        data=DataChoice(options.data),
        model=ModelChoice(options.models.split(",")[0]),
        schedule=Schedule(epochs=options.epochs),
        augmentation=Augmentation(crop=4, flip=True),
        batch_size=BATCH,
        evaluations=1,
    )
    dataset = load_data(trial.data, options.data_root)
    seeds = [dataclasses.replace(trial, seed=seed).resolved() for seed in range(5)]
    low = [dataclasses.replace(one, precision=options.precision).resolved() for one in seeds]
    with tempfile.TemporaryDirectory() as folder:
        plan, alone = Placement(Path(folder) / "packed", "cuda"), Placement(Path(folder) / "alone", "cuda")
        for trials, where in ((low, plan), (low[:1], alone)):
            for event in run_trials(trials, where, dataset):
                if event.kind == "failed":
                    raise RuntimeError(event.message)
        results = {f"packed, {options.precision}": [plan.folder(one).result() for one in low]}
        ours, theirs = (where.folder(low[0]).tensors("weights") for where in (plan, alone))
        apart = max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)
        console.print(f"seed 0 in the pack and alone: largest difference of a weight {apart:g}")
    with ProcessPoolExecutor(len(seeds), multiprocessing.get_context("spawn")) as processes:
        results["plain, float32"] = list(processes.map(plainly, seeds, [options.data_root] * len(seeds)))
    for what, found in results.items():
        for part, measure in (("test", "accuracy"), ("train", "accuracy"), ("train", "nc1"), ("train", "intra_mean")):
            values = [result["measures"][part][measure] for result in found]
            row: Row = {"what": what, "measure": f"{part} {measure}"}
            row |= {"mean": round(statistics.mean(values), 5), "deviation": round(statistics.stdev(values), 5)}
            yield row | {f"seed_{i}": round(value, 5) for i, value in enumerate(values)}


def plainly(trial: Trial, data_root: Path | None) -> dict[str, Any]:
    """The result of a trial without compiled kernels or graphs."""
    return finish_fit(fit(trial, device="cuda", data_root=data_root))


def show(rows: Iterator[Row], console: Console, path: Path | None) -> None:
    """Print rows as they come, and write them to a file if one is given. So a run that is interrupted loses none."""
    console.print(describe_machine())
    kept = []
    for row in rows:
        kept.append(row)
        console.print(*row.values(), sep="  ")
        if path is not None:
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, kept[0])
                writer.writeheader()
                writer.writerows(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet20")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--loop-steps", type=int, default=400, help="steps of the ordinary loops that are timed")
    parser.add_argument("--packs", default="1,8")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    console = Console()
    show((agreement if options.agreement else compare)(options, console), console, options.csv)


if __name__ == "__main__":
    main()
