"""A finished run as files for other programs: safetensors weights, an ONNX graph, and a description of both.

Tests: tests/training/test_export.py.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import math
import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lastlayer
from lastlayer._core.files import as_safetensors, sha256, write_atomically, write_json
from lastlayer._core.registry import nearest
from lastlayer.runs import RunFolder
from lastlayer.training.load import Loaded, load

FORMATS = ("safetensors", "onnx")
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ONNX_LIMIT = 3 * 2**29  # bytes of weights in model.onnx itself: a protobuf file must end before 2 GiB
ONNX_WEIGHTS = "model.onnx.data"  # beside it: the weights of a larger model
AGREEMENT = 1e-4  # how far ONNX Runtime may be from torch, relative to the largest logit


def export(
    run: str | Path | RunFolder,
    out: str | Path,
    formats: Sequence[str] = FORMATS,
    *,
    trust: Collection[str] = (),
) -> list[Path]:
    """Write the model of a finished run for use without this library.

    - model.safetensors: the weights, named normalize.*, backbone.* and head.*
    - model.onnx: `inputs`, as the data set stores them (8-bit images or features), to `logits` and `probabilities`,
      for any batch size. It is run in ONNX Runtime and compared with torch before it is kept. If the weights have more
      than 1.5 GiB, they are in model.onnx.data, which must lie beside it
    - config.json: the trial, class names, input shape and normalisation, the loss and how logits become probabilities,
      what was measured (null if that is NaN or infinite), and the SHA-256 of the files above

    A file `lock` in the folder is held while the files are written.

    Args:
        run: the run's folder.
        out: folder to write to; it is made if it is missing.
        formats: safetensors, onnx or both.
        trust: modules of your own model, loss or head that the run may name.

    Returns:
        The files written, config.json last.

    Raises:
        ValueError: for no format or an unknown one, or a model that ONNX cannot express or computes differently.
        ImportError: for onnx without its packages. The message names the extra. Nothing is written then.
        FileNotFoundError: if the run is not done.
        BlockingIOError: if another process writes to the folder.
        DamagedFileError: if a file of the run is not what was written.
    """
    if not formats:
        raise ValueError(f"no format is given: ask for {' or '.join(FORMATS)}, or both")
    for name in formats:
        if name not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {name!r}{nearest(name, FORMATS)}")
    if "onnx" in formats:
        _require_onnx()
    loaded = load(run, trust=trust)
    contents: dict[str, bytes] = {}
    if "safetensors" in formats:
        contents["model.safetensors"] = as_safetensors(loaded.network.state_dict())
    if "onnx" in formats:
        contents |= _onnx_files(loaded)
    folder = Path(out)
    config = folder / "config.json"
    with RunFolder(folder).locked():  # so that files of two runs do not mix; what a killed process left is deleted
        if ONNX_WEIGHTS in contents:  # an older graph would take these weights for its own
            (folder / "model.onnx").unlink(missing_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content)
        if "onnx" in formats and ONNX_WEIGHTS not in contents:
            (folder / ONNX_WEIGHTS).unlink(missing_ok=True)
        write_json(config, {**describe(loaded), "files": {name: sha256(content) for name, content in contents.items()}})
    return [*(folder / name for name in contents), config]


def describe(loaded: Loaded) -> dict[str, Any]:
    """What someone needs to use the weights without this library, as plain values."""
    hyperparameters = loaded.loss.hyperparameters().items()
    return {
        "lastlayer": lastlayer.__version__,
        "trial": loaded.trial.to_dict(),
        "class_names": list(loaded.class_names),
        "inputs": {
            "shape": ["batch", *loaded.facts.in_shape],
            "dtype": str(_input_dtype(loaded)).removeprefix("torch."),
            "normalize": {**loaded.facts.normalize, "formula": "(x / scale - mean) / std, channel by channel"},
        },
        "loss": {
            "name": loaded.trial.loss.name,
            "hyperparameters": {k: v for k, v in hyperparameters if isinstance(v, bool | int | float | str | None)},
            "probabilities": loaded.loss.probability_formula(),
        },
        "measures": _strict(loaded.result["measures"]),
    }


def _strict(value: Any) -> Any:
    """The same with None for NaN and infinities: JSON has neither, and other readers than Python's refuse the file."""
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _input_dtype(loaded: Loaded) -> torch.dtype:
    """The type of inputs as stored: uint8 for images, int32 for tokens, float32 for everything else."""
    return {"uint8": torch.uint8, "int32": torch.int32}.get(loaded.facts.dtype, torch.float32)


class _Predictor(nn.Module):
    """Inputs as stored to logits and probabilities."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.network, self.loss = loaded.network, loaded.loss

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.network(inputs)
        return logits, self.loss.probabilities(logits)


def _onnx_files(loaded: Loaded) -> dict[str, bytes]:
    """The ONNX file of a loaded run, checked against torch. The weights of a large one come first."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in loaded.network.state_dict().values())
    predictor = _Predictor(loaded).eval()
    generator = torch.Generator().manual_seed(0)
    examples = torch.rand(3, *loaded.facts.in_shape, generator=generator)  # not 1, which would be taken for a constant
    if _input_dtype(loaded) is torch.uint8:
        examples = (examples * loaded.facts.scale).to(torch.uint8)
    elif _input_dtype(loaded) is torch.int32:
        examples = examples.round().int()  # 0 and 1 are tokens, and segments, of every vocabulary
    with _quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        try:
            program = torch.onnx.export(
                predictor, (examples,), dynamo=True, verbose=False, input_names=["inputs"],
                output_names=["logits", "probabilities"], dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
            )  # fmt: skip
            assert program is not None
            program.save(file, external_data=size > ONNX_LIMIT)
        except Exception as error:  # the exporter raises many kinds, and all mean the same to a user
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"model {loaded.trial.model.name} cannot be written as ONNX: {reason[0]}") from error
        _compare(file, predictor, examples)
        return {path.name: path.read_bytes() for path in (Path(folder) / ONNX_WEIGHTS, file) if path.exists()}


def _compare(file: Path, predictor: _Predictor, examples: Tensor) -> None:
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for batch in (examples, examples[:1]):
        try:
            found = session.run(["logits", "probabilities"], {"inputs": batch.numpy()})
        except Exception as error:
            raise ValueError(
                f"ONNX Runtime does not take a batch of {len(batch)}: the file was not kept. A model that asks for "
                "len(x) fixes the batch size in its graph: x.shape[0] does not"
            ) from error
        for name, ours, theirs in zip(("logits", "probabilities"), predictor(batch), found, strict=True):
            far = float((ours - torch.from_numpy(theirs)).abs().max())
            if not far <= AGREEMENT * max(1.0, float(ours.abs().max())):
                raise ValueError(f"ONNX Runtime's {name} differ from torch's by {far:.3g}: the file was not kept")


def _require_onnx() -> None:
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"ONNX needs {', '.join(missing)}, not installed: pip install 'lastlayer[onnx]', "
            "or ask for safetensors only"
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's remarks on packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings(action="ignore"):
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
