"""What commands write to files the user names: the check before they begin, and pages that open without a network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import typer


def check_file(option: str, file: Path) -> None:
    """ValueError, naming the option, unless a file can be written at this path; for before anything that takes long."""
    folder = file.resolve().parent
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder: name a file")
    if not folder.is_dir():
        raise ValueError(f"{option} {file}: its folder does not exist; make it, or name a file in another")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ValueError(f"{option} {file}: it may not be written; name a file in another folder")


def html_page(title: str, figures: Sequence[Any]) -> str:
    """One HTML page of Plotly figures, which holds Plotly itself."""
    title = escape(title)
    body = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=position == 0, config={"displaylogo": False})
        for position, figure in enumerate(figures)
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title></head>\n'
        f"<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def write_page(file: Path, html: str) -> None:
    """Write a page and say where."""
    from lastlayer._core.files import write_atomically

    write_atomically(file, html.encode())
    typer.echo(f"wrote {file}", err=True)
