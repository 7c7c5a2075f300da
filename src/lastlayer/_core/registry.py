"""One registry for everything that has a name: losses, heads, models and data sets, also those of the user.

Tests: tests/_core/test_registry.py.
"""

import contextlib
import difflib
import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
Given = TypeVar("Given")


class Registry(Generic[T]):
    """Parts of one kind by name. Messages call a part by its kind, such as "loss".

    `elsewhere` says how to name a part of one's own, for the message about an unknown name.
    """

    def __init__(self, kind: str, elsewhere: str = "") -> None:
        self.kind = kind
        self._elsewhere = elsewhere
        self._parts: dict[str, T] = {}

    def add(self, name: str, part: T) -> None:
        """Register a part. ValueError if the name is taken."""
        if name in self._parts:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        self._parts[name] = part

    def adding(self, name: str, part_of: Callable[[Any], T]) -> Callable[[Given], Given]:
        """A decorator that registers what `part_of` makes of the class or function below it."""

        def add(given: Given) -> Given:
            self.add(name, part_of(given))
            return given

        return add

    def get(self, name: str, meant: str | None = None) -> T:
        """The part of that name. If there is none, ValueError with the known name nearest to it, or to `meant`."""
        if name not in self._parts:
            hint = nearest(name if meant is None else meant, self._parts)
            elsewhere = f"; or {self._elsewhere}" if self._elsewhere else ""
            raise ValueError(f"{self.kind} {name!r} is unknown{hint}; available: {', '.join(self.names())}{elsewhere}")
        return self._parts[name]

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._parts)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)


def import_all(package: ModuleType) -> None:
    """Import every module of a package, so that each one registers its parts."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known word nearest to an unknown one, or "" if none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def options_of(factory: Callable[..., Any], without: Collection[str] = ()) -> dict[str, Any]:
    """The options that a factory takes, with their defaults. `inspect.Parameter.empty` means that it has none."""
    parameters = inspect.signature(factory).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: p.default for p in named if p.name not in without}


def check_options(
    what: str, given: Iterable[str], known: Iterable[str], hint: Callable[[str], str] = lambda _: ""
) -> None:
    """Raise ValueError for an option that a part does not take. It suggests the nearest one and lists those known.

    `what` is the part in the message, such as "head normalized". `hint` makes a text for an option near none.
    """
    known = list(known)
    for option in given:
        if option not in known:
            near = nearest(option, known) or hint(option)
            raise ValueError(f"{what} has no option {option!r}{near}; it has {', '.join(known) or 'none'}")


def split_path(name: str) -> tuple[str, str] | None:
    """Module and name of a part of one's own, "package.module:name" or "package.module.name". Else None."""
    module, separator, rest = name.partition(":") if ":" in name else name.rpartition(".")
    return (module, rest) if separator and module and rest else None


class UntrustedError(ValueError):
    """A file names code that the user has not said to trust."""


_source: ContextVar[tuple[str, tuple[str, ...]] | None] = ContextVar("source of names", default=None)


@contextlib.contextmanager
def names_from(file: str, trust: Collection[str] = ()) -> Iterator[None]:
    """Inside this context names come from a file and not from the user, so `find` imports only trusted modules.

    Args:
        file: where the names come from, for the message.
        trust: modules that may be imported, such as "my_package.nets". A package stands for all its modules.
    """
    if isinstance(trust, str):
        raise TypeError(f"trust must be a list of modules, got the text {trust!r}: write [{trust!r}]")
    before = _source.set((file, tuple(trust)))
    try:
        yield
    finally:
        _source.reset(before)


def check_trusted(module_name: str, what: str) -> None:
    """Raise UntrustedError if a name comes from a file and its module is not trusted."""
    if (source := _source.get()) is None:
        return
    file, trusted = source
    if not any(module_name == one or module_name.startswith(f"{one}.") for one in trusted):
        raise UntrustedError(
            f"{file} names {what}: this would run code of the module {module_name!r}, which a file alone cannot allow. "
            f"If you trust it, say so: trust=[{module_name!r}] in Python, --trust {module_name} on the command line"
        )


def find(module_name: str, name: str, what: str) -> Callable[..., Any]:
    """The callable of that name in a module on PYTHONPATH or in the working folder.

    ValueError if there is none, UntrustedError if the name comes from a file and the module is not trusted. See
    `names_from`. Every message begins with `what`, such as "model 'my_net:net'".
    """
    check_trusted(module_name, what)
    here = str(Path.cwd())
    if here not in sys.path:  # `python -m` looks there, an installed command does not
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what}: module {error.name!r} cannot be imported; it was looked for on PYTHONPATH and in {here}"
        ) from error
    except Exception as error:  # the user's code can raise anything
        raise ValueError(f"{what}: importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise ValueError(f"{what}: module {module_name!r} has no callable {name!r}{nearest(name, known)}")
    return cast(Callable[..., Any], found)


def digest(module_name: str, found: Callable[..., Any]) -> str:
    """SHA-256 of the files that name and define a callable, without what they import. "" if there are no files."""
    modules = [sys.modules.get(name) for name in (module_name, getattr(found, "__module__", None)) if name]
    paths = {file for module in modules if (file := getattr(module, "__file__", None)) is not None}
    content = [Path(path).read_bytes() for path in sorted(paths) if Path(path).is_file()]
    return hashlib.sha256(b"".join(content)).hexdigest() if content else ""
