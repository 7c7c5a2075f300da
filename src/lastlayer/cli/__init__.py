"""The command line: `lastlayer COMMAND`. Each command lives in a file of its own and imports what it needs when it runs."""

import typer

app = typer.Typer(
    name="lastlayer",
    help="The last layer of a classifier: losses, heads, feature geometry, single logits.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


def main() -> None:
    """Entry point of the `lastlayer` command."""
    app()
