"""`lastlayer export RUN`: a finished run as safetensors and ONNX. Tests: tests/training/test_export.py."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; RUN/export if not given.", show_default=False)
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", help="safetensors, onnx, or both, separated by a comma.")
    ] = "safetensors,onnx",
) -> None:
    """Write a trained model for use elsewhere: model.safetensors, model.onnx and config.json.

    The ONNX graph takes inputs as the data set stores them (features, or 8-bit images with channels first). It gives
    logits and probabilities, for any batch size. If its weights take more than 1.5 GiB, they are in model.onnx.data
    beside it. config.json holds the class names, the normalisation, and how logits become probabilities.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"{run}: no such folder")
    from lastlayer.training.export import export as write

    wanted = [name.strip() for name in formats.split(",") if name.strip()]
    for file in write(run, run / "export" if out is None else out, wanted):
        typer.echo(f"{file} ({file.stat().st_size:,} bytes)")
