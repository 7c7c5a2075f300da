"""linear_loss compared with the loss on all logits: time and peak memory of forward and backward, as ratios.

    python benchmarks/linear_loss.py [--quick] [--only sln,bce] [--device cpu] [--dtype bfloat16] [--path rows]
                                     [--shape N,d,K] [--compiled all] [--graphs] [--narrow 1] [--csv FILE]

Ours and its peers take turns in the same run, on the same inputs. A time is the median over many turns after a warm-up.
On a CPU a turn is one step, in CPU seconds of the process. On a GPU a turn has as many steps as take about 20 ms, but
at least three, between two CUDA events. So the CPU runs ahead of the GPU as it does in a training. Memory is the peak
above the inputs, gradients included. On a GPU torch's allocator counts it. On a CPU it is the running sum of what
torch's profiler sees.

Peers, on the logits F.linear(features, weight):
    eager      the same loss of the library, with all logits held at once
    compiled   the same under torch.compile, for the losses named by --compiled
    torch      torch.nn.functional.linear_cross_entropy, if this torch has it; for ce
    liger      liger_kernel's fused linear cross-entropy, if it is installed; for ce
    cce        cut_cross_entropy's linear_cross_entropy, if it is installed; for ce

A ratio below 1 says that linear_loss takes less. `floor` is our time relative to three matrix products of size N d K. A
loss with a full gradient needs all three. The margin losses need one of them, and mse of labels needs none. arc-margin,
on normalized features and weight, runs under autocast. large-margin multiplies in float32 by its definition. With
--graphs, the CSV also has the time of each step as a CUDA graph, which does not wait for the CPU.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from common import describe_machine, options_of_losses, write_json
from lastlayer import losses
from lastlayer._core.timing import measure_both, replay_seconds, seconds_of_both, training_step
from lastlayer.cli.bench import Inputs, on_layer, on_whole_layer
from lastlayer.linear_loss import Plan, plan
from lastlayer.losses.forms import DrawnForm, SquaresForm

Shape = tuple[int, int, int]  # N, d, K
SHAPES: dict[str, list[Shape]] = {
    "cpu": [(4096, 64, 8192), (64, 128, 300_000)],
    "cuda": [(8192, 512, 1000), (8192, 2048, 32768), (8192, 4096, 131072), (256, 512, 1_000_000)],
}
QUICK_SHAPES: dict[str, list[Shape]] = {"cpu": [(512, 32, 1000), (32, 32, 20000)], "cuda": [(4096, 512, 8192)]}
NAMES = [name for name in losses.available() if not losses.entry(name).module.needs_teacher]


@dataclass
class Row:
    """One loss at one shape, beside one peer."""

    loss: str
    device: str
    dtype: str
    n: int
    d: int
    k: int
    path: str
    peer: str
    milliseconds: float
    peer_milliseconds: float
    time_ratio: float
    floor_ratio: float
    mebibytes: float
    peer_mebibytes: float
    memory_ratio: float
    replay_milliseconds: float  # as a CUDA graph, where --graphs asks for it
    peer_replay_milliseconds: float


def main() -> None:
    parser = options_of_losses(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="cuda if there is one, else cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: bfloat16 on a GPU, float32 on a CPU")
    parser.add_argument("--path", choices=["rows", "classes"], help="take this path and not the plan's")
    parser.add_argument("--shape", help="N,d,K instead of the list")
    parser.add_argument("--compiled", default="", help="losses, or all, whose peer under torch.compile is timed too")
    parser.add_argument("--graphs", action="store_true", help="on a GPU, also the time of each step as a CUDA graph")
    parser.add_argument("--narrow", type=int, help="fewest classes for kernels, in place of the plan's bound")
    parser.add_argument("--seconds", type=float, help="how long to time each pair")
    parser.add_argument("--csv", metavar="FILE", help="write the rows there, as they come")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    options.seconds = options.seconds or (0.1 if options.quick else 2.0)
    if options.narrow is not None:
        sys.modules[plan.__module__].NARROW = options.narrow  # type: ignore[attr-defined]
    names = names_of(options.only or "all", parser)
    options.compiled = names_of(options.compiled, parser) if options.compiled else []
    console = Console(width=150)
    console.print(describe_machine())
    rows: list[Row] = []
    shapes = (QUICK_SHAPES if options.quick else SHAPES)[options.device]
    if options.shape:
        shapes = [shape_of(options.shape, parser)]
    for shape in shapes:
        before = len(rows)
        for row in measure(names, shape, options):
            rows.append(row)
            if options.csv:
                write_csv(options.csv, rows)
        title = f"{options.device}, {options.dtype}, N = {shape[0]}, d = {shape[1]}, K = {shape[2]}"
        console.print(as_table(rows[before:], title))
    if options.json:
        write_json(options.json, rows)


def names_of(given: str, parser: argparse.ArgumentParser) -> list[str]:
    names = NAMES if given == "all" else given.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no loss {unknown[0]!r} to measure; there are {', '.join(NAMES)}")
    return names


def shape_of(given: str, parser: argparse.ArgumentParser) -> Shape:
    sizes = given.split(",")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        parser.error(f"--shape wants three positive numbers N,d,K, got {given!r}")
    n, d, k = map(int, sizes)
    return n, d, k


def write_csv(path: str, rows: list[Row]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        for row in rows:
            rounded = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            writer.writerow(rounded)


def measure(names: list[str], shape: Shape, options: argparse.Namespace) -> Iterator[Row]:
    device = options.device
    inputs = Inputs(*shape, device, getattr(torch, options.dtype))
    leaves = [inputs.features, inputs.weight]
    floor = seconds_of_products(inputs.features.detach(), inputs.weight.detach(), device, options.seconds)
    for name in names:
        chosen = plan_to_measure(options.path, shape, name, options.quick, device)
        if chosen is None:
            continue
        layer = on_layer(name, inputs)
        step = training_step(lambda h, w, call=layer, plan=chosen: call(h, w, plan), leaves)
        peers: dict[str, Callable[..., Tensor] | str] = {
            "eager": lambda h, w, call=layer: call(h, w, Plan("dense", "peer"))
        }
        if name in options.compiled:
            torch.compiler.reset()
            peers["compiled"] = torch.compile(on_whole_layer(name, inputs), dynamic=False)
        if name == "ce":
            peers |= other_libraries(inputs.target, device)
        for peer, function in peers.items():
            if isinstance(function, str):
                print(f"{peer}: {function}")
                continue
            other = training_step(function, leaves)
            found = measure_both(step, other, device, options.seconds)
            replayed = [math.nan, math.nan]
            if options.graphs and device == "cuda":
                sides = ((step, found.bytes), (other, found.peer_bytes))
                replayed = [math.nan if math.isnan(held) else replay_seconds(one) for one, held in sides]
            yield Row(
                name,
                device,
                options.dtype,
                *shape,
                chosen.path,
                peer,
                1e3 * found.seconds,
                1e3 * found.peer_seconds,
                found.seconds / found.peer_seconds,
                found.seconds / floor,
                found.bytes / 2**20,
                found.peer_bytes / 2**20,
                found.bytes / found.peer_bytes,
                1e3 * replayed[0],
                1e3 * replayed[1],
            )


def other_libraries(target: Tensor, device: str) -> dict[str, Callable[..., Tensor] | str]:
    """Fused cross-entropy of other libraries; for one that cannot be used, the reason."""
    found: dict[str, Callable[..., Tensor] | str] = {"torch": f"torch {torch.__version__} has no linear_cross_entropy"}
    if hasattr(F, "linear_cross_entropy"):
        found["torch"] = lambda h, w: F.linear_cross_entropy(h, w, target)
    if device != "cuda":
        return found | {"liger": "needs a GPU", "cce": "needs a GPU"}
    try:
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Liger

        def liger(h: Tensor, w: Tensor) -> Tensor:
            value = Liger.apply(h, w, target)
            return value[0] if isinstance(value, tuple) else value

        found["liger"] = liger
    except ImportError as error:
        found["liger"] = f"not installed ({error})"
    try:
        from cut_cross_entropy import linear_cross_entropy

        found["cce"] = lambda h, w: linear_cross_entropy(h, w, target)
    except ImportError as error:
        found["cce"] = f"not installed ({error})"
    return found


def plan_to_measure(path: str | None, shape: Shape, name: str, quick: bool, device: str) -> Plan | None:
    """The library's own plan, or the path asked for. None if the loss has no such path.

    The library would compute the small shapes of a quick run whole. Such a run takes the path of the same proportions.
    """
    n, _, k = shape
    if path is None and not quick:
        return plan(*shape, name, device=device)
    form = losses.entry(name).module.class_form
    tiled = form is not None and not isinstance(form, DrawnForm)
    if path == "classes" and not tiled:
        return None
    if path == "classes" or (path is None and tiled and (n < 100 or isinstance(form, SquaresForm))):
        return Plan("classes", "asked for", classes=max(1, min(2**24 // n, k // 4)))
    return Plan("rows", "asked for", rows=max(1, min(2**26 // k, n // 4)))


def seconds_of_products(features: Tensor, weight: Tensor, device: str, budget: float) -> float:
    """Seconds of the three products alone: the logits, and from their gradient that of the features and the weight.

    They run in blocks of rows, so that the floor needs no N x K matrix either.
    """
    rows = min(features.shape[0], max(256, 2**27 // weight.shape[0]))
    block = features[:rows]
    logits = block @ weight.T

    def step() -> None:
        torch.mm(block, weight.T, out=logits)
        torch.mm(logits, weight)
        torch.mm(logits.T, block)

    return seconds_of_both(step, lambda: None, device, budget)[0] * features.shape[0] / rows


def as_table(rows: list[Row], title: str) -> Table:
    table = Table(title=title)
    for heading in ("loss", "path", "peer", "ms", "peer ms", "time ratio", "floor", "MiB", "peer MiB", "memory ratio"):
        table.add_column(heading, justify="left" if heading in ("loss", "path", "peer") else "right")
    for row in rows:
        numbers: list[Any] = [row.milliseconds, row.peer_milliseconds, row.time_ratio, row.floor_ratio]
        numbers += [row.mebibytes, row.peer_mebibytes, row.memory_ratio]
        table.add_row(row.loss, row.path, row.peer, *(f"{number:.2f}" for number in numbers))
    return table


if __name__ == "__main__":
    main()
