"""The run folder: everything that one trial leaves on disk. At any moment it is complete or can be resumed.

Each file says which run it belongs to, by the identity of the trial, or has its checksum in a file that says so. A file
of another run is refused by its name.

trial.json             what was asked for
metrics.jsonl          whose it is, and one line per epoch, appended and flushed to disk
checkpoint-NNNN.pt     the last two, each behind its checksum; they stay when the run is done
snapshots.safetensors  features after some of the epochs, for pictures
weights.safetensors    the trained network; its checksum is in result.json
rows.safetensors       labels and decisions of the test samples, and what else shows how sure the result is
result.json            what came out; it is written last, so a run that has it is done
failure.json           why the run stopped, if it failed
lock                   held while a process works on the run

Tests: tests/runs/test_folder.py.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lastlayer._core.files import (
    DamagedFileError,
    as_safetensors,
    canonical,
    check_file,
    clear_unfinished,
    is_locked,
    locked,
    naming,
    read_json,
    read_sealed,
    sha256,
    write_atomically,
    write_json,
    write_sealed,
)

Status = Literal["done", "running", "failed", "interrupted", "missing"]
KEPT_CHECKPOINTS = 2
LOCK_SECONDS = 1.0  # how long to wait for the lock: a process that only reads the status holds it for an instant
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]+)\.pt")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run in any state: it has a trial or a result."""
    return (folder / "trial.json").is_file() or (folder / "result.json").is_file()


