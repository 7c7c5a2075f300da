"""Downloads against a small HTTP server on loopback: resuming, checksums, refusals."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lastlayer import data
from lastlayer.data import download as download_function
from lastlayer.data.files import Remote, fetch, unpack

CONTENT = bytes(range(256)) * 400
MD5, SHA256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    ranges = True
    cut_after: list[int]  # bytes to send before hanging up, one entry per request; then there are no more cuts
    failures: list[int]  # status codes to answer first
    requests: list[str | None]  # the Range header of each request


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        if self.server.failures:
            self.send_error(self.server.failures.pop(0))
            return
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if asked and self.server.ranges and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = content[start:]
        self.send_response(206 if asked and self.server.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = self.server.cut_after.pop(0) if self.server.cut_after else len(body)
        self.wfile.write(body[:limit])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    running = Server(("127.0.0.1", 0), Handler)
    running.files = {"/file": CONTENT}
    running.cut_after, running.failures, running.requests = [], [], []
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def url(server: Server, path: str = "/file") -> str:
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_whole_file_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    dest = download_function(
        url(server), tmp_path / "deep/file", sha256=SHA256, md5=MD5, progress=lambda *step: seen.append(step)
    )
    assert dest.read_bytes() == CONTENT
    assert seen[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [path.name for path in dest.parent.iterdir()] == ["file"]


def test_cut_connections_are_continued_in_one_call(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000, 500]
    dest = download_function(url(server), tmp_path / "file", sha256=SHA256)
    assert dest.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1000-", "bytes=1500-"]


def test_a_later_call_continues_the_part_file(server: Server, tmp_path: Path) -> None:
    server.cut_after = [3000]
    with pytest.raises(data.DownloadError, match=r"cut after 3000 of 102400 bytes; 3000 bytes are kept"):
        download_function(url(server), tmp_path / "file", retries=0)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:3000]
    assert not (tmp_path / "file").exists()
    assert download_function(url(server), tmp_path / "file", md5=MD5).read_bytes() == CONTENT
    assert server.requests[-1] == "bytes=3000-"


def test_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [5000]
    assert download_function(url(server), tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT


def test_complete_part_file_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert download_function(url(server), tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT
    assert server.requests == [f"bytes={len(CONTENT)}-"]


def test_part_of_another_file_is_dropped(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"something else")
    assert download_function(url(server), tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT
    (tmp_path / "file.part").write_bytes(CONTENT + b"longer")
    assert download_function(url(server), tmp_path / "file", sha256=SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize(("algorithm", "found"), [("sha256", SHA256), ("md5", MD5)])
def test_wrong_checksum_names_both_and_keeps_nothing(
    server: Server, tmp_path: Path, algorithm: str, found: str
) -> None:
    with pytest.raises(data.CorruptFileError, match=rf"{algorithm} expected 00ff, found {found}"):
        download_function(url(server), tmp_path / "file", **{algorithm: "00ff"})
    assert list(tmp_path.iterdir()) == []


def test_not_found_is_final(server: Server, tmp_path: Path) -> None:
    with pytest.raises(data.DownloadError, match=r"/missing: the server answered 404"):
        download_function(url(server, "/missing"), tmp_path / "file")
    assert len(server.requests) == 1


def test_server_errors_are_tried_again(server: Server, tmp_path: Path) -> None:
    server.failures = [503, 500]
    assert download_function(url(server), tmp_path / "file").read_bytes() == CONTENT
    server.failures = [503, 503]
    with pytest.raises(data.DownloadError, match=r"answered 503"):
        download_function(url(server), tmp_path / "other", retries=1)


def test_no_connection(server: Server, tmp_path: Path) -> None:
    address = url(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(data.DownloadError, match=r"cannot be fetched: no connection \(.*refused"):
        download_function(address, tmp_path / "file", retries=1)


def archive(kind: str, member: str = "folder/inside.txt") -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as zipped:
            zipped.writestr(member, "hello")
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tarred:
            info = tarfile.TarInfo(member)
            info.size = 5
            tarred.addfile(info, io.BytesIO(b"hello"))
    return buffer.getvalue()


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_fetch_unpacks_and_is_done_once(server: Server, tmp_path: Path, ending: str) -> None:
    server.files[f"/a.{ending}"] = archive(ending)
    addresses = (url(server, "/gone"), url(server, f"/a.{ending}"))
    remote = Remote(addresses, f"a.{ending}", unpacks_to="sub/folder")
    for _ in range(2):
        assert (fetch(remote, tmp_path) / "inside.txt").read_text() == "hello"
    assert len(server.requests) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["sub"]


def test_fetch_names_every_failure(server: Server, tmp_path: Path) -> None:
    with pytest.raises(data.DownloadError, match=r"/x: the server answered 404.*; .*/y: the server answered 404"):
        fetch(Remote((url(server, "/x"), url(server, "/y")), "file"), tmp_path)


def test_archive_without_the_promised_folder(server: Server, tmp_path: Path) -> None:
    server.files["/a.zip"] = archive("zip", "other/inside.txt")
    with pytest.raises(data.CorruptFileError, match=r"holds no folder"):
        fetch(Remote((url(server, "/a.zip"),), "a.zip", unpacks_to="folder"), tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_damaged_archives_are_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"a.{kind}"
    file.write_bytes(archive(kind)[:-20])
    with pytest.raises(data.CorruptFileError, match=rf"a.{kind} cannot be unpacked"):
        unpack(file, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_members_outside_the_folder_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.tar.gz"
    file.write_bytes(archive("tar.gz", "../../escaped.txt"))
    with pytest.raises(data.CorruptFileError, match=r"cannot be unpacked"):
        unpack(file, tmp_path / "out")
    assert not (tmp_path.parent / "escaped.txt").exists()
