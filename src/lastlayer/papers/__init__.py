"""The five papers as data: every table, figure and claim, rerun with one call and set beside the published number.

store = Store("results")
reproduce(artifact("sln.table1"), "smoke", Placement(Path("runs")), store)
judge("000-01", store)
"""

from lastlayer.papers import _cost as cost
from lastlayer.papers._artifact import PAPERS, SIZES, Artifact, Cell, Choice, Grid, Size, artifact, artifacts
from lastlayer.papers._claims import Claim, claims, judge, needs
from lastlayer.papers._evidence import Verdict
from lastlayer.papers._figure import figure
from lastlayer.papers._observations import NotRunError, Observations, Row, Store
from lastlayer.papers._reproduce import all_trials, count_unfinished, reproduce, reproduce_all, restricted
from lastlayer.papers._table import Entry, Line, lines, published

__all__ = [
    "PAPERS",
    "SIZES",
    "Artifact",
    "Cell",
    "Choice",
    "Claim",
    "Entry",
    "Grid",
    "Line",
    "NotRunError",
    "Observations",
    "Row",
    "Size",
    "Store",
    "Verdict",
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
