"""GLUE's tsv files in small, their tokens, and a network that learns from them in the same loop as images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from lastlayer import data
from lastlayer.training import finish_fit, fit
from lastlayer.training.trial import Trial

WORDS = ["[PAD]", "good", "bad", "film", "play"]
FILES = {
    "cola": ("CoLA", 'gj04\t1\t\tThe dog barked.\ngj04\t0\t*\tDog the "barked.\n'),
    "mrpc": ("MRPC", '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t1\t2\tA " b\tB a\r\n0\t3\t4\tC\tD\r\n'),
    "rte": ("RTE", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n"),
    "sst-2": ("SST-2", "sentence\tlabel\ngood film \t1\nbad\t0\n"),
    "qnli": ("QNLI", "index\tquestion\tsentence\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n"),
    "qqp": ("QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tA\tB\t1\n4\t5\n6\t7\t8\tC\tD\t0\n"),
}


def write(root: Path, name: str, content: str | None = None) -> Path:
    folder = root / "glue" / FILES[name][0]
    folder.mkdir(parents=True)
    for file in ("train.tsv", "dev.tsv"):
        (folder / file).write_bytes((FILES[name][1] if content is None else content).encode())
    return folder


@pytest.mark.parametrize(
    ("name", "texts", "pairs", "target"),
    [
        ("cola", ("The dog barked.", 'Dog the "barked.'), None, [1, 0]),
        ("mrpc", ('A " b', "C"), ("B a", "D"), [1, 0]),
        ("rte", ("A", "C"), ("B", "D"), [1, 0]),
        ("sst-2", ("good film ", "bad"), None, [1, 0]),
        ("qnli", ("A", "C"), ("B", "D"), [1, 0]),
        ("qqp", ("A", "C"), ("B", "D"), [1, 0]),  # its official files have lines that end early
    ],
)
def test_reads_what_was_written(
    tmp_path: Path, name: str, texts: tuple[str, ...], pairs: tuple[str, ...] | None, target: list[int]
) -> None:
    write(tmp_path, name)
    dataset = data.load_text(name, tmp_path)
    assert dataset.train.texts == texts
    assert dataset.train.pairs == pairs
    assert dataset.test.target.tolist() == target
    assert dataset.num_classes == 2
    assert set(dataset.checksums) == {"train.tsv", "dev.tsv"}
    assert data.check(name, tmp_path).status == "ok"


@pytest.mark.parametrize(("name", "dev", "label"), [("mnli", "matched", 1), ("mnli-mm", "mismatched", 2)])
def test_mnli_has_two_test_sets(tmp_path: Path, name: str, dev: str, label: int) -> None:
    folder = tmp_path / "glue" / "MNLI"
    folder.mkdir(parents=True)
    header = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    samples = [f"{k}\tA\tB\tneutral\t{gold}\n" for k, gold in enumerate(("entailment", "neutral", "contradiction"))]
    (folder / "train.tsv").write_text(header + "".join(samples))
    (folder / f"dev_{dev}.tsv").write_text(header + samples[label])
    dataset = data.load_text(name, tmp_path)
    assert dataset.train.target.tolist() == [0, 1, 2]
    assert dataset.test.target.tolist() == [label]


def test_texts_and_tensors_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, "rte")
    with pytest.raises(ValueError, match=r"load_text\('rte'\)"):
        data.load("rte", tmp_path)
    with pytest.raises(ValueError, match=r"lastlayer.data.load\('digits'\)"):
        data.load_text("digits")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\ngood\t2\n", r"train.tsv, line 2: .*'2'"),
        ("sentence\tlabel\ngood\n", r"line 2"),
        ("text\tlabel\ngood\t1\n", r"no column 'sentence'"),
        ("sentence\tlabel\n", r"holds no samples"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path, "sst-2", content)
    with pytest.raises(data.CorruptFileError, match=message):
        data.load_text("sst-2", tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "cola")
    (folder / "dev.tsv").write_bytes(b"gj04\t1\t\t\xff\xfe\n")
    with pytest.raises(data.CorruptFileError, match=r"dev.tsv is not UTF-8"):
        data.load_text("cola", tmp_path)


def tokenizer(
    texts: Sequence[str], pairs: Sequence[str] | None, *, padding: str, truncation: bool, max_length: int
) -> dict[str, list[list[int]]]:
    """One token per word, and no special tokens."""
    assert padding == "max_length"
    assert truncation
    made: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "token_type_ids": []}
    for first, second in zip(texts, pairs or [""] * len(texts), strict=True):
        words = [*first.split(), *second.split()][:max_length]
        rest = max_length - len(words)
        made["input_ids"].append([WORDS.index(word) for word in words] + [0] * rest)
        made["attention_mask"].append([1] * len(words) + [0] * rest)
        made["token_type_ids"].append(([0] * len(first.split()) + [1] * len(second.split()))[:max_length] + [0] * rest)
    return made


def test_numbers_segments_and_padding() -> None:
    split = data.TextSplit(("good film", "bad"), torch.tensor([1, 0]), ("play", "good play"))
    made = data.tokenise(data.TextDataset("made-up", split, split, ("no", "yes")), tokenizer, 4)
    ids, segments = made.train.tensor().unbind(1)
    assert ids.tolist() == [[1, 3, 4, 0], [2, 1, 4, 0]]
    assert segments.tolist() == [[0, 0, 1, -1], [0, 1, 1, -1]]
    assert made.in_shape == (2, 4)
    tokens = made.train.tensor()
    assert data.Normalize()(tokens) is tokens


def test_tokens_must_be_whole_numbers() -> None:
    with pytest.raises(ValueError, match=r"tokens int32 .* not torch.float32"):
        data.Split(torch.zeros(3, 2, 4), torch.zeros(3, dtype=torch.int64))


class TinyEncoder(nn.Module):
    """The mean of the word vectors that the mask does not hide."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=8, type_vocab_size=2)
        self.words = nn.Embedding(len(WORDS), 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> SimpleNamespace:
        kept = attention_mask.unsqueeze(2)
        return SimpleNamespace(pooler_output=(self.words(input_ids) * kept).sum(1) / kept.sum(1))


@pytest.fixture
def sentiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lines = [f"{'good' if k % 2 else 'bad'} {'film' if k % 3 else 'play'}\t{k % 2}\n" for k in range(60)]
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    for file in ("train.tsv", "dev.tsv"):
        (folder / file).write_text("sentence\tlabel\n" + "".join(lines))
    fake = SimpleNamespace(
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda name: tokenizer),
        AutoModel=SimpleNamespace(from_config=lambda config: TinyEncoder()),
        AutoConfig=SimpleNamespace(from_pretrained=lambda name: None),
    )
    monkeypatch.setitem(sys.modules, "transformers", fake)
    return tmp_path


def test_texts_are_trained_and_measured_like_anything_else(sentiment: Path, tmp_path: Path) -> None:
    settings = {"data.name": "sst-2", "data.tokenizer": "some", "data.length": 5, "data.holdout": 0.2}
    settings |= {"model.name": "hf:some", "schedule": {"name": "linear", "epochs": 20}, "evaluations": 1}
    result = finish_fit(fit(Trial().with_settings(settings), tmp_path / "run", data_root=sentiment))
    assert result["measures"]["test"]["accuracy"] == 1.0
    assert result["measures"]["validation"]["accuracy"] == 1.0
    assert result["data"]["in_shape"] == [2, 5]


def test_texts_want_a_tokenizer_and_images_none(sentiment: Path) -> None:
    with pytest.raises(ValueError, match=r"give tokenizer="):
        data.load("sst-2", sentiment)
    with pytest.raises(ValueError, match=r"digits is no data set of texts"):
        data.load("digits", tokenizer="some")


def test_without_transformers_the_extra_is_named(sentiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError):
        data.load("sst-2", sentiment, tokenizer="some")
