"""The files of data sets: checksums, downloads that can be resumed, archives. Tests: tests/data/test_files.py."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from lastlayer._core.files import sha256

Progress = Callable[[str, int, int | None], None]
_PIECE = 1 << 20


class CorruptFileError(ValueError):
    """A file of a data set is damaged: truncated, altered, or not of the format it should be."""


class DownloadError(OSError):
    """A file could not be fetched. The message says from where and why."""


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def verified(path: Path, data: bytes, expected: str | None) -> str:
    """The SHA-256 of the content of a file. Raises CorruptFileError if the `expected` "algorithm:hexdigest" differs."""
    found = sha256(data)
    if expected is not None:
        algorithm, _, wanted = expected.partition(":")
        actual = found if algorithm == "sha256" else hashlib.new(algorithm, data).hexdigest()
        if actual != wanted:
            raise CorruptFileError(
                f"{path} is damaged or was altered: {algorithm} expected {wanted}, found {actual}. "
                "Delete it and fetch it again, or pass verify=False to read it as it is"
            )
    return found


def read(path: Path, known: Mapping[str, str] | None = None) -> tuple[bytes, str]:
    """Bytes and SHA-256 of a file, compared with `known[path.name]` if there is one."""
    data = path.read_bytes()
    return data, verified(path, data, None if known is None else known.get(path.name))


def require(path: Path, name: str) -> Path:
    """The path itself, if it exists."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing; the data set is incomplete: fetch it again")
    return path


@dataclass(frozen=True)
class Remote:
    """A file on the network, and its checksum if one is known."""

    urls: tuple[str, ...]  # places that hold the same file, tried in order
    path: str  # where it goes, relative to the data root. An archive is deleted after it was unpacked
    md5: str | None = None
    sha256: str | None = None
    unpacks_to: str | None = None  # for an archive, the file or folder that it holds, relative to the data root


def download(
    url: str,
    dest: str | Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    progress: Progress | None = None,
    retries: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Fetch a file over HTTP, or the rest of it if an earlier attempt was cut, and return `dest`.

    Bytes go to `dest` + ".part". When all are there, the checksum is verified and the file renamed, so that `dest` is
    complete or absent.

    Args:
        sha256, md5: expected checksum. If a continued file does not match, it is fetched once more from the start.
        progress: called with (file name, bytes so far, bytes in all or None).
        retries: how many times a failed attempt is continued. An error of the client, such as 404, ends it at once.
        timeout: seconds without an answer after which an attempt fails.

    Raises:
        DownloadError: the server cannot be reached, refuses, or the connection is cut again and again.
        CorruptFileError: the checksum is not the expected one.
    """
    dest = Path(dest)
    part = dest.with_name(dest.name + ".part")
    dest.parent.mkdir(parents=True, exist_ok=True)
    continued = part.exists()
    for attempt in range(retries + 1):
        try:
            _continue(url, part, dest.name, progress, timeout)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 or attempt == retries:
                kept = f" ({part} kept)" if part.exists() else ""
                raise DownloadError(f"{url}: the server answered {error.code} {error.reason}{kept}") from error
        except (OSError, HTTPException) as error:
            if attempt == retries:
                kept = f"; {part.stat().st_size} bytes are kept, run it again to continue" if part.exists() else ""
                # the text of a URLError wraps the reason in "<urlopen error ...>"
                why = f"no connection ({error.reason})" if isinstance(error, urllib.error.URLError) else str(error)
                raise DownloadError(f"{url} cannot be fetched: {why or type(error).__name__}{kept}") from error
        time.sleep(min(0.1 * 4**attempt, 5.0))
    for algorithm, expected in (("sha256", sha256), ("md5", md5)):
        if expected is not None and (found := file_digest(part, algorithm)) != expected:
            part.unlink()
            if continued:  # the earlier part may have been of another file
                return download(url, dest, sha256=sha256, md5=md5, progress=progress, retries=retries, timeout=timeout)
            raise CorruptFileError(f"{url}: {algorithm} expected {expected}, found {found}; the file was not kept")
    os.replace(part, dest)
    return dest


def _continue(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    """One attempt: ask for the missing bytes, append them, and raise unless the file has the promised length."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have and error.headers.get("Content-Range") == f"bytes */{have}":
            return  # nothing is missing
        if error.code == 416:
            part.unlink()  # longer than the server's file: begin again
            raise OSError("the server's file changed while it was fetched") from error
        raise
    with response:
        resumed = response.status == 206
        have = have if resumed else 0  # a server without ranges sends all bytes again
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            while piece := response.read(_PIECE):
                file.write(piece)
                have += len(piece)
                if progress is not None:
                    progress(name, have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have != total:
        raise OSError(f"the connection was cut after {have} of {total} bytes")


def fetch(remote: Remote, root: Path, *, progress: Progress | None = None) -> Path:
    """Fetch a file into `root`, unless it is there already, and unpack it if it is an archive.

    If no address gives the file, the DownloadError says what each of them answered.
    """
    target = root / (remote.unpacks_to or remote.path)
    if target.exists():
        return target
    archive = root / remote.path
    failures = []
    for url in remote.urls:
        try:
            download(url, archive, sha256=remote.sha256, md5=remote.md5, progress=progress)
            break
        except (DownloadError, CorruptFileError) as error:
            failures.append(str(error))
    else:
        raise DownloadError("; ".join(failures))
    if remote.unpacks_to is not None:
        unpack(archive, target.parent)
        if not target.exists():
            raise CorruptFileError(f"{archive} holds no {remote.unpacks_to}")
        archive.unlink()
    return target


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .zip or .tar.gz into a folder, all of it or nothing. Members that point outside it are refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:
        try:
            if archive.suffix == ".zip":
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(staging)
            else:
                with tarfile.open(archive) as tarred:
                    tarred.extractall(staging, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk, not the archive
            raise CorruptFileError(f"{archive} cannot be unpacked: {error}") from error
        for entry in Path(staging).iterdir():
            destination = folder / entry.name
            if destination.is_dir():
                shutil.rmtree(destination)
            os.replace(entry, destination)
