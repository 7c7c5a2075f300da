"""GLUE tasks in their official tsv files: texts, which `tokenise` turns into numbers.

Tests: tests/data/readers/test_glue.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from lastlayer.data.dataset import TextDataset, TextSplit
from lastlayer.data.files import CorruptFileError, read, require
from lastlayer.data.sources import describe, register


@dataclass(frozen=True)
class _Task:
    """The columns of a task: by number if its file has no header, by name if it has one."""

    text: str | int
    pair: str | None
    label: str | int
    labels: tuple[str, ...]  # as written in the file, in label order
    class_names: tuple[str, ...]
    dev: str = "dev.tsv"
    gaps: bool = False  # whether the official file has lines without a label, which everyone leaves out


_ENTAILED = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")
_TASKS = {
    "cola": _Task(3, None, 1, ("0", "1"), ("unacceptable", "acceptable")),
    "mrpc": _Task("#1 String", "#2 String", "Quality", ("0", "1"), ("not_equivalent", "equivalent")),
    "rte": _Task("sentence1", "sentence2", "label", _ENTAILED, _ENTAILED),
    "sst-2": _Task("sentence", None, "label", ("0", "1"), ("negative", "positive")),
    "qnli": _Task("question", "sentence", "label", _ENTAILED, _ENTAILED),
    "qqp": _Task("question1", "question2", "is_duplicate", ("0", "1"), ("not_duplicate", "duplicate"), gaps=True),
    "mnli": _Task("sentence1", "sentence2", "gold_label", _NLI, _NLI, dev="dev_matched.tsv"),
    "mnli-mm": _Task("sentence1", "sentence2", "gold_label", _NLI, _NLI, dev="dev_mismatched.tsv"),
}


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
        if task.gaps and len(row) < width:
            continue
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
    def reader(root: Path) -> TextDataset:
        folder = describe(name).locate(root)
        splits, checksums = [], {}
        for file in ("train.tsv", task.dev):
            split, checksums[file] = _read_tsv(require(folder / file, name), task)
            splits.append(split)
        notes = ("test set: GLUE's dev set, whose labels are public",)
        return TextDataset(name, splits[0], splits[1], task.class_names, checksums, notes=notes)

    reader.__doc__ = f"Read train.tsv and {task.dev}; no checksums are known."
    return reader


for _name, _task in _TASKS.items():
    register(_name)(_reader(_name, _task))
