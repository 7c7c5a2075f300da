"""Texts: GLUE tasks in their official tsv files, and the tokens that we train on in their place.

Tokens are padded to one length, so that a pretrained encoder trains on texts as other models do on images.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lastlayer.data.dataset import Dataset, Split, TextDataset, TextSplit
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


DEFAULT_LENGTH = 128
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
    header: list[Any] = rows.pop(0) if isinstance(task.label, str) else list(range(4))
    columns = {name: k for k, name in enumerate(header)}
    needed = [column for column in (task.text, task.pair, task.label) if column is not None]
    missing = [column for column in needed if column not in columns]
    if missing:
        raise CorruptFileError(f"{path} has no column {missing[0]!r}; its header is {header}")
    width = max(columns[column] for column in needed) + 1
    texts, pairs, target = [], [], []
    for number, row in enumerate(rows, 1 + len(lines) - len(rows)):
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
    return TextSplit(tuple(texts), torch.tensor(target), None if task.pair is None else tuple(pairs)), sha256


def _read_task(name: str, root: Path) -> TextDataset:
    task, folder = _TASKS[name], describe(name).locate(root)
    train, train_sha256 = _read_tsv(require(folder / "train.tsv", name), task)
    test, test_sha256 = _read_tsv(require(folder / task.dev, name), task)
    checksums = {"train.tsv": train_sha256, task.dev: test_sha256}
    notes = ("test set: GLUE's dev set, whose labels are public",)
    return TextDataset(name, train, test, task.class_names, checksums, notes=notes)


for _name in _TASKS:
    register(_name)(partial(_read_task, _name))


def tokenise(dataset: TextDataset, tokenizer: Any, length: int = DEFAULT_LENGTH) -> Dataset:
    """Turn texts, or pairs of them, into token numbers and segments (N, 2, length), int32, which are not normalised.

    Row 0 of a sample holds the numbers of its tokens. Row 1 holds, for each token, which of the two texts it belongs to
    (0 or 1), and -1 if it is padding. Longer samples are cut, the longer text of a pair first. The tokenizer is a
    callable like those of transformers. It is given texts, pairs or None, and how to pad and cut.
    """
    fields = {name: getattr(dataset, name) for name in ("class_names", "checksums", "source", "licence", "citation")}
    notes = (*dataset.notes, f"{length} tokens a sample")  # results hold this note, so its words must not change
    train, test = (_tokens(split, tokenizer, length) for split in (dataset.train, dataset.test))
    return Dataset(dataset.name, train, test, notes=notes, **fields)


def _tokens(split: TextSplit, tokenizer: Any, length: int) -> Split:
    pairs = None if split.pairs is None else list(split.pairs)
    made = tokenizer(list(split.texts), pairs, padding="max_length", truncation=True, max_length=length)
    ids = torch.tensor(made["input_ids"], dtype=torch.int32)  # (N, L)
    segments = torch.zeros_like(ids)
    if "token_type_ids" in made:
        segments = torch.tensor(made["token_type_ids"], dtype=torch.int32)
    padding = torch.tensor(made["attention_mask"]) == 0
    return Split(torch.stack([ids, segments.masked_fill(padding, -1)], 1), split.target)  # (N, 2, L)


def load_tokenizer(name: str, root: Path) -> Any:
    """The tokenizer of transformers in a folder of the data root. If there is none, the one of this name on the hub."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise ImportError(
            f"tokenizer {name!r} needs transformers, which is not installed: pip install 'lastlayer[hf]'"
        ) from error
    folder = root / name
    return transformers.AutoTokenizer.from_pretrained(str(folder) if folder.is_dir() else name)