def identity_of(trial: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that change with any field of a trial: the name of its run folder."""
    return sha256(canonical(trial))[:16]


class RunFolder:
    """One run on disk. The folder at `path` need not exist."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    # what is there

    @property
    def status(self) -> Status:
        """One of done, running (a process holds the lock), failed, interrupted (it can be resumed), missing."""
        if (self.path / "result.json").exists():
            return "done"
        if is_locked(self.path / "lock"):
            return "running"
        if (self.path / "failure.json").exists():
            return "failed"
        return "interrupted" if (self.path / "trial.json").exists() else "missing"

    def trial(self) -> dict[str, Any]:
        """The trial as it was asked for.

        Raises:
            FileNotFoundError: if the file is not there.
            DamagedFileError: if it was altered, or belongs to another run.
        """
        trial = read_json(self.path / "trial.json")
        self._check_owner("trial.json", identity_of(trial))
        return trial

    @property
    def identity(self) -> str | None:
        """The run's identity: the folder's name if it looks like one, else that of trial.json, if it can be read."""
        name = self.path.absolute().name
        if _IDENTITY.fullmatch(name):
            return name
        try:
            return identity_of(read_json(self.path / "trial.json"))
        except (FileNotFoundError, DamagedFileError):
            return None

    def _check_owner(self, name: str, owner: str) -> None:
        """Raise DamagedFileError if a file belongs to another run."""
        if (own := self.identity) not in (owner, None):
            raise DamagedFileError(f"{self.path / name} belongs to another run, {owner}: this is {own}")

    def result(self) -> dict[str, Any]:
        """What came out of a finished run.

        Raises:
            FileNotFoundError: if the run is not done.
            DamagedFileError: if the file was altered, or belongs to another run.
        """
        if not (self.path / "result.json").exists():
            runs = sorted(path.parent for path in self.path.glob("*/trial.json"))
            if runs:
                which = "1 run: name it," if len(runs) == 1 else f"{len(runs)} runs: name one of them, such as"
                raise FileNotFoundError(f"{self.path} is a folder of {which} {runs[0]}")
            raise FileNotFoundError(f"{self.path} is {self.status}, not done: there is no result.json")
        result = read_json(self.path / "result.json")
        if isinstance(result.get("trial"), dict):
            self._check_owner("result.json", identity_of(result["trial"]))
        return result

    def failure(self) -> dict[str, Any]:
        """Why the run failed: `error`, and what else is known."""
        try:
            failure = read_json(self.path / "failure.json")
            if failure.get("trial"):  # older runs do not say whose it is
                self._check_owner("failure.json", failure["trial"])
            return failure
        except DamagedFileError as error:
            return {"error": f"why is not known: {error}"}

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. Lines that are damaged, or that a crash cut short, are left out.

        Raises:
            DamagedFileError: if the file belongs to another run.
        """
        path = self.path / "metrics.jsonl"
        lines = []
        for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if isinstance(line, dict):
                    lines.append(line)
        if lines and lines[0].get("trial"):  # older runs do not say whose it is
            self._check_owner(path.name, lines[0]["trial"])
        return [line for line in lines if "epoch" in line]

    def tensors(self, name: Literal["weights", "snapshots", "rows"]) -> dict[str, Tensor]:
        """The tensors of one of the .safetensors files, checked against the result.

        They are mapped from the file. If you need them after the file is gone, copy them. Writing to them does not
        change the file.

        Raises:
            FileNotFoundError: if the file is gone, or the run is from before runs had this file.
            DamagedFileError: if the file was altered.
        """
        from safetensors.torch import load_file

        path = self.path / f"{name}.safetensors"
        files = self.result()["files"]
        if path.name not in files:
            raise FileNotFoundError(f"{self.path} has no {path.name}: it was trained before runs had this file")
        check_file(path, files[path.name])
        tensors: dict[str, Tensor] = load_file(path)
        return tensors

    def check_lengths(self) -> None:
        """Raise DamagedFileError if tensors are cut short or metrics were altered. Missing files are no error.

        Of tensors only the first bytes are read, which say how long the file is. So thousands of runs take seconds.
        """
        from safetensors import SafetensorError, safe_open

        metrics = self.path / "metrics.jsonl"
        expected = self.result()["files"].get(metrics.name)  # older runs have no checksum of it
        if metrics.exists() and expected is not None:
            check_file(metrics, expected)
        for path in sorted(self.path.glob("*.safetensors")):
            try:
                with safe_open(path, "np"):
                    pass
            except SafetensorError as error:
                raise DamagedFileError(f"{path} is damaged: {error}") from error

    # one process at a time

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock. The system releases it when the process ends, however it ends.

        Unfinished files of a killed process are deleted.

        Raises:
            BlockingIOError: if another process works on the run.
        """
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / "lock", seconds=LOCK_SECONDS))
            except BlockingIOError:
                raise BlockingIOError(f"another process is working on {self.path}") from None
            clear_unfinished(self.path)
            yield

    # writing

    def start(self, trial: Mapping[str, Any]) -> None:
        """Write down the trial, also if the file is damaged, and forget an earlier failure.

        Raises:
            ValueError: if the folder holds another trial.
        """
        try:
            known = self.trial()
        except (FileNotFoundError, DamagedFileError):
            write_json(self.path / "trial.json", trial)
        else:
            if known != trial:
                raise ValueError(f"{self.path} holds another trial: choose another folder")
        self.forget_failure()

    def forget_failure(self) -> None:
        """Delete the failure note, so that the run counts as interrupted and can be resumed."""
        (self.path / "failure.json").unlink(missing_ok=True)

    def keep_metrics_before(self, epoch: int) -> None:
        """Drop the lines of `epoch` and later ones, which a resumed run trains again, and all lines of another run."""
        try:
            kept = [line for line in self.metrics() if line["epoch"] < epoch]
        except DamagedFileError as error:
            warnings.warn(f"{error}; its lines are dropped", stacklevel=2)
            kept = []
        content = "".join(json.dumps(line) + "\n" for line in [{"trial": self.identity}, *kept])
        write_atomically(self.path / "metrics.jsonl", content.encode())

    def append_metrics(self, line: Mapping[str, Any], *, lasting: bool = True) -> None:
        """Add a line to metrics.jsonl.

        Args:
            line: of an epoch.
            lasting: wait until it is on disk, so that it outlasts a power cut. Without a checkpoint beside it a line
                is of no use then: the epoch is trained again.
        """
        path = self.path / "metrics.jsonl"
        with naming(path), path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            if lasting:
                os.fsync(file.fileno())

    def save_checkpoint(self, epoch: int, state: Mapping[str, Any]) -> None:
        """Write the state after `epoch` epochs and delete all checkpoints but the last two.

        Checkpoints of later epochs are deleted too. They must be damaged, or the run would have resumed from them.
        """
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        path = self.path / f"checkpoint-{epoch:04d}.pt"
        write_sealed(path, buffer.getvalue(), self.identity or "")
        for later in itertools.takewhile(lambda other: other != path, self._checkpoints()):
            later.unlink()
        self._drop_old_checkpoints()

    def load_checkpoint(self, device: torch.device | str = "cpu") -> dict[str, Any] | None:
        """The newest checkpoint that is whole and of this run, or None. Warns about each that is not."""
        paths = self._checkpoints()
        for path, before in itertools.zip_longest(paths, paths[1:]):
            try:
                payload, owner = read_sealed(path)
                if owner:
                    self._check_owner(path.name, owner)
                else:
                    warnings.warn(f"{path} is from before checkpoints said whose they are", stacklevel=2)
            except DamagedFileError as error:
                instead = "starting over" if before is None else f"falling back to the checkpoint before, {before.name}"
                warnings.warn(f"{error}; {instead}", stacklevel=2)
                continue
            state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location=device, weights_only=True)
            return state
        return None

    def finish(
        self,
        result: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        snapshots: Mapping[str, Tensor] | None,
        rows: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write weights, snapshots and rows, then the result, which makes the run done.

        The last two checkpoints stay.
        """
        files = {}
        for name, tensors in (("weights", weights), ("snapshots", snapshots), ("rows", rows)):
            if tensors is None:
                continue
            content = as_safetensors(tensors)
            write_atomically(self.path / f"{name}.safetensors", content)
            files[f"{name}.safetensors"] = sha256(content)
        if (metrics := self.path / "metrics.jsonl").exists():
            files[metrics.name] = sha256(metrics.read_bytes())
        self._drop_old_checkpoints()  # a process killed while it wrote its last checkpoint may have left three
        write_json(self.path / "result.json", {**result, "files": files})

    def fail(self, failure: Mapping[str, Any]) -> None:
        """Write down why the run stopped. Its checkpoints stay."""
        write_json(self.path / "failure.json", {**failure, "trial": self.identity})

    def _drop_old_checkpoints(self) -> None:
        for old in self._checkpoints()[KEPT_CHECKPOINTS:]:
            old.unlink()

    def _checkpoints(self) -> list[Path]:
        """Newest first, by number: as text, 10000 comes before 9999. The user's own files are left out."""
        ours = {path: int(name[1]) for path in self.path.glob("*.pt") if (name := _CHECKPOINT.fullmatch(path.name))}
        return sorted(ours, key=ours.__getitem__, reverse=True)
