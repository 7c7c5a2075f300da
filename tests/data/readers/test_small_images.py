"""MNIST, CIFAR and SVHN in their official formats: small files written here."""

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from lastlayer import data
from lastlayer.data.readers.small_images import read_idx, read_mat

RNG = np.random.default_rng(0)
GREY = {"train": RNG.integers(0, 256, (20, 4, 5), np.uint8), "t10k": RNG.integers(0, 256, (10, 4, 5), np.uint8)}
GREY_LABELS = {"train": np.arange(20, dtype=np.uint8) % 10, "t10k": np.arange(10, dtype=np.uint8)}


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, compress: bool) -> Path:
    folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name, array in (("images-idx3", GREY[part]), ("labels-idx1", GREY_LABELS[part])):
            content = idx(array)
            file = folder / f"{part}-{name}-ubyte{'.gz' if compress else ''}"
            file.write_bytes(gzip.compress(content) if compress else content)
    return folder


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", ".")])
def test_idx_files_are_read_as_written(tmp_path: Path, compress: bool, name: str, folder: str) -> None:
    root = tmp_path / "root"
    write_idx(root / folder, compress)
    dataset = data.load(name, root, verify=False)
    assert np.array_equal(dataset.train.inputs[:, 0].numpy(), GREY["train"])
    assert np.array_equal(dataset.test.target.numpy(), GREY_LABELS["t10k"])
    assert dataset.in_shape == (1, 4, 5)
    assert dataset.scale == 255.0
    assert dataset.citation
    assert len(dataset.checksums) == 4


def test_gzip_and_plain_files_have_the_same_checksum(tmp_path: Path) -> None:
    write_idx(tmp_path / "a/mnist", True)
    write_idx(tmp_path / "b/mnist", False)
    first, second = (data.load("mnist", tmp_path / root, verify=False) for root in "ab")
    assert first.checksums == second.checksums


def test_wrong_checksum_of_an_idx_file_names_file_expected_and_found(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", True)
    with pytest.raises(data.CorruptFileError, match=r"train-images.*sha256 expected ba89\w+, found \w{64}"):
        data.load("mnist", tmp_path)
    assert data.check("mnist", tmp_path).status == "corrupt"


@pytest.mark.parametrize("length", [2, 10, 100, 415])
def test_truncated_idx_file_is_named(tmp_path: Path, length: int) -> None:
    file = tmp_path / "images"
    file.write_bytes(idx(GREY["train"])[:length])
    with pytest.raises(data.CorruptFileError, match=r"images"):
        read_idx(file)


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(gzip.compress(idx(GREY["train"]))[:-9])
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(data.CorruptFileError, match=rf"images.gz is truncated or not gzip .*abc expected.*{found}"):
        read_idx(file, "sha256:abc")


def test_other_types_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "floats"
    file.write_bytes(b"\0\0\x0d\x01" + struct.pack(">I", 1) + b"\0\0\0\0")
    with pytest.raises(data.CorruptFileError, match=r"unsigned bytes \(it begins with 00000d01\)"):
        read_idx(file)


def test_missing_idx_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"mnist: no train-images.*lastlayer data get mnist"):
        data.load("mnist", tmp_path)
    folder = write_idx(tmp_path / "mnist", False)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte.gz is missing"):
        data.load("mnist", tmp_path, verify=False)


def test_images_and_labels_of_different_length_are_refused(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "mnist", False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(GREY_LABELS["train"][:-1]))
    with pytest.raises(data.CorruptFileError, match=r"\(20, 4, 5\).*\(19,\)"):
        data.load("mnist", tmp_path, verify=False)


CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def batch(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(0, 256, (n, 3072), np.uint8), (np.arange(n) % classes).astype(np.uint8)


BATCHES10 = {name: batch(10, 10) for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]}
BATCHES100 = {"train": batch(200, 100), "test": batch(100, 100)}


def write_binary(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]], coarse: bool) -> None:
    folder.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        columns = ([labels[:, None] // 5] if coarse else []) + [labels[:, None], pixels]
        (folder / f"{name}.bin").write_bytes(np.concatenate(columns, 1).tobytes())


def write_python(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]], coarse: bool, protocol: int) -> None:
    folder.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        content: dict[bytes, object] = {b"batch_label": b"training batch", b"data": pixels}
        content[b"fine_labels" if coarse else b"labels"] = labels.tolist()
        content[b"filenames"] = [b"a.png"]
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 4])
def test_both_versions_of_cifar10_agree(tmp_path: Path, protocol: int) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", BATCHES10, coarse=False)
    write_python(tmp_path / "cifar-10-batches-py", BATCHES10, coarse=False, protocol=protocol)
    binary, python = (data.load("cifar10", tmp_path, verify=False, version=v) for v in ("binary", "python"))
    pixels = np.concatenate([BATCHES10[f"data_batch_{i}"][0] for i in range(1, 6)])
    for dataset in (binary, python):
        assert np.array_equal(dataset.train.inputs.numpy(), pixels.reshape(-1, 3, 32, 32))
        assert np.array_equal(dataset.test.target.numpy(), BATCHES10["test_batch"][1])
        assert list(dataset.class_names) == CLASSES
    assert set(binary.checksums) == {f"{name}.bin" for name in BATCHES10}
    assert set(python.checksums) == set(BATCHES10)


