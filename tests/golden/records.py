"""What a golden file keeps of a computation, and how two of them are compared.

Names, shapes and identities must be equal everywhere. Three keys of a record hold numbers:
    bits    a digest of every number
    exact   some numbers as they are
    close   some numbers, rounded
Bits depend on the processor and on the build of torch. On the machine that the file names everything must be equal;
elsewhere the numbers in `close` must agree within a tolerance, `exact` must have the same names, and `bits` is left
out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HERE = Path(__file__).parent
DIGITS = 7  # of the numbers in `close`. The tolerance is wider than that, and `bits` holds all digits


def machine() -> dict[str, Any]:
    """What the bits of a result depend on: the processor, the build of torch and the number of threads."""
    lines: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        name, _, value = line.partition(":")
        lines.setdefault(name.strip(), value.strip())
    return {
        "processor": [lines.get(name, "") for name in ("vendor_id", "cpu family", "model", "model name")],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def digest(content: Any) -> str:
    """A digest of plain content in its order, sixteen hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]


def shapes(tensors: Mapping[str, Any]) -> list[list[Any]]:
    """Name, dtype and shape of each tensor, in order."""
    return [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]


def numbers(arrays: Iterable[Tensor], shown: int = 0) -> dict[str, Any]:
    """The record of some arrays: a digest of all bits, and the norm and the first few entries of each."""
    made, close = hashlib.sha256(), []
    for array in (a.detach().contiguous() for a in arrays):
        made.update(f"{array.dtype} {tuple(array.shape)}".encode())
        made.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
        flat = array.reshape(-1).double()
        kept = [float(flat.norm()), *flat[:shown].tolist()] if flat.numel() > 1 else flat.tolist()
        close.append([float(f"{number:.{DIGITS}g}") for number in kept])
    return {"bits": made.hexdigest()[:16], "close": close}


def differences(found: Any, pinned: Any, tolerance: float | None, where: str = "") -> list[str]:
    """Where two records differ. A name that only `found` has is new, which is no difference.

    Args:
        found, pinned: records, or what lies in them.
        tolerance: of `close`, relative, and absolute for numbers below 1; None compares every bit.
        where: path so far.
    """
    if isinstance(pinned, Mapping) and isinstance(found, Mapping):
        lines = [f"{where}{name} is gone" for name in pinned if name not in found]
        for name in pinned:
            if name not in found or (tolerance is not None and name == "bits"):
                continue
            one, other = found[name], pinned[name]
            if tolerance is not None and name == "exact":
                one, other = dict.fromkeys(one), dict.fromkeys(other)
            lines += differences(one, other, tolerance, f"{where}{name} / ")
        return lines
    if isinstance(pinned, list) and isinstance(found, list) and len(found) == len(pinned):
        pairs = enumerate(zip(found, pinned, strict=True))
        return [line for i, pair in pairs for line in differences(*pair, tolerance, f"{where}{i} / ")]
    if isinstance(pinned, float) and isinstance(found, float):
        near = tolerance or 0.0
        if math.isclose(found, pinned, rel_tol=near, abs_tol=near) or (math.isnan(found) and math.isnan(pinned)):
            return []
    elif found == pinned and type(found) is type(pinned):
        return []
    return [f"{where}is {found!r}, was {pinned!r}"]


def read(name: str) -> dict[str, Any]:
    """The content of a golden file."""
    content: dict[str, Any] = json.loads((HERE / f"{name}.json").read_text())
    return content


def write(name: str, records: Mapping[str, Any]) -> None:
    """Write a golden file: where it was made, and a line for each record."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in {"machine": machine(), **records}.items()]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
