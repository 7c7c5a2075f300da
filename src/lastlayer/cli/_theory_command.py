"""What the commands of `lastlayer theory` share: their group, their options, how they fail and where they draw."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lastlayer.cli._output import check_file, write_page
from lastlayer.cli._stop import stop

theory = typer.Typer(
    help="What the theory of the five papers says at your numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Plot = Annotated[Path | None, typer.Option(help="Write a picture that opens without a network.", show_default=False)]
Classes = Annotated[int, typer.Option("--classes", "-k", help="Number of classes.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command; a user's mistake ends in one line and exit code 2 (LASTLAYER_DEBUG=1 shows the traceback)."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        plot = kwargs.get("plot")
        try:
            if plot is not None:
                check_file("--plot", plot)
            function(*args, **kwargs)
        except (ValueError, TypeError, OSError, OverflowError, MemoryError, RuntimeError) as error:
            full = isinstance(error, MemoryError) or "allocate memory" in str(error)  # torch's is a RuntimeError
            if os.environ.get("LASTLAYER_DEBUG") or (isinstance(error, RuntimeError) and not full):
                raise
            why = "more memory is needed than there is: choose smaller numbers" if full else str(error)
            stop(f"theory {function.__name__}", why)

    return theory.command()(wrapped)


_Item = TypeVar("_Item")


def tracked(items: Sequence[_Item], what: str) -> Iterable[_Item]:
    """The items of a loop of seconds, with a bar in a terminal; it goes away at the end."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def draw(plot: Path | None, name: str, content: Any) -> None:
    """Write the picture of a command, if one was asked for."""
    if plot is not None:
        from lastlayer.cli._theory_page import page

        write_page(plot, page(name, content))
