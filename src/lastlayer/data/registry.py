"""The registry of data sets: load by name or path, list, fetch, check."""

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from lastlayer._core.registry import nearest

from ._files import Places
from .dataset import Dataset, TextDataset
from .download import Progress, Remote, fetch
from .tokens import DEFAULT_LENGTH, load_tokenizer, tokenise

AnyDataset = Dataset | TextDataset
Reader = Callable[..., AnyDataset]
R = TypeVar("R", bound=Reader)


@dataclass(frozen=True)
class Source:
    """What is known of a named data set before it is read.

    Attributes:
        name: the name `load` takes.
        reader: called with the options; before them with the root where files are needed, and with `verify` where it
            has such a keyword.
        summary: one line for people.
        homepage: where it comes from.
        licence: terms of use.
        citation: what to cite.
        needs_files: whether it is read from files under the data root.
        remotes: files that can be fetched from an official place; empty where there is none.
        places: where the reader looks for its files; None where it does not say.
    """

    name: str
    reader: Reader
    summary: str
    homepage: str
    licence: str
    citation: str
    needs_files: bool
    remotes: tuple[Remote, ...]
    places: Places | None = None

    def find(self, root: Path) -> Path | None:
        """The folder under the data root that the reader would read; None where there is none."""
        if self.places is not None:
            return self.places.find(root, self.name)
        own = root / self.name
        return own if own.is_dir() and any(own.iterdir()) else None


@dataclass(frozen=True)
class Check:
    """Result of `check`: `status` is "ok", "missing" or "corrupt"; `message` says what and where."""

    name: str
    status: Literal["ok", "missing", "corrupt"]
    message: str
    checksums: dict[str, str]


_SOURCES: dict[str, Source] = {}


def register(
    name: str,
    *,
    summary: str,
    homepage: str = "",
    licence: str = "",
    citation: str = "",
    needs_files: bool = True,
    remotes: tuple[Remote, ...] = (),
    places: Places | None = None,
) -> Callable[[R], R]:
    """Decorator that adds a reader to the registry under `name`."""

    def add(reader: R) -> R:
        if name in _SOURCES:
            raise ValueError(f"data set {name!r} is registered twice")
        _SOURCES[name] = Source(name, reader, summary, homepage, licence, citation, needs_files, remotes, places)
        return reader

    return add


def available() -> tuple[str, ...]:
    """Names of the data sets that `load` knows, sorted.

    Example:
        >>> "digits" in available()
        True
    """
    return tuple(sorted(_SOURCES))


def describe(name: str) -> Source:
    """What is known of a named data set.

    Raises:
        ValueError: no data set has that name; the nearest is suggested.

    Example:
        >>> describe("digits").needs_files
        False
    """
    if name not in _SOURCES:
        raise _unknown(name)
    return _SOURCES[name]


def _unknown(name: str) -> ValueError:
    return ValueError(
        f"data set {name!r} is unknown{nearest(name, _SOURCES)}; available: {', '.join(available())}; or the path of a "
        "folder of images, a .npz or a .safetensors file"
    )


