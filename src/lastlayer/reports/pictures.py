"""What all Plotly figures share: their style, their axes, and how they are written as pages and pictures.

Plotly takes a second to import: it is imported when a figure is made. Tests: tests/reports/test_pictures.py.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from lastlayer._core.files import write_atomically

# Without a format Plotly labels the ticks of a log axis by their first digit, 3 for 0.3, and whole numbers overlap.
LOG = {"type": "log", "tickformat": "~g", "nticks": 5}
LINEAR = {"type": "linear", "exponentformat": "power"}
COLOURS = ("#3366cc", "#e07b39", "#2a9d6f", "#c8385a", "#7a5bd0", "#a87c0c", "#3aa6b9", "#8c564b", "#d45fa6", "#6b7280")
DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot")
TITLE_WIDTH = 80  # characters that fit on the screen of a laptop
PICTURES = (".svg", ".png")  # what `write_picture` writes


def new_figure(title: str = "", panels: Sequence[str] = (), rows: int = 1, **options: Any) -> Any:
    """An empty Plotly figure in the style of all others.

    Args:
        title: of the whole figure. A long title is broken over several lines.
        panels: titles of the panels, row by row. Without them the figure is one plot.
        rows: the number of rows of panels.
        options: passed on to `plotly.subplots.make_subplots`.
    """
    from plotly.graph_objects import Figure
    from plotly.subplots import make_subplots

    figure = (
        make_subplots(rows, -(-len(panels) // rows), subplot_titles=list(panels), **options) if panels else Figure()
    )
    figure.update_layout(template="plotly_white")
    if title:
        figure.update_layout(title="<br>".join(textwrap.wrap(title, TITLE_WIDTH)))
    return figure


def html_page(title: str, figures: Sequence[Any]) -> str:
    """One HTML page with these figures. It holds Plotly itself, so that it opens without a network."""
    title = escape(title)
    body = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=position == 0, config={"displaylogo": False})
        for position, figure in enumerate(figures)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def write_picture(figure: Any, path: Path) -> None:
    """Write a figure as .svg or .png. This needs the package kaleido and a browser.

    Raises:
        ImportError: if one of them is missing.
    """
    try:
        content = figure.to_image(path.suffix.removeprefix("."), width=900, height=figure.layout.height or 500)
    except (ValueError, RuntimeError) as error:  # what Plotly raises without kaleido or without a browser
        raise ImportError(f"{str(error).strip().splitlines()[0]} (pip install 'lastlayer[pictures]')") from None
    write_atomically(path, content)
