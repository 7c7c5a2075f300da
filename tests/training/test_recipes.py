"""Settings a user leaves open: defaults by the data, and heads on given features, also by the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import lastlayer
from lastlayer.cli import app
from lastlayer.data import Dataset, Split
from lastlayer.runners import Placement, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training import Augmentation, Trial
from lastlayer.training.facts import load_features
from lastlayer.training.recipes import choose_rate, default_trial, probe_trial
from tests.training.conftest import points

runner = CliRunner()


def probe_of(base: Trial, loss: str) -> Trial:
    """The trial of a loss, as `lastlayer linear-probe` makes it."""
    return choose_rate(base.with_settings({"loss": {"name": loss}})).resolved()


@pytest.mark.parametrize(
    ("name", "shape", "model", "augmentation"),
    [
        ("some", (13,), "mlp", Augmentation()),
        ("digits", (1, 8, 8), "mlp", Augmentation()),
        ("mnist", (1, 28, 28), "resnet20", Augmentation()),
        ("cifar10", (3, 32, 32), "resnet20", Augmentation(crop=4, flip=True)),
        ("some", (3, 65, 64), "resnet18", Augmentation(crop=8, flip=True)),
    ],
)
def test_defaults_suit_the_shape_and_the_kind_of_the_data(name, shape, model, augmentation):
    for samples, batch_size in ((19_999, 64), (20_000, 128)):
        split = Split(torch.zeros(1, *shape).expand(samples, *shape), torch.arange(samples) % 2)
        trial = default_trial(Dataset(name, split, split, ("a", "b")))
        assert (trial.model.name, trial.augmentation, trial.batch_size) == (model, augmentation, batch_size)


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


def test_runs_lie_in_the_working_folder_unless_told_otherwise(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("--features", "train.safetensors", "--test", "test.safetensors", "--losses", "ce", "--seeds", 1, "--epochs", 2)
    assert len(list((tmp_path / "runs").glob("*/weights.safetensors"))) == 1
