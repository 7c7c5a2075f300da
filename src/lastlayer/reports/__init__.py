"""Run folders as tables in a terminal and as one HTML page.

summary = summarise(load("runs"))
print_tables(summary)
write_page(summary, "runs/report.html")
"""

from lastlayer.reports.collect import Run, RunSet, load
from lastlayer.reports.columns import Column, TableCell
from lastlayer.reports.page import render_page, write_page
from lastlayer.reports.summary import Group, Summary, summarise, write_csv
from lastlayer.reports.text import print_problems, print_tables
from lastlayer.reports.verdict import verdict

__all__ = [
    "Column",
    "Group",
    "Run",
    "RunSet",
    "Summary",
    "TableCell",
    "load",
    "print_problems",
    "print_tables",
    "render_page",
    "summarise",
    "verdict",
    "write_csv",
    "write_page",
]
