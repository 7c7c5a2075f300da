"""Texts as numbers for a pretrained encoder, padded to one length, so that we train on texts as on images.

Tests: tests/data/test_tokens.py.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .dataset import Dataset, Split, TextDataset, TextSplit

DEFAULT_LENGTH = 128


def tokenise(dataset: TextDataset, tokenizer: Any, length: int = DEFAULT_LENGTH) -> Dataset:
    """Turn texts, or pairs of them, into token numbers and segments (N, 2, length), int32.

    Row 0 of a sample holds the numbers of its tokens. Row 1 holds, for each token, which of the two texts it belongs to
    (0 or 1), and -1 if it is padding. Longer samples are cut, the longer text of a pair first.

    Args:
        dataset: texts.
        tokenizer: a callable like those of transformers, given texts, pairs or None, and how to pad and cut.
        length: tokens of a sample.

    Returns:
        A data set without mean and std: its inputs are not normalised.
    """
    fields = {name: getattr(dataset, name) for name in ("class_names", "checksums", "source", "licence", "citation")}
    notes = (*dataset.notes, f"{length} tokens a sample")  # a part of results, which keep their words
    train, test = (_split(split, tokenizer, length) for split in (dataset.train, dataset.test))
    return Dataset(dataset.name, train, test, notes=notes, **fields)


def load_tokenizer(name: str, root: Path) -> Any:
    """The tokenizer of transformers in a folder of the data root; if there is none, that of this name at the hub.

    Raises:
        ImportError: transformers is not installed. The message names the extra.
    """
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


def _split(split: TextSplit, tokenizer: Any, length: int) -> Split:
    made = tokenizer(
        list(split.texts),
        None if split.pairs is None else list(split.pairs),
        padding="max_length",
        truncation=True,
        max_length=length,
    )
    ids = torch.tensor(made["input_ids"], dtype=torch.int32)  # (N, L)
    segments = torch.zeros_like(ids)
    if "token_type_ids" in made:
        segments = torch.tensor(made["token_type_ids"], dtype=torch.int32)
    padding = torch.tensor(made["attention_mask"]) == 0
    both: Tensor = torch.stack([ids, segments.masked_fill(padding, -1)], 1)  # (N, 2, L)
    return Split(both, split.target)
