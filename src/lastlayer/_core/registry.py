"""What has a name: the nearest spelling of one, and losses and models of the user's own, found by import path."""

import difflib
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast


def nearest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" for the known word nearest to one that is not known; "" where none is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def find(module_name: str, name: str, what: str) -> Callable[..., Any]:
    """The callable of that name in a module on PYTHONPATH or in the working folder.

    Args:
        module_name: as in an import statement.
        name: of a function or class in it.
        what: begins every message, as in "model 'my_net:net'".

    Raises:
        ValueError: the module cannot be imported, or has no such callable.
    """
    here = str(Path.cwd())
    if here not in sys.path:  # a command, unlike python itself, does not look there
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{what}: module {error.name!r} cannot be imported; it was looked for on PYTHONPATH and in {here}"
        ) from error
    except Exception as error:  # it is the user's code: anything can come out
        raise ValueError(f"{what}: importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise ValueError(f"{what}: module {module_name!r} has no callable {name!r}{nearest(name, known)}")
    return cast(Callable[..., Any], found)


def digest(module_name: str, found: Callable[..., Any]) -> str:
    """SHA-256 of the files that name and define a callable, not of what they import; "" where there are no files."""
    modules = [sys.modules.get(name) for name in (module_name, getattr(found, "__module__", None)) if name]
    paths = {file for module in modules if (file := getattr(module, "__file__", None)) is not None}
    content = [Path(path).read_bytes() for path in sorted(paths) if Path(path).is_file()]
    return hashlib.sha256(b"".join(content)).hexdigest() if content else ""
