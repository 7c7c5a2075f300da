"""Exported runs: what ONNX Runtime and bare safetensors compute against what torch computes, and every way to fail."""

import hashlib
import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import lastlayer
from lastlayer import losses
from lastlayer.cli import app
from lastlayer.runs import RunFolder
from lastlayer.training import export as module
from lastlayer.training import finish_fit, fit
from lastlayer.training.export import export
from lastlayer.training.trial import DataChoice, HeadChoice, LossChoice, ModelChoice, Optimiser, Schedule, Trial

runner = CliRunner()
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in module.ONNX_PACKAGES),
    reason="NOT TESTED: ONNX export, because onnx, onnxscript or onnxruntime is not installed (extra onnx)",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("data") / "images.npz"
    y = np.arange(24) % 3
    x = (random.integers(0, 120, (24, 3, 32, 32)) + 60 * y[:, None, None, None]).astype(np.uint8)
    np.savez(file, x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    return file


def train(folder: Path, **changes: object) -> Path:
    settings = {"optimiser": Optimiser(lr=0.02), "schedule": Schedule(epochs=1), "evaluations": 1, **changes}
    finish_fit(fit(Trial(**settings), folder))
    return folder


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An mlp with sln on digits."""
    return train(
        tmp_path_factory.mktemp("runs") / "sln", model=ModelChoice("mlp", {"width": 16}), loss=LossChoice("sln")
    )


@pytest.fixture(scope="module")
def digits_onnx(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run as ONNX."""
    out = tmp_path_factory.mktemp("onnx")
    export(digits_run, out, ["onnx"])
    return out


def export_and_compare(run: Path, out: Path) -> None:
    export(run, out, ["onnx"])
    compare(run, out)


def compare(run: Path, out: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    loaded = lastlayer.load(run)
    shape = loaded.result["data"]["in_shape"]
    assert given.name == "inputs"
    assert given.shape == ["batch", *shape]
    random = np.random.default_rng(1)
    for count in (1, 2, 17):
        if given.type == "tensor(uint8)":
            inputs = random.integers(0, 17, (count, *shape)).astype(np.uint8)
        else:
            inputs = random.normal(size=(count, *shape)).astype(np.float32)
        logits, probabilities = session.run(["logits", "probabilities"], {"inputs": inputs})
        with torch.no_grad():
            expected = loaded.network(torch.from_numpy(inputs))
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(probabilities, loaded.loss.probabilities(expected).numpy(), atol=1e-5)


@needs_onnx
def test_mlp_with_sln(digits_run, digits_onnx):
    compare(digits_run, digits_onnx)


@needs_onnx
def test_mlp_with_bce_on_a_normalized_head(tmp_path):
    run = train(
        tmp_path / "run",
        model=ModelChoice("mlp", {"width": 16}),
        loss=LossChoice("bce"),
        head=HeadChoice("normalized", {"scale": 8.0}),
    )
    export_and_compare(run, tmp_path / "out")


@needs_onnx
def test_resnet20_on_8_bit_images(images, tmp_path):
    run = train(tmp_path / "run", data=DataChoice(str(images)), model=ModelChoice("resnet20"), batch_size=12)
    export_and_compare(run, tmp_path / "out")


@needs_onnx
def test_vit_takes_any_batch(digits_run, tmp_path):
    model = ModelChoice("vit", {"dim": 8, "depth": 1, "heads": 2})
    export_and_compare(train(tmp_path / "run", data=DataChoice(train=64), model=model), tmp_path / "out")


class OneBatch(torch.nn.Module):
    """A model of the user's own; found by its import path."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(64, 4)
        self.token = torch.nn.Parameter(torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(x.flatten(1)) + self.token.expand(len(x), -1)


@needs_onnx
def test_a_graph_of_one_batch_size_is_not_kept(tmp_path):
    run = train(tmp_path / "run", data=DataChoice(train=64), model=ModelChoice(f"{__name__}:OneBatch"))
    with pytest.raises(ValueError, match=r"batch of 1|cannot be written as ONNX"):
        export(run, tmp_path / "out", trust=[__name__])
    assert not (tmp_path / "out").exists()


class TiedWeights(torch.nn.Module):
    """A model of the user's own; found by its import path."""

    num_features = 64

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.flatten(1)))


def test_tied_weights(tmp_path):
    run = train(tmp_path / "run", data=DataChoice(train=64), model=ModelChoice(f"{__name__}:TiedWeights"))
    export(run, tmp_path / "out", ["safetensors"], trust=[__name__])
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(weights["backbone.first.weight"], weights["backbone.second.weight"])
    assert torch.equal(
        weights["backbone.first.weight"], lastlayer.load(run, trust=[__name__]).network.backbone.second.weight
    )


def rewritten(run: Path, to: Path, **data: object) -> Path:
    """A copy of a finished run with other facts about its data."""
    old, new = RunFolder(run), RunFolder(to)
    result = old.result()
    result["data"].update(data)
    new.finish(result, old.tensors("weights"), {})
    return to


