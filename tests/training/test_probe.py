"""Heads on given features: reading them, training them against a known optimum, the command, and every mistake."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import lastlayer
from lastlayer.cli import app
from lastlayer.data import CorruptFileError
from lastlayer.runners import Placement, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import Trial, facts, tuning
from lastlayer.training.probe import choose_rate, load_features, probe_trial

runner = CliRunner()
K, D = 5, 6


def probe_of(base: Trial, loss: str) -> Trial:
    """The trial of a loss, as `lastlayer linear-probe` makes it."""
    return choose_rate(base.with_settings({"loss": {"name": loss}})).resolved()


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(K, D))
    target = np.arange(count) % K
    features = 30 + 10 * (centres[target] + 1.5 * random.normal(size=(count, D)))  # far from standard
    return features.astype(np.float32), target


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "train.safetensors", tmp_path / "test.safetensors"
    for path, count, seed in zip(paths, (600, 200), (1, 2), strict=True):
        features, target = points(count, seed)
        save_file({"features": torch.from_numpy(features), "target": torch.from_numpy(target)}, path)
    return paths


# reading


def test_features_keep_their_bits_and_are_standardised_on_the_way(files):
    dataset = load_features(*files)
    features, target = points(600, 1)
    assert torch.equal(dataset.train.inputs, torch.from_numpy(features))
    assert dataset.train.target.tolist() == target.tolist()
    np.testing.assert_allclose(dataset.mean, features.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, features.astype(np.float64).std(0), rtol=1e-12)
    assert set(dataset.checksums) == {"train.safetensors", "test.safetensors"}
    assert load_features(*files, standardize=False).mean is None


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ">f4"])
def test_npz_of_any_float_and_integer(tmp_path, dtype):
    features, target = points(100, 1)
    np.savez(tmp_path / "a.npz", x=features.astype(dtype), y=target.astype(np.uint8))
    dataset = load_features(tmp_path / "a.npz")
    assert len(dataset.train) == 80
    assert dataset.notes == ("test set: 0.2 of each class at random, seed 0",)
    assert dataset.train.inputs.dtype == torch.from_numpy(np.zeros(1, np.dtype(dtype).newbyteorder("="))).dtype


def test_one_file_may_hold_both_splits(tmp_path):
    (a, b), (c, d) = points(100, 1), points(50, 2)
    np.savez(tmp_path / "data.npz", x_train=a, y_train=b, x_test=c, y_test=d)
    np.savez(tmp_path / "own.npz", features_train=a, target_train=b, features_test=c, target_test=d)
    for name in ("data.npz", "own.npz"):
        dataset = load_features(tmp_path / name)
        assert (len(dataset.train), len(dataset.test)) == (100, 50)


def test_constant_entries_have_deviation_one(tmp_path):
    features, target = points(50, 0)
    features[:, 2] = 7.0
    np.savez(tmp_path / "a.npz", features=features, target=target)
    assert load_features(tmp_path / "a.npz").std[2] == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": None}, r"holds no features \(or x, features_train, x_train\); it holds target"),
        ({"target": None}, "holds no target"),
        ({"features": np.zeros((4, 2, 2))}, r"features must be \(N, d\), got inputs of shape \(1, 2, 2\)"),
        ({"features": np.zeros((4, 0))}, "features must be real numbers and not empty"),
        (
            {"target": np.zeros(4)},
            r"target must be integers \(N,\), not torch.float64 \(4,\): save target.astype\(int\)$",
        ),
        ({"target": np.zeros(3, int)}, r"features has 4 rows but target has 3"),
        ({"target": np.array([0, 1, 0, -1])}, "label -1"),
        ({"target": np.array([0, 1, 0, 10**9])}, "labels must be 0 to K-1"),
        ({"features": np.array([[0.0], [np.nan], [1.0], [1.0]])}, "not finite in float32, first at row 1"),
        ({"features": np.array([[0.0], [1.0], [1e300], [1.0]])}, "not finite in float32, first at row 2"),
        ({"target": np.array(list("abab"), object)}, "without unpickling, which is refused .*: save numbers"),
        ({"target": np.zeros(4, "datetime64[s]")}, "a.npz: target must be numbers, got datetime64"),
        ({"target": np.zeros(4, int)}, "a.npz has one class, 0: a classifier needs two or more"),
    ],
)
def test_wrong_arrays_are_named(tmp_path, change, message):
    content = {"features": np.ones((4, 2)), "target": np.array([0, 1, 0, 1]), **change}
    content = {name: value for name, value in content.items() if value is not None}
    np.savez(tmp_path / "a.npz", **content)
    with pytest.raises(ValueError, match=message):
        load_features(tmp_path / "a.npz", tmp_path / "a.npz")


def test_whole_numbers_and_texts_are_read_as_data_load_reads_them(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.arange(20).reshape(10, 2), target=np.array(list("ab") * 5))
    dataset = load_features(tmp_path / "a.npz")
    assert dataset.train.inputs.dtype == torch.float32
    assert dataset.class_names == ("a", "b")


def test_rows_that_are_not_finite_are_named_wherever_they_come_to_lie(tmp_path):
    features, target = points(50, 0)
    for row in range(50):
        broken = features.copy()
        broken[row, 1] = np.inf
        np.savez(tmp_path / "a.npz", features=broken, target=target)
        with pytest.raises(
            ValueError, match=rf"a.npz: features has numbers that are not finite in float32, first at row {row}$"
        ):
            load_features(tmp_path / "a.npz")


def test_a_test_set_that_does_not_fit_is_named(tmp_path):
    features, target = points(50, 0)
    np.savez(tmp_path / "train.npz", features=features, target=target)
    for more, message in (
        ({"target": target + 1000}, "label 1004"),
        ({"features": features + np.inf}, "first at row 0"),
    ):
        np.savez(tmp_path / "test.npz", **{"features": features, "target": target, **more})
        with pytest.raises(ValueError, match=rf"test.npz: .*{message}"):
            load_features(tmp_path / "train.npz", tmp_path / "test.npz")


def test_one_sample_a_class_leaves_none_to_test_on(tmp_path):
    features, target = points(K, 0)
    np.savez(tmp_path / "a.npz", features=features, target=target)
    with pytest.raises(ValueError, match=r"every class has one sample.*give a test set"):
        load_features(tmp_path / "a.npz")


def test_a_class_without_training_samples_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.ones((4, 2)), target=np.array([0, 2, 0, 2]))
    with pytest.raises(ValueError, match="no training samples for 1 of 3 classes: 1; add"):
        load_features(tmp_path / "a.npz", tmp_path / "a.npz")


def test_damaged_files(tmp_path):
    for name in ("a.npz", "a.safetensors"):
        (tmp_path / name).write_bytes(b"\xff" * 100)
        with pytest.raises(CorruptFileError, match=name):
            load_features(tmp_path / name)
    np.savez(tmp_path / "pickled.npz", features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(CorruptFileError):
        load_features(tmp_path / "pickled.npz")


# training


def train(trials, root: Path, dataset, **options) -> list[str]:
    return [
        event.kind
        for event in run_trials(trials, Placement(root, "cpu", **options), dataset)
        if event.kind != "progress"
    ]


def test_the_head_finds_the_optimum_of_logistic_regression(files, tmp_path):
    """Full batches, no decay: scikit-learn's unpenalised optimum, predicted probabilities included."""
    dataset = load_features(*files)
    base = probe_trial(dataset, *files).with_settings(
        {"batch_size": 600, "schedule.epochs": 400, "optimiser.weight_decay": 0.0, "optimiser.lr": 0.05}
    )
    trial = probe_of(base, "ce")
    assert train([trial], tmp_path / "runs", dataset) == ["start", "done"]
    loaded = lastlayer.load(tmp_path / "runs" / trial.identity)
    features, target = points(600, 1)
    test, _ = points(200, 2)
    standard = (features - features.mean(0)) / features.std(0)
    peer = LogisticRegression(C=np.inf, max_iter=2000, tol=1e-8).fit(standard, target)
    expected = peer.predict_proba((test - features.mean(0)) / features.std(0))
    np.testing.assert_allclose(loaded.probabilities(torch.from_numpy(test)).numpy(), expected, atol=0.01)
    assert loaded.result["data"]["checksums"] == dict(dataset.checksums)


