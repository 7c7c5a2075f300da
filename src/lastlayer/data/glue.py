"""GLUE tasks in their official tsv files. Texts only; tokens are made elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ._files import CorruptFileError, Places, how_to_get, locate, read, require
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
    labels: tuple[str, ...]  # as written in the file, in label order
    class_names: tuple[str, ...]
    citation: str
    dev: str = "dev.tsv"
    gaps: bool = False  # whether the official file has lines without a label, which everyone leaves out


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
    "qnli": _Task(
        "QNLI",
        "question",
        "sentence",
        "label",
        ("entailment", "not_entailment"),
        ("entailment", "not_entailment"),
        "Rajpurkar et al. 2016, SQuAD: 100,000+ questions for machine comprehension of text",
    ),
    "qqp": _Task(
        "QQP",
        "question1",
        "question2",
        "is_duplicate",
        ("0", "1"),
        ("not_duplicate", "duplicate"),
        "Iyer, Dandekar, Csernai 2017, First Quora dataset release: question pairs",
        gaps=True,
    ),
}
for _name, _dev in (("mnli", "dev_matched.tsv"), ("mnli-mm", "dev_mismatched.tsv")):
    _TASKS[_name] = _Task(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        ("entailment", "neutral", "contradiction"),
        "Williams, Nangia, Bowman 2018, A broad-coverage challenge corpus for sentence understanding through inference",
        dev=_dev,
    )
_ARCHIVES = {"QNLI": "QNLIv2", "QQP": "QQP-clean"}  # where the file is not called as its folder
_FETCHED = tuple(name for name in _TASKS if name != "mrpc")  # its owners give it as an installer only


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


def _places(task: _Task) -> Places:
    return Places((f"glue/{task.folder}", f"GLUE/{task.folder}"), ("train.tsv",))


def _reader(name: str, task: _Task) -> Callable[..., TextDataset]:
    def reader(root: Path) -> TextDataset:
        by_hand = "Fetch it by hand as https://gluebenchmark.com/tasks says"
        hint = how_to_get(name, root) if name in _FETCHED else by_hand
        folder = locate(root, name, _places(task), hint)
        splits, checksums = [], {}
        for file in ("train.tsv", task.dev):
            split, checksums[file] = _read_tsv(require(folder / file, name), task)
            splits.append(split)
        notes = ("test set: GLUE's dev set, whose labels are public",)
        return TextDataset(name, splits[0], splits[1], task.class_names, checksums, notes=notes)

    reader.__doc__ = f"Read `root/glue/{task.folder}/train.tsv` and {task.dev}; no checksums are known."
    return reader


for _name, _task in _TASKS.items():
    _remotes: tuple[Remote, ...] = ()
    if _name in _FETCHED:
        _archive = _ARCHIVES.get(_task.folder, _task.folder)
        _remotes = (
            Remote(
                (f"https://dl.fbaipublicfiles.com/glue/data/{_archive}.zip",),
                f"glue/{_archive}.zip",
                unpacks_to=f"glue/{_task.folder}",
                unpack_in="glue",
            ),
        )
    register(
        _name,
        summary=f"GLUE's {_task.folder}, sentence{' pairs' if _task.pair else 's'}, {len(_task.labels)} classes",
        homepage="https://gluebenchmark.com/tasks",
        licence="as stated by each task's owners",
        citation=f"{_task.citation}; Wang et al. 2019, GLUE",
        remotes=_remotes,
        places=_places(_task),
    )(_reader(_name, _task))