def default_root() -> Path:
    """Where data sets lie: $LASTLAYER_DATA, else $XDG_CACHE_HOME/lastlayer/data, else ~/.cache/lastlayer/data.

    Example:
        >>> import os
        >>> os.environ["LASTLAYER_DATA"] = "somewhere"
        >>> default_root().name
        'somewhere'
        >>> del os.environ["LASTLAYER_DATA"]
    """
    if chosen := os.environ.get("LASTLAYER_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "lastlayer" / "data"


def _root(root: str | Path | None) -> Path:
    return default_root() if root is None else Path(root).expanduser()


def load(name: str | Path, root: str | Path | None = None, *, verify: bool = True, **options: Any) -> Dataset:
    """Read a data set by name or by path.

    Args:
        name: a registered name (`available()`); or a path, absolute, relative to the working folder or to `root`: a
            folder of images, a .npz or a .safetensors file; or the name of such a file without its ending.
        root: folder that holds the data sets; None means `default_root()`.
        verify: compare files with their checksums, where those are known; False reads altered files as they are.
        options: what the reader takes, e.g. `size=64` for image folders or `seed=1` for synthetic sets; for texts
            `tokenizer`, a name of transformers or a folder under the data root, and `length` (128) in tokens.

    Returns:
        A `Dataset` of tensors.

    Raises:
        ValueError: unknown name, texts without a tokenizer, labels out of range, a class without samples.
        FileNotFoundError: the files are not there; the places tried are named.
        CorruptFileError: a file is damaged; its expected and found checksums are named.

    Example:
        >>> digits = load("digits")
        >>> digits.in_shape, digits.num_classes, len(digits.train) + len(digits.test)
        ((1, 8, 8), 10, 1797)
    """
    folder = _root(root)
    key = repr((str(name), folder, verify, sorted(options.items())))
    return _KEPT.get(key, lambda: _read(name, folder, verify, options))


def _read(name: str | Path, folder: Path, verify: bool, options: dict[str, Any]) -> Dataset:
    path = find(name, folder)
    if path is not None:
        return _load_path(path, options)
    tokenizer, length = options.pop("tokenizer", None), options.pop("length", DEFAULT_LENGTH)
    dataset = _load_named(_SOURCES[str(name)], folder, verify, options)
    if isinstance(dataset, TextDataset):
        if tokenizer is None:
            raise ValueError(
                f"{name} is a data set of texts: give tokenizer=, a name of transformers or a folder under the data "
                f"root, or read the texts with lastlayer.data.load_text({str(name)!r})"
            )
        return tokenise(dataset, load_tokenizer(str(tokenizer), folder), int(length))
    if tokenizer is not None:
        raise ValueError(f"{name} is no data set of texts: it takes no tokenizer, got {tokenizer!r}")
    return dataset


class _Kept:
    """The data sets that `load` gave last, while `reading_once` is open."""

    def __init__(self) -> None:
        self.users, self.keep = 0, 0
        self.datasets: dict[str, Dataset] = {}  # by what was asked for, the last used one at the end
        self.lock = threading.RLock()

    def get(self, key: str, read: Callable[[], Dataset]) -> Dataset:
        with self.lock:
            if not self.users:
                return read()
            found = self.datasets.pop(key, None)
            while len(self.datasets) >= self.keep:
                del self.datasets[next(iter(self.datasets))]
            self.datasets[key] = read() if found is None else found
            return self.datasets[key]


_KEPT = _Kept()


@contextlib.contextmanager
def reading_once(keep: int = 2) -> Iterator[None]:
    """While this context is open, `load` reads a data set once: asked for it again, it returns the same object.

    A command that runs several trials opens it around them, and so does each of its worker processes. When the last
    context closes, nothing is held any more. Do not write to the tensors of a data set that is shared like this.

    Args:
        keep: how many data sets to hold at once; the one that was not used for longest is dropped first. Two are
            enough for trials on one data set whose unknown classes come from another one.

    Example:
        >>> with reading_once():
        ...     load("iris") is load("iris")
        True
    """
    with _KEPT.lock:
        _KEPT.users += 1
        _KEPT.keep = max(_KEPT.keep, keep)
    try:
        yield
    finally:
        with _KEPT.lock:
            _KEPT.users -= 1
            if not _KEPT.users:
                _KEPT.keep = 0
                _KEPT.datasets.clear()


def load_text(name: str, root: str | Path | None = None, *, verify: bool = True, **options: Any) -> TextDataset:
    """Read a data set of texts by name; arguments and errors as for `load`.

    Raises:
        ValueError: unknown name, or a data set of tensors.
    """
    folder = _root(root)
    dataset = _load_named(describe(name), folder, verify, options)
    if not isinstance(dataset, TextDataset):
        raise ValueError(f"{name} is no data set of texts: read it with lastlayer.data.load({name!r})")
    return dataset


def _check_options(what: str, reader: Callable[..., Any], options: dict[str, Any]) -> None:
    """Refuse an option that a reader does not take, and a text or a list where its default is a number."""
    every = inspect.signature(reader).parameters.values()
    known = {p.name: p.default for p in every if p.kind is p.KEYWORD_ONLY and p.name != "verify"}
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"{what} has no option {option!r}{nearest(option, known)}; options: {', '.join(known) or 'none'}"
            )
        if isinstance(known[option], int | float) and not isinstance(value, int | float):
            raise ValueError(f"{what}: option {option} must be a number like {known[option]!r}, got {value!r}")


