"""GLUE tasks in their official tsv files: CoLA, MRPC, RTE, SST-2. Texts only; tokens are made elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ._files import CorruptFileError, locate, read, require
from .dataset import TextDataset, TextSplit
from .download import Remote
from .registry import register


@dataclass(frozen=True)
class _Task:
    """Where a task's columns are: by number where the file has no header, by name where it has one."""

    folder: str
    text: str | int
    pair: str | None
    label: str | int
    labels: tuple[str, str]  # as written in the file, in label order
    class_names: tuple[str, str]
    citation: str


_TASKS = {
    "cola": _Task(
        "CoLA",
        3,
        None,
        1,
        ("0", "1"),
        ("unacceptable", "acceptable"),
        "Warstadt, Singh, Bowman 2019, Neural network acceptability judgments",
    ),
    "mrpc": _Task(
        "MRPC",
        "#1 String",
        "#2 String",
        "Quality",
        ("0", "1"),
        ("not_equivalent", "equivalent"),
        "Dolan, Brockett 2005, Automatically constructing a corpus of sentential paraphrases",
    ),
    "rte": _Task(
        "RTE",
        "sentence1",
        "sentence2",
        "label",
        ("entailment", "not_entailment"),
        ("entailment", "not_entailment"),
        "Bentivogli et al. 2009, The fifth PASCAL recognizing textual entailment challenge",
    ),
    "sst-2": _Task(
        "SST-2",
        "sentence",
        None,
        "label",
        ("0", "1"),
        ("negative", "positive"),
        "Socher et al. 2013, Recursive deep models for semantic compositionality",
    ),
}
_FETCHED = ("cola", "rte", "sst-2")  # MRPC's owners give it as an installer only


def _read_tsv(path: Path, task: _Task) -> tuple[TextSplit, str]:
    data, sha256 = read(path)
    try:
        lines = data.decode("utf-8-sig").rstrip("\r\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptFileError(f"{path} is not UTF-8 text: {error}") from error
    rows = [line.rstrip("\r").split("\t") for line in lines]
    first = 0
    columns: dict[str | int, int] = {number: number for number in range(4)}
    if isinstance(task.label, str):
        columns = {name: number for number, name in enumerate(rows[0])}
        first = 1
    needed = [column for column in (task.text, task.pair, task.label) if column is not None]
    missing = [column for column in needed if column not in columns]
    if missing:
        raise CorruptFileError(f"{path} has no column {missing[0]!r}; its header is {rows[0]}")
    width = max(columns[column] for column in needed) + 1
    texts, pairs, target = [], [], []
    for number, row in enumerate(rows[first:], first + 1):
        if len(row) < width or row[columns[task.label]] not in task.labels:
            raise CorruptFileError(
                f"{path}, line {number}: {width} columns with a label of {task.labels} expected, found {row}"
            )
        texts.append(row[columns[task.text]])
        target.append(task.labels.index(row[columns[task.label]]))
        if task.pair is not None:
            pairs.append(row[columns[task.pair]])
    if not texts:
        raise CorruptFileError(f"{path} holds no samples")
    second = tuple(pairs) if task.pair is not None else None
    return TextSplit(tuple(texts), torch.tensor(target), second), sha256


def _reader(name: str, task: _Task) -> Callable[..., TextDataset]:
    def reader(root: Path, *, verify: bool = True) -> TextDataset:
        hint = f"Get it with: lastlayer data get {name} --data-root {root}"
        if name not in _FETCHED:
            hint = "Fetch it by hand as https://gluebenchmark.com/tasks says"
        folder = locate(root, name, (f"glue/{task.folder}", f"GLUE/{task.folder}"), ("train.tsv",), hint)
        splits, checksums = [], {}
        for file in ("train.tsv", "dev.tsv"):
            split, checksums[file] = _read_tsv(require(folder / file, name), task)
            splits.append(split)
        notes = ("test set: GLUE's dev set, whose labels are public",)
        return TextDataset(name, splits[0], splits[1], task.class_names, checksums, notes=notes)

    reader.__doc__ = f"Read `root/glue/{task.folder}/train.tsv` and dev.tsv; no checksums are known."
    return reader


for _name, _task in _TASKS.items():
    _remotes: tuple[Remote, ...] = ()
    if _name in _FETCHED:
        _remotes = (
            Remote(
                (f"https://dl.fbaipublicfiles.com/glue/data/{_task.folder}.zip",),
                f"glue/{_task.folder}.zip",
                unpacks_to=f"glue/{_task.folder}",
                unpack_in="glue",
            ),
        )
    register(
        _name,
        summary=f"GLUE's {_task.folder}, sentence{' pairs' if _task.pair else 's'}, 2 classes",
        homepage="https://gluebenchmark.com/tasks",
        licence="as stated by each task's owners",
        citation=f"{_task.citation}; Wang et al. 2019, GLUE",
        remotes=_remotes,
    )(_reader(_name, _task))
