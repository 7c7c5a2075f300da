"""MNIST's format: small files written here byte by byte."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data
from lastlayer.data.readers.idx import read_idx

RNG = np.random.default_rng(0)
IMAGES = {"train": RNG.integers(0, 256, (20, 4, 5), np.uint8), "t10k": RNG.integers(0, 256, (10, 4, 5), np.uint8)}
LABELS = {"train": np.arange(20, dtype=np.uint8) % 10, "t10k": np.arange(10, dtype=np.uint8)}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(folder: Path, compress: bool) -> Path:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name, array in (("images-idx3", IMAGES[part]), ("labels-idx1", LABELS[part])):
            content = idx(array)
            file = folder / f"{part}-{name}-ubyte{'.gz' if compress else ''}"
            file.write_bytes(gzip.compress(content) if compress else content)
    return folder


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", ".")])
def test_reads_what_was_written(tmp_path: Path, compress: bool, name: str, folder: str) -> None:
    root = tmp_path / "root"
    write(root / folder, compress)
    dataset = data.load(name, root, verify=False)
    assert np.array_equal(dataset.train.inputs[:, 0].numpy(), IMAGES["train"])
    assert np.array_equal(dataset.test.target.numpy(), LABELS["t10k"])
    assert dataset.in_shape == (1, 4, 5)
    assert dataset.scale == 255.0
    assert dataset.citation
    assert len(dataset.checksums) == 4


def test_gzip_and_plain_files_have_the_same_checksum(tmp_path: Path) -> None:
    write(tmp_path / "a/mnist", True)
    write(tmp_path / "b/mnist", False)
    first, second = (data.load("mnist", tmp_path / root, verify=False) for root in "ab")
    assert first.checksums == second.checksums


def test_wrong_checksum_names_file_expected_and_found(tmp_path: Path) -> None:
    write(tmp_path / "mnist", True)
    with pytest.raises(data.CorruptFileError, match=r"train-images.*sha256 expected ba89\w+, found \w{64}"):
        data.load("mnist", tmp_path)
    assert data.check("mnist", tmp_path).status == "corrupt"


@pytest.mark.parametrize("length", [2, 10, 100, 415])
def test_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    file = tmp_path / "images"
    file.write_bytes(idx(IMAGES["train"])[:length])
    with pytest.raises(data.CorruptFileError, match=r"images"):
        read_idx(file)


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(gzip.compress(idx(IMAGES["train"]))[:-9])
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(data.CorruptFileError, match=rf"images.gz is truncated or not gzip .*abc expected.*{found}"):
        read_idx(file, "sha256:abc")


def test_other_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "floats"
    file.write_bytes(b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"\0\0\0\0")
    with pytest.raises(data.CorruptFileError, match=r"unsigned bytes \(it begins with 00000d01\)"):
        read_idx(file)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist: no train-images.*lastlayer data get mnist"):
        data.load("mnist", tmp_path)
    folder = write(tmp_path / "mnist", False)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte.gz is missing"):
        data.load("mnist", tmp_path, verify=False)


def test_images_and_labels_of_different_length_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist", False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS["train"][:-1]))
    with pytest.raises(data.CorruptFileError, match=r"\(20, 4, 5\).*\(19,\)"):
        data.load("mnist", tmp_path, verify=False)
