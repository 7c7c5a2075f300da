"""GLUE's tsv files, in small."""

from pathlib import Path

import pytest

from lastlayer import data

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
