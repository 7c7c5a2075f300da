"""Where many trials run: in worker processes, as a pack on one GPU, or each over several devices."""

from lastlayer.runners.protocol import Event, Placement, Runner, Work, register, resolve_device, run_trials

__all__ = ["Event", "Placement", "Runner", "Work", "register", "resolve_device", "run_trials"]
