"""Finding, reading and verifying source files."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class CorruptFileError(ValueError):
    """A source file is damaged: truncated, altered, or not of the format it should be."""


def digest(data: bytes, algorithm: str = "sha256") -> str:
    """Hex digest of bytes."""
    return hashlib.new(algorithm, data).hexdigest()


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def verify(path: Path, data: bytes, expected: str | None) -> str:
    """Check bytes against "algorithm:hexdigest" and return their SHA-256.

    Raises:
        CorruptFileError: the digest differs; the file, the digest expected and the one found are named.
    """
    found = digest(data)
    if expected is not None:
        algorithm, _, wanted = expected.partition(":")
        actual = found if algorithm == "sha256" else digest(data, algorithm)
        if actual != wanted:
            raise CorruptFileError(
                f"{path} is damaged or was altered: {algorithm} expected {wanted}, found {actual}. "
                "Delete it and fetch it again, or pass verify=False to read it as it is"
            )
    return found


def read(path: Path, known: Mapping[str, str] | None = None) -> tuple[bytes, str]:
    """Bytes and SHA-256 of a file, verified against `known[path.name]` where that is given."""
    data = path.read_bytes()
    return data, verify(path, data, None if known is None else known.get(path.name))


@dataclass(frozen=True)
class Places:
    """Where a data set may lie: one of the files or folders `probes` in one of `folders`.

    Looked for in `root/<folder>`, `root/<name>/<folder>`, `root/<name>` and `root` itself.
    """

    folders: tuple[str, ...]
    probes: tuple[str, ...]

    def all(self, root: Path, name: str) -> list[Path]:
        """Every folder looked into, in order."""
        tried = [root / folder for folder in self.folders] + [root / name / folder for folder in self.folders]
        return list(dict.fromkeys([*tried, root / name, root]))

    def find(self, root: Path, name: str) -> Path | None:
        """The first folder that holds one of the probes."""
        for folder in self.all(root, name):
            if any((folder / probe).exists() for probe in self.probes):
                return folder
        return None


def locate(root: Path, name: str, places: Places, hint: str) -> Path:
    """The folder of a data set.

    Raises:
        FileNotFoundError: there is none; the places tried and `hint`, how to get the data, are named.
    """
    folder = places.find(root, name)
    if folder is None:
        tried = ", ".join(str(place) for place in places.all(root, name))
        raise FileNotFoundError(f"{name}: no {' or '.join(places.probes)} in {tried}. {hint}")
    return folder


def how_to_get(name: str, root: Path) -> str:
    """The hint for `locate` of a data set that can be fetched by name."""
    return f"Get it with: lastlayer data get {name} --data-root {root}"


def require(path: Path, name: str) -> Path:
    """The path itself, if it exists."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing; the data set is incomplete: fetch it again")
    return path
