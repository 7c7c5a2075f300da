"""Files: where those of the user lie, writing them so that they are whole or absent, and lock files.

A file is written under another name, flushed to disk and moved into place. It is checked when it is read.
Tests: tests/_core/test_files.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_SEAL = b"sha256:"
_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{32}")


def default_root() -> Path:
    """Where data sets lie: $LASTLAYER_DATA, else $XDG_CACHE_HOME/lastlayer/data, else ~/.cache/lastlayer/data.

    Example:
        >>> import os
        >>> os.environ["LASTLAYER_DATA"] = "somewhere"
        >>> default_root().name
        'somewhere'
        >>> del os.environ["LASTLAYER_DATA"]
    """
    return _place("LASTLAYER_DATA", "data")


def image_cache() -> Path:
    """Where decoded images lie: $LASTLAYER_CACHE, else $XDG_CACHE_HOME/lastlayer/images, else ~/.cache/..."""
    return _place("LASTLAYER_CACHE", "images")


def _place(variable: str, folder: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lastlayer" / folder


class DamagedFileError(ValueError):
    """The content of a file is not what was written: it was cut short or altered."""


def describe_damage(folder: Path, error: Exception) -> str:
    """Why a run folder cannot be read, and what to do about it."""
    text = f"{folder}: no {error} in it" if isinstance(error, KeyError) else str(error)
    return f"{text}. Delete the folder and run the command again to train it anew."


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a crash at any moment, or an OSError, leaves the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with naming(path):
            with name.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    # Flush the folder too: without this a power cut can undo a rename that has returned.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of the system that lack it, such as the one for a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextlib.contextmanager
def locked(path: Path, *, seconds: float = math.inf, waiting: str = "") -> Iterator[None]:
    """Hold a lock file, which one process can hold at a time. When the process ends or is killed, the system frees it.

    The file is made if it is missing, and stays there. If another process holds it, this prints `waiting` on stderr,
    and raises BlockingIOError if it still holds it after so many seconds.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    # thread_local=False: a generator may take the lock in one thread and be closed in another
    lock = FileLock(path, thread_local=False)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting:
                print(waiting, file=sys.stderr)
            lock.acquire(timeout=-1 if math.isinf(seconds) else seconds, poll_interval=0.02)
    except Timeout:
        raise BlockingIOError(f"another process holds {path}") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock file.

    We ask with a shared lock, if the system has them. Then several processes may ask at once, also about the files of
    another user, which they may read but not lock.
    """
    if not path.exists():
        return False
    try:
        from fcntl import LOCK_NB, LOCK_SH, flock
    except ImportError:
        try:
            with locked(path, seconds=0):
                return False
        except BlockingIOError:
            return True
    with path.open() as file:
        try:
            flock(file, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            return True
    return False


def clear_unfinished(folder: Path) -> None:
    """Delete the unfinished files of killed processes. No process may be writing in the folder now."""
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def write_sealed(path: Path, payload: bytes, owner: str = "") -> None:
    """Write bytes with their checksum in front of them, and whose they are. The checksum covers both."""
    mark = f" {owner}".encode() if owner else b""
    write_atomically(path, _SEAL + sha256(mark + payload).encode() + mark + b"\n" + payload)


def read_sealed(path: Path) -> tuple[bytes, str]:
    """Read what `write_sealed` wrote: the bytes, and the owner or "". DamagedFileError if the checksum does not fit."""
    head, newline, payload = path.read_bytes().partition(b"\n")
    expected, space, owner = head.removeprefix(_SEAL).partition(b" ")
    _check(path, sha256(space + owner + payload if newline else b""), expected.decode(errors="replace"))
    return payload, owner.decode()


def check_file(path: Path, expected: str) -> None:
    """Raise DamagedFileError unless the file has the expected SHA-256. The file is read in pieces."""
    with path.open("rb") as file:
        _check(path, hashlib.file_digest(file, "sha256").hexdigest(), expected)


def _check(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise DamagedFileError(f"{path} is damaged: SHA-256 expected {expected[:64]}, found {found}")


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a safetensors file. Tensors that share memory, such as tied weights, are each written in full."""
    from safetensors.torch import save

    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        own[name] = value.clone() if memory in seen else value  # the format refuses two names for the same memory
        seen.add(memory)
    return save(own)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a `sha256` field over the rest of it."""
    body = dict(content)
    body["sha256"] = sha256(canonical(body))
    write_atomically(path, (json.dumps(body, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote, without the checksum. DamagedFileError if it is no JSON, or that does not fit."""
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from error
    if not isinstance(body, dict) or "sha256" not in body:
        raise DamagedFileError(f"{path} is damaged: it holds no JSON object with a checksum")
    expected = body.pop("sha256")
    _check(path, sha256(canonical(body)), str(expected))
    return body


def canonical(body: Mapping[str, Any]) -> bytes:
    """Plain content as JSON, the same for all that is equal."""
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
