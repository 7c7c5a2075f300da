"""CIFAR in both official versions: small batches written here."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from lastlayer import data

RNG = np.random.default_rng(0)
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
def test_known_checksums_are_enforced(tmp_path: Path, version: str, algorithm: str) -> None:
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
