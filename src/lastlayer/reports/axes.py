"""Axes of Plotly's figures, for every page and picture."""

from __future__ import annotations

# Without a format Plotly writes the first digit alone, 3 for 0.3; whole numbers overlap where there are many.
LOG = {"type": "log", "tickformat": "~g", "nticks": 5}
LINEAR = {"type": "linear", "exponentformat": "power"}
