"""`lastlayer data list | get | check`: which data sets there are, and whether their files are whole."""

from pathlib import Path
from typing import Annotated

import typer

from lastlayer.cli._options import DataRoot
from lastlayer.cli._say import stop

data = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A name from `lastlayer data list`.", show_default=False)]


@data.command("list")
def list_sets(data_root: DataRoot = None) -> None:
    """List the data sets: what each one is, whether its files are there, and its licence.

    Files are looked for, not read: `lastlayer data check NAME` reads them.
    """
    from rich.console import Console

    from lastlayer.data import available, describe, sources
    from lastlayer.reports.text import PrintedColumn, print_table

    root = sources.data_root(data_root)
    known = [describe(name) for name in available()]
    columns = [
        PrintedColumn("name", [one.name for one in known], whole=True),
        PrintedColumn("files", [files_there(one.name, root) for one in known], whole=True),
        PrintedColumn("summary", [one.summary for one in known]),
        PrintedColumn("licence", [one.licence for one in known]),
    ]
    console = Console()
    print_table(console, columns)
    console.print(f"\ndata root: {root}", highlight=False, soft_wrap=True)


@data.command("get")
def get_set(name: Name, data_root: DataRoot = None) -> None:
    """Fetch a data set from its official place. An interrupted download continues where it stopped.

    The exit code is 2 if there is no such set or nothing to fetch. It is 1 if the place cannot be reached, or sends
    something else than it should.
    """
    from lastlayer.data import CorruptFileError, DownloadError

    try:
        root = _get_with_bars(name, data_root)
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
def check_set(name: Name, data_root: DataRoot = None) -> None:
    """Read a whole data set and compare its files with the known checksums. The exit code is 1 unless it is ok."""
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
    """Whether the files of a data set are where its reader looks for them: "embedded", "there" or "not found"."""
    from lastlayer.data import describe

    source = describe(name)
    if not source.needs_files:
        return "embedded"
    return "not found" if source.find(root) is None else "there"


def _get_with_bars(name: str, root: Path | None) -> Path:
    from rich.progress import DownloadColumn, TaskID

    from lastlayer._core.progress import bars
    from lastlayer.data import get

    with bars(DownloadColumn()) as shown:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(file, total=total)
            shown.update(tasks[file], completed=done, total=total)

        return get(name, root, progress=show)
