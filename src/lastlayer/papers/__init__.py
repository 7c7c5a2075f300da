"""The five papers as data: rerun every table, figure and claim with one call, and see it beside the published number.

store = Store("results")
reproduce(artifact("sln.table1"), "smoke", Placement(Path("runs")), store)
judge("000-01", store)
"""

from lastlayer.papers.engine import cost
from lastlayer.papers.engine.artifact import PAPERS, SIZES, Artifact, Size, about, artifact, artifacts
from lastlayer.papers.engine.claims import Verdict, claims, judge, needs
from lastlayer.papers.engine.figure import figure
from lastlayer.papers.engine.reproduce import all_trials, count_unfinished, reproduce, reproduce_all, restricted
from lastlayer.papers.engine.store import NotRunError, Observations, Record, Store
from lastlayer.papers.engine.table import Line, Pair, lines, published

__all__ = [
    "PAPERS",
    "SIZES",
    "Artifact",
    "Line",
    "NotRunError",
    "Observations",
    "Pair",
    "Record",
    "Size",
    "Store",
    "Verdict",
    "about",
    "all_trials",
    "artifact",
    "artifacts",
    "claims",
    "cost",
    "count_unfinished",
    "figure",
    "judge",
    "lines",
    "needs",
    "published",
    "reproduce",
    "reproduce_all",
    "restricted",
]
