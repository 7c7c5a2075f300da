"""Tables of `lastlayer theory`, in the terminal or as JSON."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import typer

Row = dict[str, Any]


def show(tables: dict[str, list[Row]], as_json: bool, titles: dict[str, str], absent: str = "-") -> None:
    """Print the titled tables, or all of them as JSON."""
    if as_json:
        typer.echo(json.dumps(_plain(tables), indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for key, title in titles.items():
        table = Table(title=title, title_justify="left")
        for column in tables[key][0]:
            justify: Literal["left", "right"] = "left" if isinstance(tables[key][0][column], str) else "right"
            table.add_column(column, justify=justify, overflow="fold")  # no digit is lost in a narrow terminal
        for row in tables[key]:
            table.add_row(*(_cell(value, absent) for value in row.values()))
        console.print(table)


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
    """The value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(each) for each in value]
    return value
