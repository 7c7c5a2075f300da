"""The command line: `lastlayer COMMAND`. Each command has a file of its own and imports what it needs when it runs."""

import typer

from lastlayer.cli.measure import measure

app = typer.Typer(
    name="lastlayer",
    help="The last layer of a classifier: losses, heads, feature geometry, single logits.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(measure)


@app.callback()
def root() -> None:
    """Keeps `lastlayer COMMAND` the form even while there is a single command."""


def main() -> None:
    """Entry point of the `lastlayer` command."""
    app()
