"""`lastlayer bench`: time and memory of the losses at given sizes. `benchmarks/` times the same steps."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastlayer._core.progress import bars
from lastlayer.cli._say import check_writable

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from torch import Tensor

    from lastlayer._core.timing import Both
    from lastlayer.linear_loss import Plan
    from lastlayer.losses import Loss, Target

    OfTensors = Callable[..., Tensor]

DEVICES, DTYPES = ("auto", "cpu", "cuda"), ("float32", "bfloat16")
BUFFERS = 8  # N x K in float32 at once: logits, cosines and a teacher's as inputs, five at the peak of kd
LAYERS = 6  # (N + K) x d in float32: features and weight, their unit rows for losses on cosines, both gradients


# One loss, as JSON and CSV have it: None for what was not measured. A ratio below 1 says that ours takes less.
Row = dict[str, Any]
FIELDS = (
    "loss", "milliseconds", "cross_entropy_milliseconds", "time_ratio", "linear_milliseconds", "dense_milliseconds",
    "linear_time_ratio", "linear_mebibytes", "dense_mebibytes", "linear_memory_ratio", "path", "why",
)  # fmt: skip


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
        Path | None, typer.Option("--json", metavar="FILE", help="Write machine and rows to it.", show_default=False)
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the rows to it.", show_default=False)
    ] = None,
) -> None:
    """How fast are the losses on this machine at your sizes, and which path will linear_loss take?

    A time is that of forward and backward. A loss and its peer take turns, and the shortest turn of each counts. On
    logits (N, K) the peer is torch.nn.functional.cross_entropy. For linear_loss the peer is the dense form: the loss on
    features @ weight.T, which holds all logits. Memory is the peak above the inputs, gradients included. A ratio below
    1 says that ours takes less. large-margin makes its logits itself, so there cross_entropy is timed with the product.

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
        content = {"machine": machine, **sizes, "rows": rows}
        json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, [*sizes, *FIELDS])
            writer.writeheader()
            writer.writerows({**sizes, **row} for row in rows)


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
    there = f"but {_gib(free)} are free on {device}"
    if layer > free:
        raise ValueError(
            f"a layer of {d} features and {k} classes with {n} samples takes about {_gib(layer)} with its gradients, "
            f"{there}: choose smaller sizes"
        )
    if layer + logits <= free:
        return ""
    return (
        f"{n} x {k} logits and what is made of them take about {_gib(logits)}, {there}: "
        "the losses on logits and the dense peer are left out"
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


class Inputs:
    """Inputs of N samples, d features and K classes, each drawn when it is first asked for.

    `kind` of target: "index", "pair" (two labels mixed) or "probabilities".
    """

    def __init__(self, n: int, d: int, k: int, device: str, dtype: torch.dtype, kind: str = "index") -> None:
        import torch

        self.n, self.d, self.k, self.device, self.dtype, self.kind = n, d, k, device, dtype, kind
        self.generator = torch.Generator(device).manual_seed(0)

    def _normal(self, *shape: int) -> Tensor:
        import torch

        return torch.randn(shape, generator=self.generator, device=self.device)

    def _labels(self) -> Tensor:
        import torch

        return torch.randint(self.k, (self.n,), generator=self.generator, device=self.device)

    @cached_property
    def target(self) -> Target:
        if self.kind == "probabilities":
            return self._normal(self.n, self.k).softmax(1).to(self.dtype)
        return (self._labels(), self._labels(), 0.7) if self.kind == "pair" else self._labels()

    @cached_property
    def logits(self) -> Tensor:  # (N, K)
        return self._normal(self.n, self.k).to(self.dtype).requires_grad_()

    @cached_property
    def teacher(self) -> Tensor:  # its logits, (N, K)
        return self._normal(self.n, self.k).to(self.dtype)

    @cached_property
    def cosines(self) -> Tensor:  # (N, K), as of random directions in 64 dimensions
        return (self._normal(self.n, self.k) / 8).clamp(-1, 1).to(self.dtype).requires_grad_()

    @cached_property
    def features(self) -> Tensor:  # (N, d)
        return self._normal(self.n, self.d).to(self.dtype).requires_grad_()

    @cached_property
    def weight(self) -> Tensor:  # (K, d); the logits are then of size 1
        return (self._normal(self.k, self.d) / math.sqrt(self.d)).to(self.dtype).requires_grad_()

    def loss(self, name: str) -> Loss:
        """The loss with its defaults; class counts, if it needs them, are all different."""
        import torch

        from lastlayer.losses import create_for

        return create_for(torch.arange(1, self.k + 1, device=self.device), name)


def on_logits(name: str, inputs: Inputs) -> tuple[list[Tensor], OfTensors, OfTensors]:
    """The leaves to differentiate, and as functions of them the loss on logits and torch's cross_entropy.

    If a loss takes features and weight, and so makes the logits itself, its peer is cross_entropy of their product.
    """
    import torch.nn.functional as F

    module, target = inputs.loss(name), inputs.target

    def peer(z: Tensor) -> Tensor:
        if isinstance(target, tuple):
            first, second, lam = target
            return lam * F.cross_entropy(z, first) + (1 - lam) * F.cross_entropy(z, second)
        return F.cross_entropy(z, target)

    if module.takes_layer:
        return [inputs.features, inputs.weight], lambda h, w: module(h, w, target), lambda h, w: peer(F.linear(h, w))
    first, *others = module.takes
    constants = [inputs.teacher if other == "teacher_logits" else inputs.features.detach() for other in others]
    return [inputs.cosines if first == "cosines" else inputs.logits], lambda z: module(z, *constants, target), peer


def on_layer(name: str, inputs: Inputs) -> Callable[[Tensor, Tensor, Plan], Tensor]:
    """linear_loss of features, weight and a plan. If the loss takes cosines, it gets directions, under autocast."""
    import torch

    from lastlayer.linear_loss import linear_loss

    module, target = inputs.loss(name), inputs.target
    cosines = module.takes == ("cosines",)

    def call(h: Tensor, w: Tensor, plan: Plan) -> Tensor:
        with torch.autocast(inputs.device, inputs.dtype, enabled=cosines and inputs.dtype is torch.bfloat16):
            return linear_loss(h, w, target, module, normalized=cosines, plan=plan)

    return call


def on_whole_layer(name: str, inputs: Inputs) -> OfTensors:
    """The dense form of features and weight as anyone would write it, with nothing that a compiler stumbles over."""
    import torch.nn.functional as F

    module, target = inputs.loss(name), inputs.target
    layer, cosines = module.takes_layer, module.takes == ("cosines",)

    def call(h: Tensor, w: Tensor) -> Tensor:
        if layer:
            return module(h, w, target)  # type: ignore[no-any-return]
        if cosines:
            h, w = F.normalize(h.float()).to(h.dtype), F.normalize(w.float()).to(w.dtype)
        return module(F.linear(h, w), target)  # type: ignore[no-any-return]

    return call


def measure_all(names: list[str], inputs: Inputs, seconds: float, *, all_logits: bool) -> Iterator[Row]:
    """One row per loss, with a bar in a terminal while it is measured."""
    with bars(refresh=False) as bar:  # a thread that draws would be timed along with the steps
        task = bar.add_task("", total=2 * len(names))
        for name in names:
            row = dict.fromkeys(FIELDS) | {"loss": name, "why": ""}
            for what, measured in (("on logits", _measure_logits), ("linear_loss", _measure_layer)):
                bar.update(task, description=f"{name}: {what}", refresh=True)
                row |= measured(name, inputs, seconds / (2 * len(names)), all_logits)
                bar.advance(task)
            yield {key: None if value != value else value for key, value in row.items()}  # NaN: it did not fit


def _measure_logits(name: str, inputs: Inputs, budget: float, all_logits: bool) -> Row:
    if not all_logits:
        return {}
    leaves, ours, peer = on_logits(name, inputs)
    found = _measure(leaves, ours, peer, inputs.device, budget)
    milliseconds = {"milliseconds": 1e3 * found.seconds, "cross_entropy_milliseconds": 1e3 * found.peer_seconds}
    return {**milliseconds, "time_ratio": found.seconds / found.peer_seconds}


def _measure_layer(name: str, inputs: Inputs, budget: float, all_logits: bool) -> Row:
    from lastlayer.linear_loss import plan
    from lastlayer.linear_loss.plan import class_of, of_teacher

    if needed := of_teacher(class_of(name)):
        return {"why": f"linear_loss has no place for {needed}"}
    chosen = plan(inputs.n, inputs.d, inputs.k, name, device=inputs.device)
    row = {"path": chosen.path, "why": chosen.why}
    if not all_logits and chosen.path == "dense":
        return row
    call, dense = on_layer(name, inputs), on_whole_layer(name, inputs) if all_logits else None
    leaves = [inputs.features, inputs.weight]
    found = _measure(leaves, lambda h, w: call(h, w, chosen), dense, inputs.device, budget)
    return row | {
        "linear_milliseconds": 1e3 * found.seconds,
        "dense_milliseconds": 1e3 * found.peer_seconds,
        "linear_time_ratio": found.seconds / found.peer_seconds,
        "linear_mebibytes": found.bytes / 2**20,
        "dense_mebibytes": found.peer_bytes / 2**20,
        "linear_memory_ratio": found.bytes / found.peer_bytes,
    }


def _measure(leaves: list[Tensor], ours: OfTensors, peer: OfTensors | None, device: str, budget: float) -> Both:
    from lastlayer._core.timing import Stopwatch, measure_both, training_step

    other = None if peer is None else training_step(peer, leaves)
    return measure_both(training_step(ours, leaves), other, device, budget, watch=Stopwatch(time.perf_counter, min))


def print_rows(console: Console, rows: list[Row], sizes: dict[str, Any]) -> None:
    """Print the table, and below it why each path was chosen."""
    from lastlayer.linear_loss.plan import SMALL
    from lastlayer.reports.text import Layout, PrintedColumn, print_table

    numbers = {
        "on\nlogits\nms": "milliseconds",
        "/ cross\nentropy": "time_ratio",
        "linear\nloss\nms": "linear_milliseconds",
        "/ dense\ntime": "linear_time_ratio",
        "linear\nloss\nMiB": "linear_mebibytes",
        "/ dense\nmemory": "linear_memory_ratio",
    }
    columns = [
        PrintedColumn("loss", [row["loss"] for row in rows], whole=True),
        *(
            PrintedColumn(head, [_cell(row, name) for row in rows], right=True, whole=True)
            for head, name in numbers.items()
        ),
        PrintedColumn("path", [row["path"] or "-" for row in rows], whole=True),
    ]
    title = "{samples} samples, {features} features, {classes} classes, {dtype} on {device}".format(**sizes)
    print_table(console, columns, layout=Layout(title))
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        reasons.setdefault(row["path"] or "-", {}).setdefault(row["why"], []).append(row["loss"])
    for path, found in reasons.items():
        for why, losses in found.items():
            who = f" ({', '.join(losses)})" if len(found) > 1 else ""
            console.print(f"{path}: {why}{who}", highlight=False, soft_wrap=True)
    if all(row["path"] in ("dense", None) for row in rows):
        few = f"at {sizes['samples']} samples it takes all logits at once up to {SMALL // sizes['samples']} classes"
        console.print(f"linear_loss: {few}", highlight=False, soft_wrap=True)


def _cell(row: Row, name: str) -> str:
    """A ratio with two decimals, another number with three digits.

    Example:
        >>> [_cell({"milliseconds": value}, "milliseconds") for value in (0.1234, 1.234, 12.34, 1234.5, None)]
        ['0.123', '1.23', '12.3', '1234', '-']
    """
    value = row[name]
    if value is None:
        return "-"
    decimals = 2 if "ratio" in name or 1 <= value < 10 else 3 if value < 1 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
