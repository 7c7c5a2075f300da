"""Run folders as tables and as one page: `print_tables(summarise(load("runs")))`."""

from lastlayer.reports.collect import Run, Runs, load
from lastlayer.reports.summary import Cell, Column, Group, Summary, summarise
from lastlayer.reports.terminal import print_problems, print_tables, write_csv
from lastlayer.reports.verdict import verdict

__all__ = [
    "Cell",
    "Column",
    "Group",
    "Run",
    "Runs",
    "Summary",
    "load",
    "print_problems",
    "print_tables",
    "summarise",
    "verdict",
    "write_csv",
]
