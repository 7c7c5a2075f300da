"""What the papers share: artifacts, running them, the store of observations, tables, figures and verdicts."""
