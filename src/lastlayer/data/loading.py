"""Reading a data set by name or by path, once if several trials want it, and checking its files."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lastlayer._core.registry import options_of

from .dataset import Dataset, TextDataset
from .readers.arrays import arrays
from .readers.folders import image_folder
from .readers.texts import DEFAULT_LENGTH, load_tokenizer, tokenise
from .sources import check_reader_options, data_root, describe, find


@dataclass(frozen=True)
class Check:
    """Result of `check`: `status` is "ok", "missing" or "corrupt"; `message` says what and where."""

    name: str
    status: Literal["ok", "missing", "corrupt"]
    message: str
    checksums: dict[str, str]


def load(name: str | Path, root: str | Path | None = None, *, verify: bool = True, **options: Any) -> Dataset:
    """Read a data set by name or by path.

    Args:
        name: a registered name (`available()`); or the path of a folder of images, of a .npz or of a .safetensors file,
            absolute or relative to the working folder or to `root`, for a file also without its ending; or
            "package.module:function" for a function of your own that returns a `Dataset`.
        root: folder that holds the data sets; None means `default_root()`.
        verify: compare files with their checksums, if those are known; False reads altered files as they are.
        options: what the reader takes, such as `size=64` for image folders or `seed=1` for synthetic sets. Texts need
            `tokenizer`, a name of transformers or a folder under the data root; `length` (128) is in tokens.

    Raises:
        ValueError: unknown name, texts without a tokenizer, labels out of range, a class without samples.
        FileNotFoundError: the files are not there. The message names the places tried.
        CorruptFileError: a file is damaged. The message names the checksum expected and the one found.

    Example:
        >>> digits = load("digits")
        >>> digits.in_shape, digits.num_classes, len(digits.train) + len(digits.test)
        ((1, 8, 8), 10, 1797)
    """
    folder = data_root(root)
    key = repr((str(name), folder, verify, sorted(options.items())))
    return _KEPT.get(key, lambda: _read(name, folder, verify, options))


def _read(name: str | Path, root: Path, verify: bool, options: dict[str, Any]) -> Dataset:
    path = find(name, root)
    if path is not None:
        return _read_path(path, options)
    source = describe(str(name))
    for_texts = ({"tokenizer", "length"} & set(options)) - set(source.options)
    tokens = {option: options.pop(option) for option in sorted(for_texts)}
    dataset = source.read(root, verify, options)
    if not isinstance(dataset, TextDataset):
        if tokens:
            raise ValueError(f"{name} is no data set of texts: it takes no {' and no '.join(tokens)}")
        return dataset
    if "tokenizer" not in tokens:
        raise ValueError(
            f"{name} is a data set of texts: give tokenizer=, a name of transformers or a folder under the data "
            f"root, or read the texts with lastlayer.data.load_text({str(name)!r})"
        )
    tokenizer = load_tokenizer(str(tokens["tokenizer"]), root)
    return tokenise(dataset, tokenizer, int(tokens.get("length", DEFAULT_LENGTH)))


def _read_path(path: Path, options: dict[str, Any]) -> Dataset:
    reader: Callable[..., Dataset] = image_folder if path.is_dir() else arrays
    what = f"the folder {path}" if path.is_dir() else str(path)
    check_reader_options(what, options_of(reader, without=("folder", "path")), options)
    return reader(path, **options)


class _Kept:
    """The two data sets that `load` returned last, while `reading_once` is open."""

    def __init__(self) -> None:
        self.users = 0
        self.datasets: dict[str, Dataset] = {}  # by the arguments of `load`, the last used one at the end
        self.lock = threading.RLock()

    def get(self, key: str, read: Callable[[], Dataset]) -> Dataset:
        with self.lock:
            if not self.users:
                return read()
            found = self.datasets.pop(key, None)
            if len(self.datasets) == 2:
                del self.datasets[next(iter(self.datasets))]
            self.datasets[key] = read() if found is None else found
            return self.datasets[key]


_KEPT = _Kept()


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """While this context is open, `load` reads a data set once. Later calls return the same object.

    The two data sets used last are kept: one for the trials and one for their unknown classes, perhaps. When the last
    context closes, nothing is kept. Do not write to the tensors of a data set that is shared like this.

    Example:
        >>> with reading_once():
        ...     load("iris") is load("iris")
        True
    """
    with _KEPT.lock:
        _KEPT.users += 1
    try:
        yield
    finally:
        with _KEPT.lock:
            _KEPT.users -= 1
            if not _KEPT.users:
                _KEPT.datasets.clear()


def load_text(name: str, root: str | Path | None = None, *, verify: bool = True, **options: Any) -> TextDataset:
    """Read a data set of texts by name. Arguments and errors are as for `load`; data that are not texts are refused."""
    dataset = describe(name).read(data_root(root), verify, options)
    if not isinstance(dataset, TextDataset):
        raise ValueError(f"{name} is no data set of texts: read it with lastlayer.data.load({name!r})")
    return dataset


def check(name: str, root: str | Path | None = None) -> Check:
    """Read a whole data set, by name or path as for `load`, and compare its files with the known checksums.

    Example:
        >>> check("digits").status
        'ok'
    """
    folder = data_root(root)
    try:
        path = find(name, folder)  # a ValueError of its own says that the name is unknown
        try:
            dataset = describe(name).read(folder, True, {}) if path is None else _read_path(path, {})
        except ValueError as error:
            return Check(name, "corrupt", str(error), {})
    except FileNotFoundError as error:
        return Check(name, "missing", str(error), {})
    counts = f"{len(dataset.train)} train, {len(dataset.test)} test, {dataset.num_classes} classes"
    return Check(name, "ok", counts, dict(dataset.checksums))
