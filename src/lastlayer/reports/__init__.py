"""Run folders as tables in a terminal and as one HTML page.

summary = summarise(load("runs"))
print_tables(summary)
write_page(summary, "runs/report.html")
"""

from lastlayer.reports.answer import Answer, answers
from lastlayer.reports.collect import Run, RunSet, load
from lastlayer.reports.columns import Column, TableCell
from lastlayer.reports.decision import Decision, Rival
from lastlayer.reports.goals import GOALS, Goal, KnownData, about_skew, answerable, default_goals, parse_goals
from lastlayer.reports.page import render_page, write_page
from lastlayer.reports.summary import Group, Summary, summarise, write_csv
from lastlayer.reports.terminal import print_problems, print_tables

__all__ = [
    "GOALS",
    "Answer",
    "Column",
    "Decision",
    "Goal",
    "Group",
    "KnownData",
    "Rival",
    "Run",
    "RunSet",
    "Summary",
    "TableCell",
    "about_skew",
    "answerable",
    "answers",
    "default_goals",
    "load",
    "parse_goals",
    "print_problems",
    "print_tables",
    "render_page",
    "summarise",
    "write_csv",
    "write_page",
]
