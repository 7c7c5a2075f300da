"""What `lastlayer compare` costs on the embedded data: six losses, three seeds, with tuning and without.

    python benchmarks/compare.py [--only tuned|untuned] [--losses ce,sln] [--seeds 3] [--repeats 1]

Each command runs in a fresh process and an empty folder. Wall seconds are those that a user waits. They mean something
on an idle machine alone. CPU seconds are those of all processes of the command, with what the system does for them.
Other programs change these less. The goal is 45 s of wall time for the tuned command on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from common import describe_machine, write_json

GOAL = 45.0  # wall seconds
COMMANDS = {"tuned": ["--tune"], "untuned": ["--no-tune"]}


@dataclass(frozen=True)
class Row:
    """One command: how long it took, and how many trainings that were."""

    command: str
    wall_seconds: float
    cpu_seconds: float
    trainings: int
    epochs: int


def measured(name: str, losses: str | None, seeds: int) -> Row:
    """Run a command once in a folder of its own."""
    options = ["--seeds", str(seeds), *COMMANDS[name], *([] if losses is None else ["--losses", losses])]
    script = [sys.executable, "-c", "from lastlayer.cli import main; main()", "compare", *options]
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(script, cwd=folder, capture_output=True, text=True, check=False)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"{name}: exit code {done.returncode}\n{done.stderr}")
        trials = [json.loads(file.read_text()) for file in Path(folder).glob("runs/*/trial.json")]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Row(name, wall, cpu, len(trials), sum(trial["schedule"]["epochs"] for trial in trials))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=COMMANDS, help="one of the two commands")
    parser.add_argument("--losses", help="instead of the default ones")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="medians are shown")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine there")
    options = parser.parse_args()
    names = [options.only] if options.only else list(COMMANDS)
    load = os.getloadavg()[0]
    rows = [measured(name, options.losses, options.seeds) for name in names for _ in range(options.repeats)]
    table = Table("command", "wall s", f"of {GOAL:.0f} s", "CPU s", "trainings", "epochs")
    for name in names:
        same = [row for row in rows if row.command == name]
        wall, cpu = (statistics.median(asdict(row)[key] for row in same) for key in ("wall_seconds", "cpu_seconds"))
        counts = str(same[0].trainings), str(same[0].epochs)
        table.add_row(f"compare {' '.join(COMMANDS[name])}", f"{wall:.1f}", f"{wall / GOAL:.2f}", f"{cpu:.1f}", *counts)
    Console().print(f"{describe_machine()}; load {load:.1f} before it began", table)
    if options.json:
        write_json(options.json, rows)


if __name__ == "__main__":
    main()
