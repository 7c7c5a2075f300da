"""What the benchmarks share: their options, the description of the machine, and the file of their rows.

`lastlayer._core.timing` measures what a step takes. `lastlayer bench` uses it too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any


def options_of_losses(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark of losses takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small shapes, few repetitions")
    parser.add_argument("--only", help="names of losses, separated by commas")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; with more than 1, the machine must be idle"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine there")
    return parser


def write_json(path: str, rows: Sequence[Any]) -> None:
    """The machine, and rows that are dataclasses."""
    with open(path, "w") as file:
        json.dump({"machine": describe_machine(), "rows": [asdict(row) for row in rows]}, file, indent=1)


def processor() -> str:
    """The processor's name; imported when asked, so that nothing more than the subject is loaded while measuring."""
    from lastlayer.training.machine import processor as name

    return name()


def describe_machine() -> str:
    """The machine in a line; imported when asked, as above."""
    from lastlayer.training.machine import machine_in_words

    return machine_in_words()
