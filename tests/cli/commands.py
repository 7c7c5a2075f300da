"""How the tests of commands run one."""

from typer.testing import CliRunner

from lastlayer.cli import app

QUICK = ["--train-samples", "256", "--epochs", "2", "--set", "evaluations=1", "--workers", "1", "--no-tune"]
"""A comparison that takes half a second. `train` takes QUICK[:-3], the options that it has."""


def lastlayer(*arguments: str) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
