"""`lastlayer bench`: what is timed computes what it says, what is told of it, and one line for every mistake."""

import csv
import importlib
import json
import math

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from lastlayer import losses
from lastlayer.cli import app
from lastlayer.cli.bench import Inputs, on_layer, on_logits, on_whole_layer
from lastlayer.linear_loss import Plan, plan

planning = importlib.import_module("lastlayer.linear_loss.plan")
TEACHER = ("kd", "fn-kd")
SMALL = ("--samples", "8", "--features", "4", "--classes", "5", "--seconds", "0", "--device", "cpu")


def bench(*arguments, code=0):
    said = CliRunner().invoke(app, ["bench", *SMALL, *map(str, arguments)])
    assert said.exit_code == code, said.output
    assert "Traceback" not in said.output
    return said


def rows(tmp_path, *arguments):
    """The rows by loss, and what was printed."""
    said = bench(*arguments, "--json", tmp_path / "bench.json")
    content = json.loads((tmp_path / "bench.json").read_text())
    return {row["loss"]: row for row in content["rows"]}, said.output


def test_every_loss_has_a_row_with_its_ratios_and_its_path(tmp_path):
    found, said = rows(tmp_path)
    assert list(found) == losses.available()
    for name, row in found.items():
        assert row["time_ratio"] == pytest.approx(row["milliseconds"] / row["cross_entropy_milliseconds"])
        if name in TEACHER:
            assert row["path"] is row["linear_milliseconds"] is row["dense_mebibytes"] is None
            assert "teacher" in row["why"]
            continue
        chosen = plan(8, 4, 5, name)
        assert (row["path"], row["why"]) == (chosen.path, chosen.why)
        assert row["linear_time_ratio"] == pytest.approx(row["linear_milliseconds"] / row["dense_milliseconds"])
        assert row["linear_memory_ratio"] == pytest.approx(row["linear_mebibytes"] / row["dense_mebibytes"])
    assert said.startswith(f"torch {torch.__version__}, ")
    assert "8 samples, 4 features, 5 classes, float32 on cpu" in said
    assert "dense: 40 logits are few" in said
    assert f"up to {2**24 // 8} classes" in said


def test_the_path_is_the_one_linear_loss_would_take(tmp_path, monkeypatch):
    for name, value in (("SMALL", 100), ("CHUNK", 4000), ("TILE", 4000), ("FEWEST_ROWS", 32)):
        monkeypatch.setattr(planning, name, value)
    sizes = ("--samples", "64", "--classes", "1000", "--loss", "sln,max-margin")
    found, said = rows(tmp_path, *sizes)
    assert (found["sln"]["path"], found["max-margin"]["path"]) == ("classes", "rows")
    assert "classes: 64000 logits; only 4 rows of 1000 classes would fit a chunk" in said
    assert "rows: the gradient has a few entries per row" in said
    assert "all logits at once up to" not in said
    logits = 64 * 1000 * 4 / 2**20
    for row in found.values():  # the dense form holds all logits and their gradient, ours a part of them
        assert row["linear_mebibytes"] < logits < 2 * logits < row["dense_mebibytes"]


def test_the_files_say_the_same(tmp_path):
    found, _ = rows(tmp_path, "--loss", "sln, kd,sln", "--dtype", "bfloat16", "--csv", tmp_path / "bench.csv")
    with (tmp_path / "bench.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["loss"] for row in read] == list(found) == ["sln", "kd"]
    for row in read:
        assert (row["samples"], row["classes"], row["dtype"]) == ("8", "5", "bfloat16")
        for name, value in found[row["loss"]].items():
            assert row[name] == ("" if value is None else str(value))


def test_logits_that_do_not_fit_are_left_out(tmp_path, free_memory, monkeypatch):
    free_memory(2**20)  # logits of 256 KB, and what is made of them
    monkeypatch.setattr(planning, "SMALL", 100)
    found, said = rows(tmp_path, "--samples", "64", "--classes", "1000", "--loss", "ce,kd")
    assert "64 x 1000 logits" in said
    assert "the dense peer are left out" in said
    row = found["ce"]
    assert (row["milliseconds"], row["dense_milliseconds"], row["linear_memory_ratio"]) == (None, None, None)
    assert row["path"] == "rows"
    assert row["linear_mebibytes"] > 0
    assert row["linear_milliseconds"] > 0
    assert all(value is None for name, value in found["kd"].items() if name not in ("loss", "why"))


def test_a_dense_path_that_does_not_fit_is_not_taken(tmp_path, free_memory):
    free_memory(1500)
    found, _ = rows(tmp_path, "--loss", "ce")
    assert (found["ce"]["path"], found["ce"]["linear_milliseconds"]) == ("dense", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--loss", "ce,slm"), "loss 'slm' is unknown (did you mean 'sln'?)"),
        (("--loss", ","), "--loss names no loss"),
        (("--device", "tpu"), "--device must be auto, cpu or cuda, got 'tpu'"),
        (("--device", "cuda"), "device cuda was asked for, but this machine has no GPU"),
        (("--dtype", "int8"), "--dtype must be float32 or bfloat16, got 'int8'"),
        (("--json", "nowhere/at/all.json"), "its folder does not exist"),
        (("--csv", "."), "--csv . is a folder: name a file"),
        (("--classes", 10**12), "choose smaller sizes"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_measured(arguments, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    said_all = bench(*arguments, code=2)
    error = said_all.stderr
    assert not said_all.stdout  # the first line of a measurement is that of the machine
    assert error.startswith("lastlayer bench: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("option", ["--samples", "--features", "--classes"])
def test_sizes_below_one(option):
    assert option in bench(option, "0", code=2).stderr


@pytest.fixture(params=["index", "pair", "probabilities"])
def inputs(request) -> Inputs:
    return Inputs(6, 4, 5, "cpu", torch.float64, request.param)


def as_probabilities(target):
    if isinstance(target, tuple):
        first, second, lam = target
        return lam * F.one_hot(first, 5).double() + (1 - lam) * F.one_hot(second, 5).double()
    return F.one_hot(target, 5).double() if target.dim() == 1 else target


def test_the_peer_on_logits_is_cross_entropy(inputs):
    target = as_probabilities(inputs.target)
    for name in losses.available():
        leaves, _, peer = on_logits(name, inputs)
        logits = leaves[0] @ leaves[1].T if name == "large-margin" else leaves[0]
        torch.testing.assert_close(peer(*leaves), -(target * logits.log_softmax(1)).sum(1).mean())


def test_every_loss_on_logits_has_a_gradient_in_every_leaf(inputs):
    for name in losses.available():
        if name == "batch-max-margin" and inputs.kind == "probabilities":
            continue  # it has no such target
        leaves, loss, _ = on_logits(name, inputs)
        value = loss(*leaves)
        assert math.isfinite(value.item())
        assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(value, leaves)), name


@pytest.mark.parametrize("name", [name for name in losses.available() if name not in TEACHER])
def test_linear_loss_and_its_dense_peer_are_the_same_function(name):
    inputs = Inputs(6, 4, 5, "cpu", torch.float64)
    leaves, by_rows = [inputs.features, inputs.weight], Plan("rows", "two at a time", rows=2)
    ours, dense = on_layer(name, inputs)(*leaves, by_rows), on_whole_layer(name, inputs)(*leaves)
    close = {"rtol": 1e-5, "atol": 1e-6}  # the dense peer of arc-margin has its directions in float32
    torch.testing.assert_close(ours, dense, **close)
    pairs = zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(dense, leaves), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, **close)
