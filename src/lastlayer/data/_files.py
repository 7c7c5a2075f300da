"""Finding, reading and verifying source files."""

import hashlib
from collections.abc import Iterable, Mapping
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


def locate(root: Path, name: str, folders: Iterable[str], probes: Iterable[str], hint: str) -> Path:
    """The folder that holds one of the files or folders `probes`.

    Looked for in `root/<folder>`, `root/<name>/<folder>`, `root/<name>` and `root` itself.

    Raises:
        FileNotFoundError: none does; the places tried and `hint`, how to get the data, are named.
    """
    folders, probes = tuple(folders), tuple(probes)
    tried = [root / folder for folder in folders] + [root / name / folder for folder in folders]
    tried += [root / name, root]
    for folder in tried:
        if any((folder / probe).exists() for probe in probes):
            return folder
    places = ", ".join(str(folder) for folder in dict.fromkeys(tried))
    raise FileNotFoundError(f"{name}: no {' or '.join(probes)} in {places}. {hint}")


def require(path: Path, name: str) -> Path:
    """The path itself, if it exists."""
    if not path.exists():
        raise FileNotFoundError(f"{name}: {path} is missing; the data set is incomplete")
    return path
