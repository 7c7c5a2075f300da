"""Where many trials run."""

from lastlayer.runners._events import Event, Plan
from lastlayer.runners.local import run_trials

__all__ = ["Event", "Plan", "run_trials"]
