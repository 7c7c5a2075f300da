"""Every value of every run as CSV, for tools of the reader's own."""

from __future__ import annotations

import csv
from pathlib import Path

from lastlayer.reports.summary import Summary


def write_csv(summary: Summary, path: str | Path) -> None:
    """Write every value of every finished run, a line each: group, seed, split, measure, value, folder."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "seed", "status", "split", "measure", "value", "run"])
        for position, group in enumerate(summary.groups):
            for seed, run in group.done.items():
                for column in summary.columns:
                    if seed in column.cells[position].values:
                        value = repr(column.cells[position].values[seed])
                        name = column.measure.name
                        writer.writerow([group.label, seed, run.status, column.split, name, value, run.path])
        for run in summary.problems:
            writer.writerow([summary.label_of(run), run.seed, run.status, "", "", "", run.path])
