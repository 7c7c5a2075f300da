"""`lastlayer bench`: time and memory of the losses on this machine at given sizes. Tests: tests/cli/test_bench.py."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer._core.progress import bars
from lastlayer.cli._say import check_writable

if TYPE_CHECKING:
    from rich.console import Console

    from lastlayer.cli._bench_steps import Inputs

DEVICES, DTYPES = ("auto", "cpu", "cuda"), ("float32", "bfloat16")
BUFFERS = 8  # N x K in float32 at once: logits, cosines and a teacher's as inputs, five at the peak of kd
LAYERS = 6  # (N + K) x d in float32: features and weight, their unit rows for losses on cosines, both gradients


@dataclass
class Timing:
    """One loss; None for what was not measured. Ratios are ours to the peer's: below 1, ours takes less."""

    loss: str
    milliseconds: float | None = None
    cross_entropy_milliseconds: float | None = None
    time_ratio: float | None = None
    linear_milliseconds: float | None = None
    dense_milliseconds: float | None = None
    linear_time_ratio: float | None = None
    linear_mebibytes: float | None = None
    dense_mebibytes: float | None = None
    linear_memory_ratio: float | None = None
    path: str | None = None
    why: str = ""


def bench(
    samples: Annotated[int, typer.Option(help="Samples per batch, N.", min=1)] = 256,
    features: Annotated[int, typer.Option(help="Width of the features, d.", min=1)] = 512,
    classes: Annotated[int, typer.Option(help="Classes, K.", min=1)] = 1000,
    loss: Annotated[str, typer.Option(help="Names separated by commas, or all.")] = "all",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="dtype of logits, features and weight: float32 or bfloat16.")] = "float32",
    seconds: Annotated[
        float, typer.Option(help="About how long to time all losses together; each takes at least three turns.", min=0)
    ] = 10.0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write machine and rows to it.", show_default=False),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows to it.", show_default=False)
    ] = None,
) -> None:
    """How fast are the losses on this machine at your sizes, and which path will linear_loss take?

    Every time is that of forward and backward: the shortest of several turns, taken in turn with a peer in the same
    run. On logits (N, K) the peer is torch.nn.functional.cross_entropy. For linear_loss the peer is the dense form:
    the loss on features @ weight.T, which holds all logits. Memory is the peak above the inputs, gradients included. A
    ratio below 1 says that ours takes less. large-margin makes its logits itself: there cross_entropy gets the product
    too.

    If all logits would take more memory than is free, only linear_loss is timed.
    """
    for option, file in (("--json", json_file), ("--csv", csv_file)):
        if file is not None:
            check_writable(option, file)
    for option, value, known in (("--device", device, DEVICES), ("--dtype", dtype, DTYPES)):
        if value not in known:
            raise ValueError(f"{option} must be {', '.join(known[:-1])} or {known[-1]}, got {value!r}")
    names = names_of(loss)

    import torch
    from rich.console import Console

    from lastlayer.cli._bench_steps import Inputs
    from lastlayer.cli.doctor import advice_on_threads, threads_here
    from lastlayer.runners import resolve_device
    from lastlayer.training.machine import machine_in_words

    device = resolve_device(device)
    too_large = excess(samples, features, classes, device)
    machine = machine_in_words()
    console = Console()
    for sentence in [machine, *(advice_on_threads(threads_here()) if device == "cpu" else []), too_large]:
        if sentence:
            console.print(sentence, highlight=False, soft_wrap=True)

    inputs = Inputs(samples, features, classes, device, getattr(torch, dtype))
    rows = list(measure_all(names, inputs, seconds, all_logits=not too_large))
    sizes = {"samples": samples, "features": features, "classes": classes, "device": device, "dtype": dtype}
    print_rows(console, rows, sizes)
    if json_file is not None:
        content = {"machine": machine, **sizes, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, [*sizes, *(field.name for field in fields(Timing))])
            writer.writeheader()
            writer.writerows({**sizes, **asdict(row)} for row in rows)


def names_of(text: str) -> list[str]:
    """The losses that were asked for, each once."""
    from lastlayer import losses

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("--loss names no loss: give names separated by commas, or all")
    return losses.available() if names == ["all"] else [losses.entry(name).name for name in names]


