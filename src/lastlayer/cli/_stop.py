"""Ending a command with one line on standard error."""

from typing import NoReturn

import typer


def stop(command: str, why: str, code: int = 2) -> NoReturn:
    """Say why a command cannot go on, in one line, and exit: 2 for a user's mistake, 1 for what went wrong outside."""
    typer.echo(f"lastlayer {command}: {' '.join(why.split())}", err=True)
    raise typer.Exit(code)
