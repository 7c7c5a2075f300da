"""What the commands of `lastlayer theory` share: their group and options, how they fail, and how they print.

Tests: tests/cli/test_theory_tables.py.
"""

import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from lastlayer._core.progress import bars
from lastlayer.cli._say import check_writable, save_page, stop

Row = dict[str, Any]
Item = TypeVar("Item")

theory = typer.Typer(
    help="What the theory of the five papers says for your numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Plot = Annotated[
    Path | None, typer.Option(help="Also write a picture, an HTML file that opens offline.", show_default=False)
]
Classes = Annotated[int, typer.Option("--classes", "-k", help="Number of classes.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Decorator: register a command of `lastlayer theory`.

    A user's mistake ends in one line and exit code 2. LASTLAYER_DEBUG=1 shows the traceback instead.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        plot = kwargs.get("plot")
        try:
            if plot is not None:
                check_writable("--plot", plot)
            function(*args, **kwargs)
        except (ValueError, TypeError, OSError, OverflowError, MemoryError, RuntimeError) as error:
            full = isinstance(error, MemoryError) or "allocate memory" in str(error)  # torch raises a RuntimeError
            if os.environ.get("LASTLAYER_DEBUG") or (isinstance(error, RuntimeError) and not full):
                raise
            why = "more memory is needed than there is; choose smaller numbers" if full else str(error)
            stop(f"theory {function.__name__}", why)

    return theory.command()(wrapped)


def tracked(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items, with a progress bar if this is a terminal. The bar goes away at the end."""
    with bars() as bar:
        yield from bar.track(items, description=what)


def draw(plot: Path | None, name: str, content: Any) -> None:
    """Write the picture of a command, if one was asked for."""
    if plot is not None:
        from lastlayer.cli.theory_pictures import page

        save_page(plot, page(name, content))


def show(tables: dict[str, list[Row]], as_json: bool, titles: dict[str, str], absent: str = "-") -> None:
    """Print the titled tables, or all of them as JSON."""
    if as_json:
        typer.echo(json.dumps(_plain(tables), indent=2))
        return
    from rich.console import Console

    from lastlayer.reports.text import Layout, PrintedColumn, print_table

    for key, title in titles.items():
        rows = tables[key]
        columns = [
            PrintedColumn(name, [_cell(row[name], absent) for row in rows], right=not isinstance(first, str))
            for name, first in rows[0].items()
        ]
        print_table(Console(), columns, layout=Layout(title, framed=True))


def _cell(value: Any, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_cell(each, absent) for each in value) or "-"
    return str(value)


def _plain(value: Any) -> Any:
    """The value as JSON can hold it. NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
