"""Where many trials run."""

from lastlayer.runners.local import Event, Plan, run_trials

__all__ = ["Event", "Plan", "run_trials"]
