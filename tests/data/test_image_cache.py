"""Image sets that do not fit in memory: decoded once into a mapped file."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lastlayer import data
from lastlayer.data import MappedImages, image_cache
from lastlayer.training import finish_fit, fit
from lastlayer.training.engine.feed import streamed
from lastlayer.training.trial import Augmentation, DataChoice, ModelChoice, Schedule, Trial

from .pictures import picture, write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LASTLAYER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("cat", "dog", "owl")):
        for i in range(10):
            write(tmp_path / "pets" / name / f"{i}.png", picture(100 * label + i, (8, 7)))
    return tmp_path / "pets"


@pytest.fixture
def no_memory(free_memory: Callable[[int], None]) -> None:
    free_memory(0)


def rows(inputs: torch.Tensor | MappedImages) -> torch.Tensor:
    return torch.stack([inputs[i] for i in range(len(inputs))])


@pytest.fixture
def both_ways(folder: Path, free_memory: Callable[[int], None]) -> tuple[data.Dataset, data.Dataset]:
    """The same folder in memory and in a file."""
    free_memory(1 << 40)
    inside = data.load(folder)
    free_memory(0)
    outside = data.load(folder)
    assert isinstance(inside.train.inputs, torch.Tensor)
    assert isinstance(outside.train.inputs, MappedImages)
    return inside, outside


def test_mapped_images_are_those_in_memory(both_ways: tuple[data.Dataset, data.Dataset]) -> None:
    inside, outside = both_ways
    assert outside.in_shape == inside.in_shape == (3, 7, 8)
    assert (outside.mean, outside.std) == (inside.mean, inside.std)
    assert outside.checksums == inside.checksums
    for part in ("train", "test"):
        one, other = getattr(inside, part), getattr(outside, part)
        assert torch.equal(rows(other.inputs), one.inputs)
        assert torch.equal(other.inputs[torch.tensor([2, 0, 2])], one.inputs[[2, 0, 2]])
        assert torch.equal(other.inputs[1:4], one.inputs[1:4])
        assert torch.equal(other.tensor(), one.inputs)
        assert other.inputs.nbytes == one.inputs.nbytes
        assert other.inputs.shape == one.inputs.shape


def test_statistics_are_those_of_the_pixels(folder: Path, no_memory: None) -> None:
    dataset = data.load(folder)
    pixels = rows(dataset.train.inputs).double() / 255
    assert dataset.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), rel=1e-14)
    assert dataset.std == pytest.approx(pixels.std((0, 2, 3), unbiased=False).tolist(), rel=1e-13)


def test_versions_of_a_mapped_set_stay_in_the_file(both_ways: tuple[data.Dataset, data.Dataset]) -> None:
    for made in (
        lambda d: data.hold_out(d, 0.2),
        lambda d: data.long_tail(d, 4.0),
        lambda d: data.open_set(d, 1),
        lambda d: data.subset(d, 9, seed=3),
        lambda d: data.fold(d, 1, 3),
    ):
        inside, outside = (made(dataset) for dataset in both_ways)
        for part in ("train", "test", "validation", "unknown"):
            one, other = getattr(inside, part), getattr(outside, part)
            if one is not None:
                assert isinstance(other.inputs, MappedImages)
                assert torch.equal(rows(other.inputs), one.inputs)
                assert torch.equal(other.target, one.target)


def test_training_gives_the_same_bits(folder: Path, free_memory: Callable[[int], None]) -> None:
    trial = Trial(
        data=DataChoice(str(folder), {"size": 6}, holdout=0.2),
        model=ModelChoice("mlp", {"width": 8}),
        augmentation=Augmentation(crop=1, flip=True),
        schedule=Schedule(epochs=2),
        batch_size=4,
        evaluations=1,
    )
    results = []
    for free in (1 << 40, 0):
        free_memory(free)
        results.append(finish_fit(fit(trial)))
    for part in ("train", "test", "validation"):
        assert results[0]["measures"][part] == results[1]["measures"][part]
    assert results[0]["data"]["dtype"] == results[1]["data"]["dtype"] == "uint8"


def test_batches_come_from_workers(folder: Path, no_memory: None) -> None:
    train = data.load(folder).train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    made = list(streamed(train, order, 6, torch.device("cpu")))
    assert torch.equal(torch.cat([inputs for inputs, _ in made]), train.inputs[order])
    assert torch.equal(torch.cat([target for _, target in made]), train.target[order])


def test_pickling_sends_the_path_not_the_pixels(folder: Path, no_memory: None) -> None:
    inputs = data.load(folder, size=200).train.inputs
    sent = pickle.dumps(inputs)
    assert len(sent) < 5000 < inputs.nbytes
    assert torch.equal(pickle.loads(sent)[:3], inputs[:3])


def test_a_device_with_room_gets_all_images_as_a_tensor(folder: Path, no_memory: None) -> None:
    dataset = data.load(folder)
    assert dataset.to("cpu").train.inputs is dataset.train.inputs
    moved = dataset.train.inputs.to("meta")  # any device but the CPU
    assert isinstance(moved, torch.Tensor)
    assert (moved.shape, moved.dtype) == (dataset.train.inputs.shape, torch.uint8)


def test_grey_images_and_a_test_folder(tmp_path: Path, no_memory: None) -> None:
    for part in ("train", "test"):
        for name in "ab":
            for i in range(3):
                write(tmp_path / "grey" / part / name / f"{i}.png", picture(i, grey=True))
    dataset = data.load(tmp_path / "grey")
    assert dataset.in_shape == (1, 6, 6)
    assert isinstance(dataset.test.inputs, MappedImages)


def test_images_are_decoded_once_and_again_when_one_changes(folder: Path, no_memory: None, cache: Path) -> None:
    first = data.load(folder)
    (pixels,) = cache.glob("*/pixels")
    written = pixels.stat().st_mtime_ns
    data.load(folder)
    assert pixels.stat().st_mtime_ns == written
    write(folder / "cat/0.png", np.full((7, 8, 3), 9, np.uint8))
    second = data.load(folder)
    assert len(list(cache.glob("*/pixels"))) == 2
    assert second.checksums != first.checksums
    assert (rows(second.train.inputs) == 9).all((1, 2, 3)).any() or (rows(second.test.inputs) == 9).all((1, 2, 3)).any()


def test_a_damaged_cache_is_made_again(folder: Path, no_memory: None, cache: Path) -> None:
    before = rows(data.load(folder).train.inputs)
    (pixels,) = cache.glob("*/pixels")
    os.truncate(pixels, 1000)
    with pytest.warns(UserWarning, match=r"pixels is damaged: 5040 bytes expected, 1000 found.*decoded again"):
        after = data.load(folder)
    assert torch.equal(rows(after.train.inputs), before)


def test_a_full_disk_is_said_before_anything_is_decoded(
    folder: Path, no_memory: None, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nearly_full = shutil.disk_usage(folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nearly_full)
    with pytest.raises(OSError, match=r"30 images do not fit in memory.*GiB are free: set LASTLAYER_CACHE"):
        data.load(folder)
    assert all(path.stat().st_size == 0 for path in cache.glob("*/pixels"))


@pytest.mark.parametrize("broken", [b"no image", None])
def test_images_at_fault_leave_nothing_behind(
    folder: Path, no_memory: None, cache: Path, broken: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_cache, "BLOCK", 300)
    if broken is None:
        write(folder / "owl/5.png", picture(1, (9, 9)))
    else:
        (folder / "owl/5.png").write_bytes(broken)
    with pytest.raises(ValueError, match=r"owl/5\.png"):
        data.load(folder)
    assert not list(cache.glob("*/pixels"))


KILLED = """
import sys, time
from lastlayer import data
from lastlayer.data import image_cache
image_cache.free_memory = lambda: 0
image_cache.BLOCK = 1000
plain = image_cache.decode
def slow(*args, **options):
    time.sleep(0.05)
    return plain(*args, **options)
