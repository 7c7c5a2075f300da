"""Where many trials run."""

from lastlayer.runners._events import Event, Placement
from lastlayer.runners.local import run_trials

__all__ = ["Event", "Placement", "run_trials"]
