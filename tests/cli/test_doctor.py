"""`lastlayer doctor`: what it reports, what it advises, and that a wrong number is noticed."""

import importlib.metadata
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import lastlayer

module = importlib.import_module("lastlayer.cli.doctor")  # the command hides its module in the package
runner = CliRunner()
app = typer.Typer()
app.command()(module.doctor)


def report(tmp_path, *arguments, code=0):
    result = runner.invoke(app, ["--json", "--data-root", str(tmp_path / "data"), "--runs", str(tmp_path), *arguments])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_report_says_what_is_here(tmp_path):
    found = report(tmp_path)
    assert found["versions"]["lastlayer"] == lastlayer.__version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["threads"]["torch"] == torch.get_num_threads()
    assert found["data"]["sets"]["digits"] == "embedded"
    assert found["data"]["sets"]["cifar10"] == "not found"
    assert found["folders"]["runs"]["exists"]
    assert not found["folders"]["data root"]["exists"]
    assert all(test["ok"] for test in found["self_test"])
    assert not (tmp_path / "data").exists()  # looking makes nothing


def test_every_extra_has_a_purpose():
    extras = importlib.metadata.metadata("lastlayer").get_all("Provides-Extra")
    assert set(module.PURPOSES) == set(extras)


def test_extras_come_from_the_package(tmp_path, monkeypatch):
    wanted = ["numpy>=1", "onnx>=1 ; extra == 'onnx'", 'rich; extra == "other"', "no-such-thing; extra == 'onnx'"]
    monkeypatch.setattr(module.metadata, "requires", lambda name: wanted)
    extras = report(tmp_path)["extras"]
    assert set(extras) == {"onnx", "other"}
    assert "no-such-thing" in extras["onnx"]["missing"]
    assert extras["other"] == {"for": "", "installed": extras["other"]["installed"], "missing": []}
    assert "pip install 'lastlayer[onnx]'" in runner.invoke(app, ["--runs", str(tmp_path)]).stdout


def test_a_wrong_number_fails_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLN_LOSS", 0.5)
    found = report(tmp_path, code=1)
    assert [test["ok"] for test in found["self_test"]] == [False, True]
    assert any("self-test" in sentence for sentence in found["advice"])


def test_full_disk_and_unwritable_folder_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: _Usage(5 * 2**20))
    advice = report(tmp_path)["advice"]
    assert any("only 5 MiB free" in sentence for sentence in advice)

    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module.tempfile, "TemporaryFile", refuse)
    advice = report(tmp_path)["advice"]
    for folder, option in ((tmp_path, "--out (of reproduce: --runs)"), (tmp_path / "data", "--data-root")):
        assert f"{folder} cannot be written (Permission denied): choose another with {option}" in advice


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize(
    ("threads", "said"),
    [
        ({"torch": 8, "usable_cores": 2, "cores": 8, "load": 0.1}, "OMP_NUM_THREADS=2"),
        ({"torch": 1, "usable_cores": 4, "cores": 4, "load": 0.1}, "unset OMP_NUM_THREADS"),
        ({"torch": 2, "usable_cores": 2, "cores": 2, "load": 9.0}, "times mean little"),
    ],
)
def test_threads_that_do_not_fit(threads, said):
    advice = module.advice({"threads": threads, "folders": {}, "self_test": []})
    assert len(advice) == 1
    assert said in advice[0]


def test_without_package_metadata_everything_but_the_extras_is_reported(tmp_path, monkeypatch):
    """As in a checkout on PYTHONPATH."""

    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert report(tmp_path)["extras"] == {}
    said = runner.invoke(app, ["--runs", str(tmp_path)])
    assert said.exit_code == 0
    assert "extra      unknown: lastlayer is not installed here" in said.stdout
    assert "self-test  ok: NC1 of four points" in said.stdout


def test_python_m_lastlayer_is_the_command(tmp_path):
    command = [sys.executable, "-m", "lastlayer", "doctor"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "self-test  ok: NC1 of four points" in ran.stdout
    assert str(tmp_path / "runs") in ran.stdout