image_cache.decode = slow
data.load(sys.argv[1])
"""


def test_a_killed_process_leaves_a_part_that_is_continued(
    folder: Path, no_memory: None, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(folder.rglob("*.png"))
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not any(path.stat().st_size for path in cache.glob("*/records")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (records,) = cache.glob("*/records")
    kept = records.stat().st_size // (32 + 3 * 16)
    assert 0 < kept < 30
    with records.open("ab") as file:
        file.write(b"torn")  # as a crash in the middle of a write would
    # what was decoded is not decoded again, so those files may be damaged by now; only the first gives the shape again
    contents = [path.read_bytes() for path in files]
    for path in files[1:kept]:
        times = path.stat()
        path.write_bytes(b"." * times.st_size)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    resumed = data.load(folder)
    assert f"{kept} are there already" in capsys.readouterr().err
    for path, content in zip(files, contents, strict=True):
        path.write_bytes(content)
    monkeypatch.setenv("LASTLAYER_CACHE", str(cache.with_name("other")))
    whole = data.load(folder)
    assert torch.equal(rows(resumed.train.inputs), rows(whole.train.inputs))
    assert (resumed.checksums, resumed.mean, resumed.std) == (whole.checksums, whole.mean, whole.std)


MEASURED = """
import sys, threading, time
import torch
from lastlayer.data import image_cache
from lastlayer.training import finish_fit, fit
from lastlayer.training.engine import evaluate
from lastlayer.training.trial import DataChoice, ModelChoice, Schedule, Trial
torch.set_num_threads(1)
image_cache.BLOCK, evaluate.LARGEST_INPUTS = 1 << 20, 1 << 20
def train(data):
    model, schedule = ModelChoice("mlp", {"width": 4, "depth": 1}), Schedule(epochs=1)
    finish_fit(fit(Trial(data=data, model=model, schedule=schedule, batch_size=16, evaluations=1)))
train(DataChoice(sys.argv[1]))  # everything is imported now, and the allocator has what a batch takes
def own_memory():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
peak = [0]
def watch():
    while True:
        peak[0] = max(peak[0], own_memory())
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
for free in (0, 1 << 50):
    image_cache.free_memory = lambda: free
    before = peak[0] = own_memory()
    train(DataChoice(sys.argv[2], holdout=0.1))
    print(peak[0] - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_training_takes_less_memory_than_the_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160, 3), np.uint8)
    for name, count in (("small", 40), ("large", 800)):
        for i in range(count):
            pixels[0, 0] = i % 256
            write(tmp_path / name / "ab"[i % 2] / f"{i}.bmp", pixels)
    total = 800 * pixels.nbytes
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "small"), str(tmp_path / "large")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    from_file, in_memory = map(int, said.stdout.split())
    assert from_file < 0.8 * total < total < in_memory, (from_file, in_memory)