def test_a_cut_probe_resumes_to_the_same_bits(files, tmp_path):
    dataset = load_features(*files)
    base = probe_trial(dataset, *files).with_settings({"schedule.epochs": 4})
    trial = probe_of(base, "sln")
    train([trial], tmp_path / "whole", dataset)
    cut = run_trials([trial], Placement(tmp_path / "cut", "cpu", report_seconds=0.0), dataset)
    folder = RunFolder(tmp_path / "cut" / trial.identity)
    for _ in cut:
        if len(folder.metrics()) == 3:
            break
    cut.close()
    assert folder.status == "interrupted"
    assert train([trial], tmp_path / "cut", dataset) == ["start", "done"]
    whole = RunFolder(tmp_path / "whole" / trial.identity).tensors("weights")
    for name, tensor in folder.tensors("weights").items():
        assert torch.equal(tensor, whole[name]), name


def test_a_diverging_loss_does_not_stop_the_others(files, tmp_path):
    dataset = load_features(*files)
    base = probe_trial(dataset, *files).with_settings({"schedule.epochs": 1})
    bad = probe_of(base.with_settings({"optimiser.name": "sgd", "optimiser.lr": 1e30}), "mse")
    good = probe_of(base, "ce")
    assert train([bad, good], tmp_path, dataset) == ["start", "failed", "start", "done"]
    assert train([bad, good], tmp_path, dataset) == ["failed", "skip"]
    assert train([bad, good], tmp_path, dataset, retry_failed=True) == ["skip", "start", "failed"]


