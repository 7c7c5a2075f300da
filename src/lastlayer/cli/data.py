"""`lastlayer data list | get | check`: which data sets there are, and whether their files are whole.

Tests: tests/cli/test_data.py.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastlayer.cli._stop import stop

if TYPE_CHECKING:
    from rich.console import Console

data = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

Root = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        help="Folder that holds the data sets; else $LASTLAYER_DATA, else the user's cache.",
        show_default=False,
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `lastlayer data list`.", show_default=False)]


@data.command("list")
def list_sets(data_root: Root = None) -> None:
    """List the data sets: what each is, whether its files are there, its licence.

    Files are looked for, not read: `lastlayer data check NAME` reads them.
    """
    from rich.console import Console
    from rich.table import Table

    from lastlayer.data import available, default_root, describe

    root = default_root() if data_root is None else data_root.expanduser()
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("files", no_wrap=True)
    table.add_column("summary", overflow="fold")
    table.add_column("licence", overflow="fold")
    for name in available():
        source = describe(name)
        table.add_row(name, files_there(name, root), source.summary, source.licence)
    console = Console()
    console.print(table)
    console.print(f"\ndata root: {root}", highlight=False, soft_wrap=True)


@data.command("get")
def get_set(name: Name, data_root: Root = None) -> None:
    """Fetch a data set from its official place; an interrupted download continues where it stopped.

    Ends with exit code 2 where there is no such set or nothing to fetch, 1 where the place cannot be reached or sends
    something else than it should.
    """
    from rich.console import Console

    from lastlayer.data import CorruptFileError, DownloadError

    try:
        root = _get_with_bars(name, data_root, Console(stderr=True))
    except (DownloadError, CorruptFileError) as error:
        stop("data get", str(error), 1)
    except ValueError as error:
        stop("data get", str(error), 2)
    except OSError as error:
        stop("data get", f"{name} cannot be written: {error}", 1)
    except KeyboardInterrupt:
        stop("data get", f"stopped; run `lastlayer data get {name}` again to continue", 130)
    typer.echo(f"{name} is in {root}")


@data.command("check")
def check_set(name: Name, data_root: Root = None) -> None:
    """Read a data set whole and compare its files with the known checksums; exit code 1 unless it is ok."""
    from lastlayer.data import check

    try:
        result = check(name, data_root)
    except ValueError as error:
        stop("data check", str(error), 2)
    typer.echo(f"{result.name}: {result.status}: {result.message}")
    for file, checksum in result.checksums.items():
        typer.echo(f"  sha256 {checksum}  {file}")
    if result.status != "ok":
        raise typer.Exit(1)


def files_there(name: str, root: Path) -> str:
    """Whether the files of a data set are where its reader looks for them: embedded, there or not found."""
    from lastlayer.data import describe

    source = describe(name)
    if not source.needs_files:
        return "embedded"
    return "not found" if source.find(root) is None else "there"


def _get_with_bars(name: str, root: Path | None, console: "Console") -> Path:
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    from lastlayer.data import get

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        return get(name, root, progress=show)
