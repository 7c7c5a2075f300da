"""The named data sets: what is known of each before it is read, and the function that reads it.

The facts are in sources.toml: addresses, checksums, sizes, licences. `register` takes them too, for data sets that are
not of this package.
"""

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lastlayer._core.files import default_root
from lastlayer._core.registry import Registry, check_options, options_of
from lastlayer._core.registry import find as find_callable

from .dataset import Dataset, TextDataset
from .files import Progress, Remote, fetch

AnyDataset = Dataset | TextDataset
Reader = Callable[..., AnyDataset]
R = TypeVar("R", bound=Reader)


@dataclass(frozen=True)
class Source:
    """What is known of a named data set before it is read."""

    name: str  # what `load` takes
    reader: Reader  # is called with the data root if its first parameter is `root`, and with the options by keyword
    summary: str = ""  # one line for people
    homepage: str = ""  # where it comes from
    licence: str = ""  # its terms of use
    citation: str = ""  # what to cite
    by_hand: str = ""  # how to get the files, if they cannot be fetched
    remotes: tuple[Remote, ...] = ()  # files that can be fetched from an official place
    # The files lie in the data root, in a folder there with the name of the set, or in one of these folders in either.
    folders: tuple[str, ...] = ()
    probes: tuple[str, ...] = ()  # files or folders. If one of them is found there, the data set is there
    checksums: Mapping[str, str] = field(default_factory=dict)  # "algorithm:hexdigest" by file name
    # training samples, shape of one input with the default options, and classes, if they are known
    size: tuple[int, tuple[int, ...], int] | None = None

    @property
    def needs_files(self) -> bool:
        """Whether it is read from files under the data root."""
        return "root" in inspect.signature(self.reader).parameters

    @property
    def options(self) -> dict[str, Any]:
        """The options that the reader takes, with their defaults; `verify` is not one of them."""
        return options_of(self.reader, without=("root", "verify"))

    def places(self, root: Path) -> list[Path]:
        """Every folder in which the files are looked for, in order."""
        tried = [root / folder for folder in self.folders] + [root / self.name / folder for folder in self.folders]
        return list(dict.fromkeys([*tried, root / self.name, root]))

    def find(self, root: Path) -> Path | None:
        """The folder that the reader would read, or None. Without probes, it is the one of the set's name."""
        if not self.probes:
            own = root / self.name
            return own if own.is_dir() and any(own.iterdir()) else None
        there = (folder for folder in self.places(root) if any((folder / probe).exists() for probe in self.probes))
        return next(there, None)

    def locate(self, root: Path) -> Path:
        """What `find` finds. The FileNotFoundError names the places tried and how to get the data."""
        if (folder := self.find(root)) is not None:
            return folder
        tried = ", ".join(str(place) for place in self.places(root))
        how = f"Get it with: lastlayer data get {self.name} --data-root {root}"
        if not self.remotes:
            how = f"Fetch it by hand {self.by_hand or f'from {self.homepage}'}"
        raise FileNotFoundError(f"{self.name}: no {' or '.join(self.probes)} in {tried}. {how}")

    def read(self, root: Path, verify: bool, options: Mapping[str, Any]) -> AnyDataset:
        """Check the options, call the reader, and add where the data comes from."""
        check_reader_options(f"data set {self.name!r}", self.options, options)
        if "verify" in inspect.signature(self.reader).parameters:
            options = {"verify": verify, **options}
        dataset = self.reader(*((root,) if self.needs_files else ()), **options)
        return replace(dataset, name=self.name, source=self.homepage, licence=self.licence, citation=self.citation)


_SOURCES: Registry[Source] = Registry(
    "data set", "the path of a folder of images, a .npz or a .safetensors file, or package.module:function"
)


def register(name: str, **facts: Any) -> Callable[[R], R]:
    """Decorator that adds a reader to the data sets that `load` knows.

    `facts` are fields of `Source`, such as `summary` and `licence`. Without a summary, all are taken from sources.toml.

    Example:
        >>> @register("two-points", summary="two points", licence="none")
        ... def two_points(*, distance: float = 1.0) -> Dataset: ...
        >>> describe("two-points").options
        {'distance': 1.0}
    """
    return _SOURCES.adding(name, lambda reader: Source(name, reader, **facts))


@functools.cache
def _facts() -> dict[str, dict[str, Any]]:
    """The content of sources.toml by data set, as `Source` takes it."""
    content = tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))
    known: dict[str, dict[str, Any]] = _with_tuples(content)
    for facts in known.values():
        facts["remotes"] = tuple(Remote(**remote) for remote in facts.get("remotes", ()))
    return known


def _with_tuples(value: Any) -> Any:
    """The same content with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(_with_tuples(item) for item in value) if isinstance(value, list) else value


def available() -> tuple[str, ...]:
    """Names of the data sets that `load` knows, sorted.

    Example:
        >>> "digits" in available()
        True
    """
    return tuple(_SOURCES.names())


def describe(name: str) -> Source:
    """What is known of a data set, by its registered name or, for a reader of your own, "package.module:function".

    For an unknown name, the ValueError suggests the nearest one.

    Example:
        >>> describe("digits").needs_files
        False
    """
    if name not in _SOURCES and is_own(name):
        module, function = name.split(":")
        return Source(name, find_callable(module, function, f"data set {name!r}"))
    source = _SOURCES.get(name)
    return source if source.summary else replace(source, **_facts().get(name, {}))


def is_own(name: str) -> bool:
    """Whether a name has the form "package.module:function", for a reader of the user's own."""
    module, colon, function = name.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def check_reader_options(what: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse an option that a reader does not take, and one that is no number if its default is a number."""
    check_options(what, given, known)
    for option, value in given.items():
        if isinstance(known[option], int | float) and not isinstance(value, int | float):
            raise ValueError(f"{what}: option {option} must be a number like {known[option]!r}, got {value!r}")


def data_root(root: str | Path | None) -> Path:
    """The data root: the folder given, or else `default_root()`."""
    return default_root() if root is None else Path(root).expanduser()


def find(name: str | Path, root: str | Path | None = None) -> Path | None:
    """The file or folder that `load` would read. It is None for a registered name and for a reader of your own.

    For an unknown name, the ValueError suggests the nearest one. For a path to nothing, the FileNotFoundError names the
    places tried.

    Example:
        >>> find("digits") is None
        True
    """
    if str(name) in _SOURCES:
        return None
    if not str(name):  # which as a path is the working folder
        _SOURCES.get("")
    path, root = Path(name).expanduser(), data_root(root)
    for candidate in (path, root / path):
        if candidate.exists():
            return candidate
        for ending in (".npz", ".safetensors"):
            if path.suffix == "" and (file := candidate.with_name(candidate.name + ending)).exists():
                return file
    if not is_own(str(name)) and (path.suffix in (".npz", ".safetensors") or len(path.parts) > 1):
        raise FileNotFoundError(f"data: neither {path} nor {root / path} exists")
    describe(str(name))
    return None


def get(name: str, root: str | Path | None = None, *, progress: Progress | None = None) -> Path:
    """Fetch a data set from its official place into the data root, and return that root.

    Files that are there already are kept. Interrupted downloads continue where they stopped. `progress` is called with
    (file name, bytes so far, bytes in all or None). If there is no such place, the ValueError names the home page.
    """
    source = describe(name)
    folder = data_root(root)
    if not source.remotes:
        how = f"must be fetched by hand: {source.homepage}" if source.needs_files else "comes with this package"
        raise ValueError(f"{name} {how}")
    for remote in source.remotes:
        fetch(remote, folder, progress=progress)
    return folder
