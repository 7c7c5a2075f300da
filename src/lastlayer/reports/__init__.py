"""Run folders as tables and as one page.

summary = summarise(load("runs"))
print_tables(summary)
write_page(summary, "runs/report.html")
"""

from lastlayer.reports.collect import Run, Runs, load
from lastlayer.reports.columns import Cell, Column
from lastlayer.reports.page import render_page, write_page
from lastlayer.reports.summary import Group, Summary, summarise
from lastlayer.reports.terminal import print_problems, print_tables
from lastlayer.reports.values import write_csv
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
    "render_page",
    "summarise",
    "verdict",
    "write_csv",
    "write_page",
]