def test_what_is_measured_in_part_is_noted(files, monkeypatch):
    monkeypatch.setattr(facts, "LARGEST_LOGITS", 100 * K)
    assert load_features(*files).notes == (
        "train: measured on 100 of 600 samples, an even share of each class; accuracy on all",
        "test: measured on 100 of 200 samples, an even share of each class; accuracy on all",
    )


# the command


def run(*arguments, code=0):
    result = runner.invoke(app, ["linear-probe", *(str(argument) for argument in arguments)])
    assert result.exit_code == code, result.output
    return result


def test_command_trains_every_loss_and_seed_then_skips_them(files, tmp_path):
    arguments = ["--features", files[0], "--test", files[1], "--losses", "ce,sln:gamma=0.5", "--seeds", 2]
    arguments += ["--epochs", 2, "--head", "normalized", "--scale", 8, "--out", tmp_path / "runs"]
    output = run(*arguments).stdout
    assert "accuracy" in output
    done = sorted((tmp_path / "runs").glob("*/result.json"))
    assert len(done) == 4
    trials = [json.loads(file.read_text())["trial"] for file in done]
    assert {(trial["loss"]["name"], trial["seed"]) for trial in trials} == {
        ("ce", 0),
        ("ce", 1),
        ("sln", 0),
        ("sln", 1),
    }
    assert all(trial["head"] == {"name": "normalized", "options": {"scale": 8.0}} for trial in trials)
    assert {str(trial["loss"]["options"]) for trial in trials} == {"{}", "{'gamma': 0.5}"}
    before = [file.stat().st_mtime_ns for file in done]
    run(*arguments)
    assert [file.stat().st_mtime_ns for file in done] == before
    assert len(list((tmp_path / "runs").glob("compare-*.json"))) == 1


