"""What commands say, and the check of the paths that a user names, before anything that takes long.

Tests: tests/cli/test_say.py.
"""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from rich.status import Status


def stop(command: str, why: str, code: int = 2) -> NoReturn:
    """Say in one line why a command cannot go on, and exit: 2 for a user's mistake, 1 for what went wrong outside."""
    typer.echo(f"lastlayer {command}: {' '.join(why.split())}", err=True)
    raise typer.Exit(code)


def typed() -> str:
    """The command as it was typed."""
    return shlex.join(["lastlayer", *sys.argv[1:]])


def say_stopped(kept: str) -> NoReturn:
    """End after Ctrl-C. Say what is kept, and the command that continues."""
    typer.echo(f"\nstopped; {kept}. To continue: {typed()}", err=True)
    raise typer.Exit(130) from None


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "loss"), counted(2, "loss"), counted(3, "seed")
        ('1 loss', '2 losses', '3 seeds')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}{'es' if what.endswith('s') else 's'}"


def waiting(what: str) -> AbstractContextManager[Status]:
    """While something takes seconds, a terminal shows what it is."""
    from rich.console import Console
    from rich.markup import escape

    return Console(stderr=True).status(escape(what))


def check_writable(option: str, file: Path) -> None:
    """Check that a file can be written at this path.

    Raises:
        ValueError: if not; the message names the option.
    """
    folder = file.resolve().parent
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder: name a file")
    if not folder.is_dir():
        raise ValueError(f"{option} {file}: its folder does not exist; make it, or name a file in another")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ValueError(f"{option} {file}: it may not be written; name a file in another folder")


def make_folder(option: str, folder: Path) -> None:
    """Make a folder to write to.

    Raises:
        ValueError: if that is not possible; the message names the option.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"no folder can be made there ({error.strerror}); choose another"
        raise ValueError(f"{option} {folder}: {why}") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{option} {folder}: nothing can be written there; choose another")


def save_page(file: Path, html: str) -> None:
    """Write a page, and say where it is."""
    from lastlayer._core.files import write_atomically

    write_atomically(file, html.encode())
    typer.echo(f"wrote {file}", err=True)
