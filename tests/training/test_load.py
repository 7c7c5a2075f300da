"""Loaded runs: what loading holds in memory, and predictions that nobody can make."""

import gc
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lastlayer
from lastlayer import data
from lastlayer.runs import RunFolder
from lastlayer.training import finish_fit, fit
from lastlayer.training.build import build
from lastlayer.training.facts import Facts
from lastlayer.training.trial import DataChoice, LossChoice, ModelChoice, Schedule, Trial


def train(folder: Path, loss: str = "ce", stored: str = "digits") -> Path:
    choices = {"data": DataChoice(stored), "model": ModelChoice("mlp", {"width": 8}), "loss": LossChoice(loss)}
    finish_fit(fit(Trial(**choices, schedule=Schedule(epochs=1), evaluations=1, batch_size=16), folder))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "ce")


def peak() -> int:
    """The most bytes of memory that this process has had since the last 5 in clear_refs."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: memory of loading, read from /proc")
def test_loading_holds_one_copy_beside_the_file_and_outlives_it(run, tmp_path):
    width, large = 4000, RunFolder(tmp_path / "large")  # 64 MB: memory that the system gives anew and takes back
    result = RunFolder(run).result()
    result["trial"]["model"]["options"] = {"width": width}
    weights = build(Trial(model=ModelChoice("mlp", {"width": width})), Facts.of(data.load("digits")))[0].state_dict()
    large.finish(result, weights, {})
    file = large.path / "weights.safetensors"
    lastlayer.load(run)  # what is imported on the way counts before
    del weights
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    network = lastlayer.load(large.path).network
    assert (
        0.9 * file.stat().st_size < peak() - before < 2.3 * file.stat().st_size
    )  # network, pages of the file, and some
    gc.collect()
    # a parameter that lay in the file would end the process once the file is cut
    assert str(file) not in Path("/proc/self/maps").read_text()
    file.unlink()
    network.train()(torch.zeros(2, 1, 8, 8)).square().sum().backward()
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    assert all(p.isfinite().all() for p in network.parameters())


def test_what_is_loaded_is_what_was_written(run):
    network = lastlayer.load(run).network
    for name, written in RunFolder(run).tensors("weights").items():
        assert torch.equal(network.state_dict()[name], written)


@pytest.mark.parametrize("loss", ["ce", "sln", "bce", "nce"])
def test_inputs_without_a_likeliest_class_are_refused(tmp_path, loss):
    loaded = lastlayer.load(train(tmp_path / loss, loss, "iris"))
    inputs = torch.rand(5, 4)
    names = loaded.predict(inputs)
    assert len(names) == 5
    inputs[2, 3] = torch.nan
    inputs[4] = torch.inf
    with pytest.raises(ValueError, match="2 of 5 inputs have probabilities that are NaN, the first in row 2: look"):
        loaded.predict(inputs)
    assert loaded.predict(inputs[:2]) == names[:2]


def test_images_scaled_already_are_refused_where_eight_bits_were_stored(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(40) % 2)
    loaded = lastlayer.load(train(tmp_path / "run", stored=str(tmp_path / "images.npz")))
    assert len(loaded.predict(images)) == 40
    with pytest.raises(TypeError, match="inputs must be uint8, as stored in training, got float32: give them as they"):
        loaded.predict(images.astype(np.float32) / 255)


def test_a_loaded_run_at_a_prompt_shows_what_it_is_and_not_all_it_holds(run):
    shown = repr(lastlayer.load(run))
    assert "CrossEntropyLoss" in shown
    assert "class_names=('0', " in shown
    assert len(shown) < 2000


REMEMBERING = """
import torch
from lastlayer.losses import CrossEntropyLoss

class Counting(CrossEntropyLoss):
    def __init__(self, num_classes=None, **options):
        super().__init__(num_classes, **options)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, logits, target):
        self.steps += 1
        return super().forward(logits, target)

    def get_extra_state(self):
        return {"no": "tensor"}

    def set_extra_state(self, state):
        pass

    def probabilities(self, logits):
        return super().probabilities(logits / (1 + self.steps))
"""


def test_a_loaded_loss_has_what_it_remembered(tmp_path, monkeypatch):
    (tmp_path / "remembering_loss.py").write_text(REMEMBERING)
    monkeypatch.syspath_prepend(str(tmp_path))
    run = train(tmp_path / "run", "remembering_loss.Counting", "iris")
    loaded = lastlayer.load(run, trust=["remembering_loss"])
    steps = 120 // 16  # a fifth of the 150 samples is tested on
    inputs = torch.rand(5, 4)
    expected = (loaded.network(inputs) / (1 + steps)).softmax(1)
    torch.testing.assert_close(loaded.probabilities(inputs), expected)


def test_a_loaded_loss_has_the_counts_it_was_trained_with(tmp_path):
    loaded = lastlayer.load(train(tmp_path / "run", "logit-adjusted", "iris"))
    assert loaded.loss.counts.tolist() == data.load("iris").train_counts.tolist()
