"""Where many trials run."""

from lastlayer.runners.processes import run_trials
from lastlayer.runners.protocol import Event, Placement

__all__ = ["Event", "Placement", "run_trials"]
