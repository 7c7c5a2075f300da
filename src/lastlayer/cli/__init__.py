"""The command line: `lastlayer COMMAND`, or `python -m lastlayer COMMAND`.

A command imports what it needs when it runs: torch is not imported before the arguments are parsed.
Tests: tests/cli/test_app.py.
"""

import functools
import inspect
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.markup import escape

from lastlayer.cli._say import stop
from lastlayer.cli.bench import bench
from lastlayer.cli.compare import compare, linear_probe, train
from lastlayer.cli.data import data
from lastlayer.cli.doctor import doctor
from lastlayer.cli.measure import measure
from lastlayer.cli.report import export, report
from lastlayer.cli.reproduce import reproduce
from lastlayer.cli.status import status
from lastlayer.cli.theory import theory

app = typer.Typer(
    name="lastlayer",
    help="The last layer of a classifier: losses, heads, feature geometry, single logits.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        import lastlayer

        typer.echo(f"lastlayer {lastlayer.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _in_one_line(command: Callable[..., None]) -> Callable[..., None]:
    """A user's mistake ends in one line and exit code 2; with LASTLAYER_DEBUG=1 the traceback is shown."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError, ImportError) as error:
            if os.environ.get("LASTLAYER_DEBUG"):
                raise
            stop(command.__name__.replace("_", "-"), str(error))

    return wrapped


for _command in (compare, train, linear_probe, measure, reproduce, report, status, export, bench, doctor):
    app.command()(_in_one_line(_command))
app.add_typer(data, name="data")
app.add_typer(theory, name="theory")


def _unwrapped(text: str) -> str:
    """A docstring with one line per paragraph, so that lines break where the terminal ends."""
    paragraphs = escape(inspect.cleandoc(text)).split("\n\n")  # not escaped, [rows] would be read as a style
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


for _group in (app, data, theory):
    for _info in _group.registered_commands:
        _info.help = _unwrapped(_info.callback.__doc__ or "") if _info.callback else None


def main() -> None:
    """Run the `lastlayer` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without arrows must not stop a table at the end of hours
            stream.reconfigure(errors="replace")
    app()