def test_both_versions_of_cifar100_give_fine_labels_and_names(tmp_path: Path) -> None:
    names = [f"class {k}" for k in range(100)]
    write_binary(tmp_path / "cifar-100-binary", BATCHES100, coarse=True)
    (tmp_path / "cifar-100-binary/fine_label_names.txt").write_text("\n".join(names) + "\n\n")
    write_python(tmp_path / "other/cifar-100-python", BATCHES100, coarse=True, protocol=2)
    meta = {b"fine_label_names": [name.encode() for name in names], b"coarse_label_names": []}
    (tmp_path / "other/cifar-100-python/meta").write_bytes(pickle.dumps(meta, protocol=2))
    for root in (tmp_path, tmp_path / "other"):
        dataset = data.load("cifar100", root, verify=False)
        assert np.array_equal(dataset.train.target.numpy(), BATCHES100["train"][1])
        assert np.array_equal(dataset.test.inputs.flatten(1).numpy(), BATCHES100["test"][0])
        assert list(dataset.class_names) == names


def test_truncated_batch_is_named_by_its_size(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", BATCHES10, coarse=False)
    file = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(data.CorruptFileError, match=r"data_batch_3.bin has 30729 bytes.*3073"):
        data.load("cifar10", tmp_path, verify=False)


@pytest.mark.parametrize(("version", "algorithm"), [("binary", "sha256"), ("python", "md5")])
def test_known_checksums_of_cifar_are_enforced(tmp_path: Path, version: str, algorithm: str) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", BATCHES10, coarse=False)
    write_python(tmp_path / "cifar-10-batches-py", BATCHES10, coarse=False, protocol=2)
    with pytest.raises(data.CorruptFileError, match=rf"data_batch_1.*{algorithm} expected \w+, found \w+"):
        data.load("cifar10", tmp_path, version=version)


def test_missing_batch_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", BATCHES10, coarse=False)
    (tmp_path / "cifar-10-batches-bin/data_batch_5.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_5.bin is missing"):
        data.load("cifar10", tmp_path, verify=False)


def test_label_out_of_range_is_named(tmp_path: Path) -> None:
    bad = {**BATCHES10, "test_batch": (BATCHES10["test_batch"][0], np.full(10, 11, np.uint8))}
    write_binary(tmp_path / "cifar-10-batches-bin", bad, coarse=False)
    with pytest.raises(ValueError, match=r"cifar10: test label 11"):
        data.load("cifar10", tmp_path, verify=False)


def test_wrong_content_of_a_pickle_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_python(folder, BATCHES10, coarse=False, protocol=2)
    (folder / "data_batch_2").write_bytes(pickle.dumps({"pixels": [1]}))
    with pytest.raises(data.CorruptFileError, match=r"data_batch_2: data is not .* found keys \['pixels'\]"):
        data.load("cifar10", tmp_path, verify=False)


def test_unknown_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='version is "auto"'):
        data.load("cifar10", tmp_path, version="matlab")


HOUSES = RNG.integers(0, 256, (32, 32, 3, 20), np.uint8)
HOUSE_LABELS = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]  # the digit 0 is labelled 10


def write_mat(folder: Path, *parts: str) -> None:
    folder.mkdir(parents=True)
    for part in parts:
        savemat(folder / f"{part}_32x32.mat", {"X": HOUSES, "y": HOUSE_LABELS}, do_compression=True)


def test_mat_files_are_read_as_written(tmp_path: Path) -> None:
    write_mat(tmp_path / "svhn", "train", "test")
    dataset = data.load("svhn", tmp_path, verify=False)
    assert dataset.in_shape == (3, 32, 32)
    assert np.array_equal(dataset.train.inputs[7].numpy(), HOUSES[..., 7].transpose(2, 0, 1))
    assert dataset.train.target.tolist() == [*range(1, 10), 0] * 2


def test_extra_samples_are_added_to_train(tmp_path: Path) -> None:
    write_mat(tmp_path / "svhn", "train", "test", "extra")
    dataset = data.load("svhn", tmp_path, verify=False, extra=True)
    assert len(dataset.train) == 40
    assert dataset.notes == ("extra samples in train",)


def test_known_checksums_of_mat_files_are_enforced(tmp_path: Path) -> None:
    write_mat(tmp_path / "svhn", "train", "test")
    with pytest.raises(data.CorruptFileError, match=r"train_32x32.mat.*md5 expected e26dedcc"):
        data.load("svhn", tmp_path)


def test_truncated_mat_file_is_named(tmp_path: Path) -> None:
    write_mat(tmp_path / "svhn", "train")
    file = tmp_path / "svhn/train_32x32.mat"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(data.CorruptFileError, match=r"train_32x32.mat is truncated or not a MATLAB 5 file"):
        read_mat(file)


def test_other_content_of_a_mat_file_is_named(tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"X": HOUSES.astype(float), "y": HOUSE_LABELS})
    savemat(tmp_path / "b.mat", {"X": HOUSES, "y": HOUSE_LABELS[:-1]})
    with pytest.raises(data.CorruptFileError, match=r"X is not a uint8 array"):
        read_mat(tmp_path / "a.mat")
    with pytest.raises(data.CorruptFileError, match=r"y is missing or not of length 20"):
        read_mat(tmp_path / "b.mat")