def excess(n: int, d: int, k: int, device: str) -> str:
    """Why all logits do not fit in the free memory, or ""; ValueError if not even the layer fits."""
    from lastlayer._core.memory import free_memory

    free, layer, logits = free_memory(device), 4 * LAYERS * (n + k) * d, 4 * BUFFERS * n * k
    if layer > free:
        raise ValueError(
            f"a layer of {d} features and {k} classes with {n} samples takes about {_gib(layer)} with its gradients, "
            f"but {_gib(free)} are free on {device}: choose smaller sizes"
        )
    if layer + logits <= free:
        return ""
    return (
        f"{n} x {k} logits and what is made of them take about {_gib(logits)}, but {_gib(free)} are free on {device}: "
        "the losses on logits and the dense peer are left out"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def measure_all(names: list[str], inputs: Inputs, seconds: float, *, all_logits: bool) -> Iterator[Timing]:
    """One row per loss, with a bar in a terminal while it is measured."""
    with bars(refresh=False) as bar:  # a thread that draws would be timed along with the steps
        task = bar.add_task("", total=2 * len(names))
        for name in names:
            row = Timing(name)
            for what, fill in (("on logits", _measure_logits), ("linear_loss", _measure_layer)):
                bar.update(task, description=f"{name}: {what}", refresh=True)
                fill(row, inputs, seconds / (2 * len(names)), all_logits)
                bar.advance(task)
            yield row


def _measure_logits(row: Timing, inputs: Inputs, budget: float, all_logits: bool) -> None:
    from lastlayer._core.timing import Stopwatch, measure_both, training_step
    from lastlayer.cli._bench_steps import on_logits

    if not all_logits:
        return
    leaves, ours, peer = on_logits(row.loss, inputs)
    step, peer_step = training_step(ours, leaves), training_step(peer, leaves)
    found = measure_both(step, peer_step, inputs.device, budget, watch=Stopwatch(time.perf_counter, min))
    row.milliseconds = _number(1e3 * found.seconds)
    row.cross_entropy_milliseconds = _number(1e3 * found.peer_seconds)
    row.time_ratio = _number(found.seconds / found.peer_seconds)


def _measure_layer(row: Timing, inputs: Inputs, budget: float, all_logits: bool) -> None:
    from lastlayer._core.timing import Stopwatch, measure_both, training_step
    from lastlayer.cli._bench_steps import on_layer, on_whole_layer
    from lastlayer.linear_loss import plan
    from lastlayer.linear_loss.plan import class_of, of_teacher

    if needed := of_teacher(class_of(row.loss)):
        row.why = f"linear_loss has no place for {needed}"
        return
    chosen = plan(inputs.n, inputs.d, inputs.k, row.loss, device=inputs.device)
    row.path, row.why = chosen.path, chosen.why
    if not all_logits and chosen.path == "dense":
        return
    leaves, call = [inputs.features, inputs.weight], on_layer(row.loss, inputs)
    step = training_step(lambda h, w: call(h, w, chosen), leaves)
    dense = training_step(on_whole_layer(row.loss, inputs), leaves) if all_logits else None
    found = measure_both(step, dense, inputs.device, budget, watch=Stopwatch(time.perf_counter, min))
    row.linear_milliseconds = _number(1e3 * found.seconds)
    row.dense_milliseconds = _number(1e3 * found.peer_seconds)
    row.linear_time_ratio = _number(found.seconds / found.peer_seconds)
    row.linear_mebibytes = _number(found.bytes / 2**20)
    row.dense_mebibytes = _number(found.peer_bytes / 2**20)
    row.linear_memory_ratio = _number(found.bytes / found.peer_bytes)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def print_rows(console: Console, rows: list[Timing], sizes: dict[str, Any]) -> None:
    """Print the table, and below it why each path was chosen."""
    from lastlayer.linear_loss.plan import SMALL
    from lastlayer.reports.text import Layout, PrintedColumn, print_table

    numbers = {
        "on\nlogits\nms": [_short(row.milliseconds) for row in rows],
        "/ cross\nentropy": [_ratio(row.time_ratio) for row in rows],
        "linear\nloss\nms": [_short(row.linear_milliseconds) for row in rows],
        "/ dense\ntime": [_ratio(row.linear_time_ratio) for row in rows],
        "linear\nloss\nMiB": [_short(row.linear_mebibytes) for row in rows],
        "/ dense\nmemory": [_ratio(row.linear_memory_ratio) for row in rows],
    }
    columns = [
        PrintedColumn("loss", [row.loss for row in rows], whole=True),
        *(PrintedColumn(head, cells, right=True, whole=True) for head, cells in numbers.items()),
        PrintedColumn("path", [row.path or "-" for row in rows], whole=True),
    ]
    title = "{samples} samples, {features} features, {classes} classes, {dtype} on {device}".format(**sizes)
    print_table(console, columns, layout=Layout(title))
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        reasons.setdefault(row.path or "-", {}).setdefault(row.why, []).append(row.loss)
    for path, found in reasons.items():
        for why, losses in found.items():
            who = f" ({', '.join(losses)})" if len(found) > 1 else ""
            console.print(f"{path}: {why}{who}", highlight=False, soft_wrap=True)
    if all(row.path in ("dense", None) for row in rows):
        few = f"at {sizes['samples']} samples it takes all logits at once up to {SMALL // sizes['samples']} classes"
        console.print(f"linear_loss: {few}", highlight=False, soft_wrap=True)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _short(value: float | None) -> str:
    """Three digits.

    Example:
        >>> _short(0.1234), _short(1.234), _short(12.34), _short(1234.5), _short(None)
        ('0.123', '1.23', '12.3', '1234', '-')
    """
    if value is None:
        return "-"
    return f"{value:.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"