class Tokens(torch.nn.Module):
    """A model of the user's own; found by its import path."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(17, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embedding(x.long().flatten(1)).mean(1)


@needs_onnx
def test_tokens_stay_integers(tmp_path):
    trained = train(tmp_path / "run", data=DataChoice(train=64), model=ModelChoice(f"{__name__}:Tokens"))
    run = rewritten(trained, tmp_path / "tokens", dtype="int32", in_shape=[2, 32])
    export(run, tmp_path / "out", trust=[__name__])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["inputs"]["dtype"] == "int32"
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    tokens = np.random.default_rng(0).integers(0, 17, (5, 2, 32)).astype(np.int32)
    (logits,) = session.run(["logits"], {"inputs": tokens})
    with torch.no_grad():
        expected = lastlayer.load(run, trust=[__name__]).network(torch.from_numpy(tokens))
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)


@needs_onnx
def test_weights_beyond_what_an_onnx_file_holds_lie_beside_it_and_never_beside_another(
    digits_run, digits_onnx, tmp_path, monkeypatch, failing_disk
):
    out = Path(shutil.copytree(digits_onnx, tmp_path / "out"))
    first = RunFolder(digits_run).tensors("weights")["backbone.layers.0.weight"].numpy().tobytes()

    with monkeypatch.context() as patch:
        patch.setattr(module, "ONNX_LIMIT", 5_000)
        with failing_disk(KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            export(digits_run, out, ["onnx"])
        assert {path.name for path in out.iterdir()} == {
            "config.json",
            "lock",
        }  # the older graph is gone
        export_and_compare(digits_run, out)
    names = ["model.onnx.data", "model.onnx"]
    digests = {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in names}
    assert json.loads((out / "config.json").read_text())["files"] == digests
    assert [first in (out / name).read_bytes() for name in names] == [True, False]
    export(digits_run, out, ["onnx"])
    assert {path.name for path in out.iterdir()} == {"model.onnx", "config.json", "lock"}


@needs_onnx
def test_features_with_nce_on_a_batch_norm_head(tmp_path):
    run = train(
        tmp_path / "run",
        data=DataChoice("wine"),
        model=ModelChoice("identity"),
        loss=LossChoice("nce"),
        head=HeadChoice("batch-norm"),
    )
    export_and_compare(run, tmp_path / "out")


class Fickle(torch.nn.Module):
    """A model that computes something else while it is exported; found by its import path."""

    num_features = 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) + (10.0 if torch.compiler.is_compiling() else 0.0)


@needs_onnx
def test_a_file_that_computes_something_else_is_not_kept(tmp_path):
    run = train(tmp_path / "run", data=DataChoice(train=64), model=ModelChoice(f"{__name__}:Fickle"))
    with pytest.raises(ValueError, match="differ from torch's"):
        export(run, tmp_path / "out", ["onnx"], trust=[__name__])
    assert not (tmp_path / "out").exists()


def test_config_and_weights_suffice_to_predict(digits_run, tmp_path):
    """Recompute the probabilities from the two files with numpy alone."""
    files = export(digits_run, tmp_path, ["safetensors"])
    assert [file.name for file in files] == ["model.safetensors", "config.json"]
    config = json.loads((tmp_path / "config.json").read_text())
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert config["files"] == {"model.safetensors": digest}
    assert config["class_names"] == [str(k) for k in range(10)]
    assert config["inputs"]["dtype"] == "uint8"
    assert config["inputs"]["shape"] == ["batch", 1, 8, 8]
    assert config["loss"]["probabilities"] == "softmax(z / (0.2 ||z||^0.7))"
    assert config["trial"]["loss"]["name"] == "sln"

    w = {name: tensor.double().numpy() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    images = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.uint8)
    rule = config["inputs"]["normalize"]
    x = (images / rule["scale"] - rule["mean"][0]) / rule["std"][0]
    x = x.reshape(5, -1)
    for layer in ("backbone.layers.0", "backbone.layers.2"):
        x = np.maximum(x @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0)
    z = x @ w["head.weight"].T + w["head.bias"]
    s = np.exp(z / (0.2 * np.linalg.norm(z, axis=1, keepdims=True) ** 0.7))
    expected = lastlayer.load(digits_run).probabilities(torch.from_numpy(images))
    np.testing.assert_allclose(s / s.sum(1, keepdims=True), expected.numpy(), atol=1e-5)


def test_measures_that_are_undefined_are_null(images, tmp_path):
    """All of one class in the test set leaves much of the geometry undefined."""
    arrays = dict(np.load(images))
    alone = arrays["y_test"] == 0
    file = tmp_path / "one.npz"
    np.savez(file, **{**arrays, "x_test": arrays["x_test"][alone], "y_test": arrays["y_test"][alone]})
    run = train(tmp_path / "run", data=DataChoice(str(file)), model=ModelChoice("mlp", {"width": 4}))
    assert math.isnan(RunFolder(run).result()["measures"]["test"]["nc1"])

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    export(run, tmp_path / "out", ["safetensors"])
    config = json.loads((tmp_path / "out" / "config.json").read_text(), parse_constant=refuse)
    assert config["measures"]["test"]["nc1"] is None
    assert config["measures"]["test"]["accuracy"] == RunFolder(run).result()["measures"]["test"]["accuracy"]


def test_what_a_killed_export_left_is_cleared_and_two_at_once_are_refused(digits_run, tmp_path):
    left = tmp_path / f".model.safetensors.{'0123456789abcdef' * 2}"
    with RunFolder(tmp_path).locked():
        left.write_bytes(b"being written")
        assert f"another process is working on {tmp_path}" in refused(
            digits_run, "--format", "safetensors", "--out", tmp_path
        )
        assert left.exists()
    export(digits_run, tmp_path, ["safetensors"])
    assert {path.name for path in tmp_path.iterdir()} == {"model.safetensors", "config.json", "lock"}


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        ("ce", {}, lambda z: z.exp() / z.exp().sum()),
        ("ce", {"temperature": 2.0}, lambda z: (z / 2).exp() / (z / 2).exp().sum()),
        ("bce", {}, lambda z: 1 / (1 + (-z).exp())),
        ("ln", {"tau": 0.5}, lambda z: (z / (0.5 * z.norm())).softmax(0)),
        ("nce", {}, lambda z: 1 / (1 + (-(z - math.log(25 / 4))).exp())),
        ("arc-margin", {"scale": 3.0}, lambda z: (3 * z).softmax(0)),
    ],
)
def test_formulas_say_what_the_losses_do(name, options, formula):
    loss = losses.create(name, 4, **options)
    z = torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=torch.float64)
    said = loss.probability_formula()
    assert torch.allclose(loss.probabilities(z), formula(z)), said
    expected = {"ln": "softmax(z / (0.5 ||z||^1))", "nce": "sigmoid(z - log(25 q)), q = 1 / K", "bce": "sigmoid(z)"}
    assert said == expected.get(name, said)


def test_a_loss_of_ones_own_is_not_said_to_be_a_softmax():
    class Squared(losses.Loss):
        function = staticmethod(losses.cross_entropy)

        def probabilities(self, logits):
            return logits.square()

    assert Squared().probability_formula() == "Squared.probabilities(z)"
    assert losses.create("sln").probability_formula() == "softmax(z / (0.2 (K / 10)^-0.35 ||z||^0.7))"
    assert (
        losses.create("nce", samples=torch.zeros(7, dtype=torch.long))
        .probability_formula()
        .startswith("sigmoid(z - log(7 q))")
    )


def test_command_writes_beside_the_run(digits_run):
    result = runner.invoke(app, ["export", str(digits_run), "--format", "safetensors"])
    assert result.exit_code == 0, result.output
    assert (digits_run / "export" / "model.safetensors").exists()
    assert "config.json" in result.stdout


def refused(*arguments: object) -> str:
    result = runner.invoke(app, ["export", *(str(argument) for argument in arguments)])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("lastlayer export: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_mistakes_are_one_line(digits_run, tmp_path):
    assert "no such folder" in refused(tmp_path / "none")
    assert "did you mean" in refused(digits_run, "--format", "onxx")
    assert "no format is given: ask for safetensors or onnx" in refused(digits_run, "--format", " ,")
    begun = RunFolder(tmp_path / "begun")
    begun.path.mkdir()
    begun.start(Trial().to_dict())
    assert "interrupted, not done" in refused(begun.path, "--format", "safetensors")
    (tmp_path / "file").write_text("")
    assert "file" in refused(digits_run, "--format", "safetensors", "--out", tmp_path / "file" / "below")


def test_missing_onnx_names_the_extra_and_writes_nothing(digits_run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install 'lastlayer[onnx]'" in refused(digits_run, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_run_is_not_exported(digits_run, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in digits_run.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    weights = bytearray((copy / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "weights.safetensors").write_bytes(weights)
    assert "SHA-256" in refused(copy, "--format", "safetensors", "--out", tmp_path / "out")


def test_a_loaded_run_takes_arrays_and_names_a_wrong_shape(digits_run):
    loaded = lastlayer.load(digits_run)
    shape = tuple(loaded.result["data"]["in_shape"])
    inputs = np.random.default_rng(0).integers(0, 17, (3, *shape), dtype=np.uint8)
    assert torch.equal(loaded.probabilities(inputs), loaded.probabilities(torch.from_numpy(inputs)))
    assert loaded.predict(inputs) == loaded.predict(torch.from_numpy(inputs))
    wide = np.concatenate([inputs, inputs], axis=-1)
    with pytest.raises(ValueError, match=r"inputs must have shape \(N, .*as in training, got \(3, "):
        loaded.predict(wide)
