"""Every loss compared with `torch.nn.functional.cross_entropy`: time and peak memory of forward and backward, as
ratios.

    python benchmarks/losses.py [--quick] [--only sln,bce] [--target pair] [--dtype bfloat16] [--json FILE]

A loss and its peer take turns in the same run, on the same logits. A time is the median over many turns after a
warm-up, by CUDA events on a GPU and by the CPU seconds of the process on a CPU. Memory is the peak above the inputs,
gradients included. On a GPU torch's allocator counts it. On a CPU it is the running sum of what torch's profiler sees,
compiled code included. `extra` is the memory that a loss holds at its peak beyond its peer, in buffers of N x K.

large-margin makes the logits itself. So its peer is cross-entropy, together with the product that makes them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from common import describe_machine, options_of_losses, write_json
from lastlayer import losses
from lastlayer._core.timing import peak_memory, time_in_turn, training_step
from lastlayer.cli.bench import Inputs, on_logits

SHAPES = {
    "cpu": [(4096, 10), (1024, 1000), (256, 32768)],
    "cuda": [(65536, 10), (16384, 1000), (8192, 32768)],
}
QUICK_SHAPES = {"cpu": [(512, 10), (64, 1000)], "cuda": [(4096, 10), (1024, 1000)]}
DIM = 64  # width of the features where a loss needs them


@dataclass
class Row:
    """One loss on one device, one shape, eager or compiled, beside cross_entropy."""

    loss: str
    device: str
    mode: str
    n: int
    k: int
    milliseconds: float
    peer_milliseconds: float
    time_ratio: float
    buffers: float
    peer_buffers: float
    memory_ratio: float
    extra: float


def main() -> None:
    parser = options_of_losses(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="one device; default: every one present")
    parser.add_argument("--mode", choices=["eager", "compiled"], help="one mode; default: both")
    parser.add_argument("--target", choices=["index", "probabilities", "pair"], default="index")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16", "float64"], default="float32")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    names = options.only.split(",") if options.only else losses.available()
    for name in names:
        losses.entry(name)
    present = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    rows = []
    console = Console(width=140)
    console.print(describe_machine())
    for device in [options.device] if options.device else present:
        for mode in [options.mode] if options.mode else ["eager", "compiled"]:
            found = list(measure_all(names, device, mode, options))
            rows += found
            console.print(as_table(found, f"{device}, {mode}, {options.target} targets, {options.dtype}"))
    if options.json:
        write_json(options.json, rows)


def measure_all(names: list[str], device: str, mode: str, options: argparse.Namespace) -> Iterator[Row]:
    for n, k in (QUICK_SHAPES if options.quick else SHAPES)[device]:
        inputs = Inputs(n, DIM, k, device, getattr(torch, options.dtype), options.target)
        for name in names:
            if name == "batch-max-margin" and options.target == "probabilities":
                continue  # it has no such target
            torch.compiler.reset()
            leaves, loss, peer = on_logits(name, inputs)
            if mode == "compiled":
                loss, peer = (torch.compile(f, fullgraph=True, dynamic=False) for f in (loss, peer))
            step, peer_step = training_step(loss, leaves), training_step(peer, leaves)
            for _ in range(3):
                step()
                peer_step()
            budget = 0.2 if options.quick else 1.0
            seconds, peer_seconds = time_in_turn(step, peer_step, device, budget, turns=(10, 500))
            buffer = n * k * inputs.dtype.itemsize
            bytes_, peer_bytes = peak_memory(step, device), peak_memory(peer_step, device)
            yield Row(
                name,
                device,
                mode,
                n,
                k,
                1e3 * seconds,
                1e3 * peer_seconds,
                seconds / peer_seconds,
                bytes_ / buffer,
                peer_bytes / buffer,
                bytes_ / peer_bytes,
                (bytes_ - peer_bytes) / buffer,
            )


def as_table(rows: list[Row], title: str) -> Table:
    table = Table(title=title)
    for heading in ("loss", "N x K", "ms", "cross_entropy ms", "time ratio", "peak, N x K", "memory ratio", "extra"):
        table.add_column(heading, justify="left" if heading == "loss" else "right")
    for row in rows:
        table.add_row(
            row.loss,
            f"{row.n} x {row.k}",
            f"{row.milliseconds:.3f}",
            f"{row.peer_milliseconds:.3f}",
            f"{row.time_ratio:.2f}",
            f"{row.buffers:.2f}",
            f"{row.memory_ratio:.2f}",
            f"{row.extra:+.2f}",
        )
    return table


if __name__ == "__main__":
    main()