def test_tuning_chooses_each_losss_rate_and_decay_on_held_out_rows(files, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "RATE_FACTORS", (1e-5, 1.0))
    monkeypatch.setattr(tuning, "DECAY_FACTORS", (1.0,))
    arguments = ["--features", files[0], "--test", files[1], "--losses", "ce,bce", "--seeds", 2, "--epochs", 3]
    arguments += ["--tune", "--out", tmp_path / "runs"]
    said = run(*arguments).output
    assert "tuned ce: lr 0.01 (at the edge of the grid), weight decay 0.05, validation accuracy" in said
    assert "tuned bce: lr 0.03 (at the edge of the grid)" in said
    assert "2 of 2 candidates done" in said
    results = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/result.json")]
    assert len(results) == 8
    searched = [result for result in results if result["trial"]["seed"] == tuning.TUNING_SEED]
    assert [result["data"]["samples"]["train"] for result in searched] == [540] * 4
    assert all("validation" in result["measures"] for result in searched)
    final = [result for result in results if result["trial"]["seed"] in (0, 1)]
    assert [result["data"]["samples"]["train"] for result in final] == [600] * 4
    assert {(r["trial"]["loss"]["name"], r["trial"]["optimiser"]["lr"]) for r in final} == {("ce", 0.01), ("bce", 0.03)}


def test_rows_may_be_held_out(files, tmp_path):
    arguments = ["--features", files[0], "--test", files[1], "--losses", "ce", "--seeds", 1, "--epochs", 1]
    run(*arguments, "--set", "data.holdout=0.2", "--out", tmp_path / "runs")
    (result,) = [json.loads(file.read_text()) for file in (tmp_path / "runs").glob("*/result.json")]
    assert result["data"]["samples"]["train"] == 480
    assert 0 < result["measures"]["validation"]["accuracy"] <= 1


def test_changed_features_are_not_passed_off_as_the_old(files, tmp_path):
    arguments = ["--features", files[0], "--test", files[1], "--losses", "ce", "--seeds", 1, "--epochs", 1]
    arguments += ["--out", tmp_path / "runs"]
    run(*arguments)
    features, target = points(600, 3)
    save_file({"features": torch.from_numpy(features), "target": torch.from_numpy(target)}, files[0])
    assert "has changed since" in run(*arguments, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--losses", "cee"], "did you mean 'ce'"),
        (["--losses", ","], "names no loss"),
        (["--losses", "sln:gama=0.5"], "gama"),
        (["--head", "norm"], "head 'norm' is unknown (did you mean 'normalized'?)"),
        (["--head", "linear", "--scale", "3"], "scale"),
        (["--head", "simplex"], "head simplex on model identity has nothing to learn"),
        (["--epochs", "0"], "schedule.epochs must be >= 1"),
        (["--set", "optimiser.lrr=1"], "lrr"),
        (["--set", "nonsense"], "NAME=VALUE"),
        (["--set", "seed=3"], "--seeds"),
        (["--set", "data.train=100"], "--set data.train: the data is that of --features"),
        (["--set", 'data={"name": "iris"}'], "--set data: the data is that of --features"),
        (["--test", "nowhere.npz"], "no such file"),
    ],
)
def test_mistakes_are_one_line_before_any_training(files, tmp_path, arguments, said):
    error = run("--features", files[0], *arguments, "--out", tmp_path / "runs", code=2).stderr
    assert error.startswith("lastlayer linear-probe: ")
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_in_a_real_process(files, tmp_path):
    program = "from lastlayer.cli import app; app()"
    arguments = ["--features", "train.safetensors", "--test", "test.safetensors", "--losses", "ce", "--seeds", "1"]
    ran = subprocess.run(
        [sys.executable, "-c", program, "linear-probe", *arguments, "--epochs", "2"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "runs").glob("*/weights.safetensors"))) == 1