def _load_named(source: Source, root: Path, verify: bool, options: dict[str, Any]) -> AnyDataset:
    _check_options(f"data set {source.name!r}", source.reader, options)
    arguments = (root,) if source.needs_files else ()
    if "verify" in inspect.signature(source.reader).parameters:
        options = {"verify": verify, **options}
    dataset = source.reader(*arguments, **options)
    return replace(dataset, name=source.name, source=source.homepage, licence=source.licence, citation=source.citation)


def find(name: str | Path, root: str | Path | None = None) -> Path | None:
    """The file or folder that `load` would read; None for a registered name.

    Raises:
        ValueError: the name is unknown; the nearest is suggested.
        FileNotFoundError: it is a path and there is nothing; the places tried are named.

    Example:
        >>> find("digits") is None
        True
    """
    if str(name) in _SOURCES:
        return None
    if not str(name):  # which as a path is the working folder
        raise _unknown("")
    path, root = Path(name).expanduser(), _root(root)
    for candidate in (path, root / path):
        if candidate.exists():
            return candidate
        for ending in (".npz", ".safetensors"):
            if path.suffix == "" and (file := candidate.with_name(candidate.name + ending)).exists():
                return file
    if path.suffix in (".npz", ".safetensors") or len(path.parts) > 1:
        raise FileNotFoundError(f"data: neither {path} nor {root / path} exists")
    raise _unknown(str(path))


def _load_path(path: Path, options: dict[str, Any]) -> Dataset:
    if path.is_dir():
        from .folders import image_folder

        _check_options(f"the folder {path}", image_folder, options)
        return image_folder(path, **options)
    from .arrays import arrays

    _check_options(str(path), arrays, options)
    return arrays(path, **options)


def get(name: str, root: str | Path | None = None, *, progress: Progress | None = None) -> Path:
    """Fetch a data set from its official place into the data root; what is there already is kept.

    Interrupted downloads continue where they stopped.

    Args:
        name: a registered name.
        root: the data root; None means `default_root()`.
        progress: called with (file name, bytes so far, bytes in all or None).

    Returns:
        The data root.

    Raises:
        ValueError: there is no place to fetch it from; its home page is named.
    """
    source = describe(name)
    folder = _root(root)
    if not source.remotes:
        how = "comes with this package" if not source.needs_files else f"must be fetched by hand: {source.homepage}"
        raise ValueError(f"{name} {how}")
    for remote in source.remotes:
        fetch(remote, folder, progress=progress)
    return folder


def check(name: str, root: str | Path | None = None) -> Check:
    """Read a data set fully and compare its files with the known checksums.

    Args:
        name: a registered name or a path.
        root: the data root; None means `default_root()`.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> check("digits").status
        'ok'
    """
    folder = _root(root)
    try:
        path = find(name, folder)
    except FileNotFoundError as error:
        return Check(name, "missing", str(error), {})
    try:
        dataset = _load_named(_SOURCES[name], folder, True, {}) if path is None else _load_path(path, {})
    except FileNotFoundError as error:
        return Check(name, "missing", str(error), {})
    except ValueError as error:
        return Check(name, "corrupt", str(error), {})
    counts = f"{len(dataset.train)} train, {len(dataset.test)} test, {dataset.num_classes} classes"
    return Check(name, "ok", counts, dict(dataset.checksums))
