"""Candidate kernels for 3x3 convolutions of few channels against cuDNN, alone and in training steps, on a GPU.

    python benchmarks/convolutions/bench.py --limit 44

from the repository root, with lastlayer installed or PYTHONPATH=src; whatever does not fit into the limit (seconds of
everything, imports and compiling included) is left out and named. Tests: python -m pytest -o addopts=
benchmarks/convolutions. Measured, for the convolutions of a ResNet-20 at batch 128 in bfloat16:

- of every tile of every kernel the relative error against float32, and microseconds alone and with eight groups, by
  eight; the fastest of eight groups that is right is taken (time_kernels.py);
- the bits of a group alone and among eight, in both layouts, and of the same call again;
- microseconds of forward, input gradient and weight gradient in a CUDA graph: cuDNN's, ours for one group, and ours for
  eight, by eight, with groups beside each other (G=8) and one after the other (major); their sums over the network;
- seconds of an epoch of 390 captured, compiled steps of one model (time_steps.py): `cudnn` as lastlayer trains a pack
  today, a graph and a stream for each of eight models; `ours` the same with these kernels; `stacked` and `major` eight
  models as one network, of which two run at once. Beside them the losses of the first steps (mean over the models of
  the first network; `cudnn` and `ours` begin with the same one), tensors copied to another layout, graphs compiled (one
  is meant), and where the time of a step of `stacked` goes.

These kernels are candidates. lastlayer does not use them, and does not until they win. To be adopted,

- no line may say WRONG, BITS DIFFER or FAILED: lastlayer gives a model the same bits alone and in a pack;
- no tensor may be copied, and the losses must follow cuDNN's;
- `ours`, `stacked` or `major` must take clearly fewer seconds an epoch than `cudnn` on eight streams, by the ratio
  printed at the end, in more than one run. Kernels that are faster alone decide nothing: in a pack other models fill
  the gaps already;
- for `stacked` and `major` the gain must also pay for what they ask: models of one shape that step together, and a
  stacked form of every network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEGAN = time.time()
STEPS = Path(__file__).resolve().parent / "time_steps.py"
NAMES = ("stacked", "cudnn", "ours", "major")  # in the order in which they start to compile
Processes = dict[str, "subprocess.Popen[bytes]"]


def section(name: str, function: Callable[..., None], *args: Any) -> None:
    """Sections fail alone, with a traceback."""
    print(f"--- {name} [{time.time() - BEGAN:.1f} s]")
    try:
        function(*args)
    except Exception:
        print(f"FAILED {name} [{time.time() - BEGAN:.1f} s]\n{traceback.format_exc(limit=-6)[-1800:]}")


def start(names: list[str], folder: Path, until: float) -> Processes:
    """A process for each kind of step; all compile at once."""
    running = {}
    for name in names:
        with open(folder / f"{name}.log", "wb") as log:
            command = [sys.executable, str(STEPS), name, str(folder), str(until)]
            running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    return running


def time_kernels_alone(folder: Path, limit: float) -> None:
    """In this process, meanwhile; the tiles found best are left for the others."""
    choices: dict[Any, int] = {}
    try:
        import time_kernels as tk  # and torch, which the processes that were started import at the same time

        section("compile", tk.compile_all, 0.36 * limit)
        tk.prepare()
        section("candidates against float32, us alone / with 8 groups by 8", tk.tune, choices, BEGAN + 0.4 * limit)
        section("bits", tk.check_groups, BEGAN + 0.5 * limit)
        section("kernels", tk.table, BEGAN + 0.6 * limit)
        tk.release()
    finally:
        part = folder / "choices.part"
        part.write_text(json.dumps([[*key, i] for key, i in choices.items()]))
        part.rename(folder / "choices.json")


def take_turns(running: Processes, folder: Path, until: float) -> None:
    """Let each process have the GPU for itself, in the order in which they are ready."""
    waiting = list(running)
    while waiting and time.time() < until:
        ready = [name for name in waiting if (folder / f"{name}.ready").exists()]
        if ready:
            waiting.remove(ready[0])
            (folder / f"{ready[0]}.go").touch()
            done = folder / f"{ready[0]}.done"
            while not done.exists() and running[ready[0]].poll() is None and time.time() < until:
                time.sleep(0.02)
        else:
            waiting = [name for name in waiting if running[name].poll() is None]
            time.sleep(0.02)


def report(running: Processes, folder: Path) -> None:
    found = {}
    for name, process in running.items():
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text())
        if not (folder / f"{name}.done").exists():
            where = "" if (folder / f"{name}.ready").exists() else "not ready, "
            end = (folder / f"{name}.log").read_text()[-900:].replace("\n", "\n    ")
            print(f"  {name}: not finished ({where}exit {process.poll()})\n    {end}")
    print("seconds of an epoch (390 steps) of one model")
    peer = found.get("cudnn", {}).get("seconds", {}).get("8 streams")
    for name, one in found.items():
        seconds = one.pop("seconds")
        print(f"  {name}:", ", ".join(f"{how} {s:.4f}" for how, s in seconds.items()), "  ", one)
        if peer and name != "cudnn":
            print(f"    {peer / min(seconds.values()):.2f} times as fast as cudnn on 8 streams")


def profile(process: subprocess.Popen[bytes], folder: Path, until: float) -> None:
    """The process called stacked prints it, once all have been timed."""
    (folder / "stacked.profile").touch()
    try:
        process.wait(max(0.5, until - time.time()))
    except subprocess.TimeoutExpired:
        print("out of time")
    print((folder / "stacked.log").read_text()[-2600:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=44.0, help="seconds of everything")
    parser.add_argument("--only", default=",".join(NAMES), help="the kinds of steps to time, separated by commas")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, for processes are forked from this one
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "5")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    until = BEGAN + given.limit
    with tempfile.TemporaryDirectory(prefix="convolutions", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        running = start(given.only.split(","), folder, until)
        try:
            time_kernels_alone(folder, given.limit)
            section("steps", take_turns, running, folder, until - 1)
            section("report", report, running, folder)
            if (folder / "stacked.done").exists() and time.time() < until - 4:
                section("profile", profile, running["stacked"], folder, until - 1)
        finally:
            for process in running.values():
                process.kill()
                process.wait()
    print(f"--- end [{time.time() - BEGAN:.1f} s]")


if __name__ == "__main__":
    main()
