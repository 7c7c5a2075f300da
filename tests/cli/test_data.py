"""`lastlayer data`: listing, fetching from a server on loopback, and one line for everything that is wrong."""

import functools
import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lastlayer.cli.data import data as app
from lastlayer.cli.data import files_there
from lastlayer.data import Remote, available, describe, sources

runner = CliRunner()


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and honours `Range: bytes=N-`; remembers what was asked for."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        self.asked.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path, list[str]]]:
    folder = tmp_path / "served"
    folder.mkdir()
    RangeHandler.asked = []
    handler = functools.partial(RangeHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", folder, RangeHandler.asked
        running.shutdown()


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.fixture
def small_mnist(server, monkeypatch) -> tuple[Path, list[str]]:
    """MNIST's four files in small on the loopback server, in place of the official ones."""
    address, folder, asked = server
    random = np.random.default_rng(0)
    remotes = []
    for remote in describe("mnist").remotes:
        name = Path(remote.path).name
        count = 20
        array = np.arange(count) % 10 if "labels" in name else random.integers(0, 256, (count, 28, 28))
        content = idx(array.astype(np.uint8))
        (folder / name).write_bytes(content)
        remotes.append(Remote((f"{address}/{name}",), remote.path, md5=hashlib.md5(content).hexdigest()))
    # private: no other way to have the official addresses replaced by those of the loopback server
    monkeypatch.setitem(sources._SOURCES._parts, "mnist", replace(describe("mnist"), remotes=tuple(remotes)))
    return folder, asked


def run(*arguments: object, code: int = 0):
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    if code:
        assert isinstance(result.exception, SystemExit | typer.Exit)
        assert "Traceback" not in result.output
    return result


def test_a_narrow_terminal_cuts_no_summary_and_no_licence() -> None:
    made = runner.invoke(app, ["list"], env={"COLUMNS": "40"})
    assert made.exit_code == 0
    assert "…" not in made.output


def test_list_names_every_set_and_where_it_would_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    output = run("list", "--data-root", tmp_path).stdout
    for name in available():
        assert any(line.startswith(f"{name} ") for line in output.splitlines()), name
    digits = next(line for line in output.splitlines() if line.startswith("digits"))
    assert "embedded" in digits
    assert "CC BY 4.0" in digits
    assert "not found" in next(line for line in output.splitlines() if line.startswith("cifar10"))
    assert str(tmp_path) in output


OTHER_LAYOUTS = {
    "cifar10": "cifar-10-batches-py/data_batch_1",
    "cifar100": "cifar100/cifar-100-python/train",
    "mnist": "MNIST/raw/train-images-idx3-ubyte",
    "fashion-mnist": "FashionMNIST/raw/train-images-idx3-ubyte.gz",
    "svhn": "SVHN/train_32x32.mat",
    "tiny-imagenet": "tiny-imagenet/tiny-imagenet-200/val/val_annotations.txt",
    "imagenet32": "Imagenet32_train/train_data_batch_1.npz",
    "omniglot": "omniglot-py/images_background",
    "imagenet": "ILSVRC/Data/CLS-LOC/train",
    "miniimagenet": "mini-imagenet/n01532829",
    "cola": "GLUE/CoLA/train.tsv",
}


@pytest.mark.parametrize("name", OTHER_LAYOUTS)
def test_files_are_found_wherever_the_reader_finds_them(name: str, tmp_path: Path) -> None:
    source = describe(name)
    assert files_there(name, tmp_path) == "not found"
    with pytest.raises(FileNotFoundError, match=f"{name}: no .* in "):
        source.reader(tmp_path)
    (tmp_path / name).mkdir()  # a folder of its name with something else in it is not enough
    (tmp_path / name / "notes.txt").touch()
    assert files_there(name, tmp_path) == "not found"
    file = tmp_path / OTHER_LAYOUTS[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert files_there(name, tmp_path) == "there"
    with pytest.raises((OSError, ValueError)) as failed:  # the reader goes there, and finds nothing in the empty file
        source.reader(tmp_path)
    assert "no " + source.probes[0] not in str(failed.value)


def test_every_set_that_needs_files_says_where_it_looks() -> None:
    assert all(bool(describe(name).probes) == describe(name).needs_files for name in available())


def test_get_fetches_what_list_then_finds(tmp_path, small_mnist, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    root = tmp_path / "root"
    result = run("get", "mnist", "--data-root", root)
    assert result.stdout == f"mnist is in {root}\n"
    assert "there" in next(
        line for line in run("list", "--data-root", root).stdout.splitlines() if line.startswith("mnist")
    )
    _, asked = small_mnist
    assert len(asked) == 4  # every file once
    run("get", "mnist", "--data-root", root)
    assert len(asked) == 4


def test_get_continues_a_part(tmp_path, small_mnist):
    folder, asked = small_mnist
    first = describe("mnist").remotes[0]
    root = tmp_path / "root"
    part = root / (first.path + ".part")
    part.parent.mkdir(parents=True)
    part.write_bytes((folder / Path(first.path).name).read_bytes()[:7])
    run("get", "mnist", "--data-root", root)
    assert asked[0].endswith("bytes=7-")
    assert (root / first.path).read_bytes() == (folder / Path(first.path).name).read_bytes()


def test_get_says_why_it_cannot(tmp_path, small_mnist):
    folder, _ = small_mnist
    (folder / Path(describe("mnist").remotes[0].path).name).unlink()
    error = run("get", "mnist", "--data-root", tmp_path / "root", code=1).stderr
    assert error.startswith("lastlayer data get: ")
    assert "404" in error
    assert error.count("\n") == 1


def test_get_names_the_checksum_expected_and_found(tmp_path, small_mnist):
    folder, _ = small_mnist
    remote = describe("mnist").remotes[0]
    (folder / Path(remote.path).name).write_bytes(b"something else")
    error = run("get", "mnist", "--data-root", tmp_path / "root", code=1).stderr
    assert remote.md5 in error
    assert hashlib.md5(b"something else").hexdigest() in error
    assert not (tmp_path / "root" / remote.path).exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get", "digits"), "comes with this package"),
        (("get", "cifar1O"), "cifar10"),
        (("check", "cifar1O"), "cifar10"),
        (("get", "imagenet32"), "by hand"),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, said):
    error = run(*arguments, "--data-root", tmp_path, code=2).stderr
    assert said in error
    assert error.count("\n") == 1


def test_get_into_a_file_is_one_line(tmp_path, small_mnist):
    (tmp_path / "root").write_text("not a folder")
    assert run("get", "mnist", "--data-root", tmp_path / "root", code=1).stderr.count("\n") == 1


def test_check_embedded_is_ok():
    output = run("check", "digits").stdout
    assert output.startswith("digits: ok: ")
    assert "sha256" in output


def test_check_missing(tmp_path):
    assert run("check", "mnist", "--data-root", tmp_path, code=1).stdout.startswith("mnist: missing: ")


def test_check_corrupt_names_both_checksums(tmp_path, small_mnist):
    root = tmp_path / "root"
    run("get", "mnist", "--data-root", root)
    output = run("check", "mnist", "--data-root", root, code=1).stdout  # small, so not the official files
    assert output.startswith("mnist: corrupt: ")
    assert "expected" in output
    assert "found" in output
