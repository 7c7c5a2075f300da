"""A run folder cannot run code: what its files name is imported only if the caller trusts that module."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastlayer
from lastlayer._core.files import read_json, write_json
from lastlayer._core.registry import UntrustedError
from lastlayer.training import finish_fit, fit
from lastlayer.training.export import export
from lastlayer.training.trial import DataChoice, LossChoice, ModelChoice, Schedule, Trial
from tests.cli.commands import lastlayer as command

CODE = """
from pathlib import Path
from torch import nn
from lastlayer import heads, losses

Path(__file__).with_name("ran").touch()


class Net(nn.Sequential):
    num_features = 4

    def __init__(self, in_shape):
        super().__init__(nn.Flatten())


class Mine(losses.CrossEntropyLoss):
    pass


class Head(heads.LinearHead):
    pass
"""
IRIS = Trial(DataChoice("iris"), ModelChoice("mlp", {"width": 8}), schedule=Schedule(epochs=1), evaluations=1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "plain"
    finish_fit(fit(IRIS, folder))
    return folder


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there once the module `strange` has been imported."""
    (tmp_path / "strange.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("strange", None)


def forged(plain: Path, folder: Path, **parts: Any) -> Path:
    """A copy of a run whose trial names other parts, with checksums that fit."""
    shutil.copytree(plain, folder)
    content = read_json(folder / "result.json")
    content["trial"] |= parts
    write_json(folder / "trial.json", content["trial"])
    write_json(folder / "result.json", {name: value for name, value in content.items() if name != "sha256"})
    return folder


FORGERIES: dict[str, dict[str, Any]] = {
    "model": {"model": {"name": "strange:Net", "options": {}}},
    "loss": {"loss": {"name": "strange.Mine", "options": {}}},
    "loss by a colon": {"loss": {"name": "strange:Mine", "options": {}}},
    "head": {"head": {"name": "strange:Head", "options": {}}},
    "standard library": {"model": {"name": "subprocess:getoutput", "options": {"cmd": "true"}}},
    "remote code": {"model": {"name": "hf:nobody/nothing", "options": {"trust_remote_code": True}}},
    "pickled weights": {"model": {"name": "timm:resnet18", "options": {"checkpoint_path": "weights.pth"}}},
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_run_that_names_code_is_refused_with_the_name(plain: Path, tmp_path: Path, marker: Path, what: str) -> None:
    run = forged(plain, tmp_path / "forged", **FORGERIES[what])
    (named,) = (part["name"] for part in FORGERIES[what].values())
    with pytest.raises(UntrustedError, match=r"If you trust it, say so: trust=\['") as caught:
        lastlayer.load(run)
    assert named in str(caught.value)
    assert str(run) in str(caught.value)
    with pytest.raises(UntrustedError):
        export(run, tmp_path / "out", ["safetensors"])
    code, said = command("export", str(run), "--format", "safetensors")
    assert code != 0
    assert "--trust" in said
    for line in (["report", str(run)], ["status", str(run.parent)]):
        assert command(*line)[0] == 0
    assert not marker.exists()


def test_a_teacher_that_names_code_is_refused_before_anything_trains(
    plain: Path, tmp_path: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = forged(plain, tmp_path / "teacher", loss={"name": "strange.Mine", "options": {}})
    kd = Trial(**{**vars(IRIS), "loss": LossChoice("kd"), "teacher": str(teacher)})
    with pytest.raises(UntrustedError):
        finish_fit(fit(kd, tmp_path / "student"))
    monkeypatch.chdir(tmp_path)
    line = ["train", "--data", "iris", "--loss", "kd", "--teacher", str(teacher), "--epochs", "1"]
    code, said = command(*line)
    assert code != 0
    assert "'strange.Mine'" in said
    assert "--trust strange" in said
    assert not marker.exists()
    assert command(*line, "--trust", "strange")[0] == 0
    assert marker.exists()


def test_a_trusted_module_is_used_and_its_package_stands_for_it(plain: Path, tmp_path: Path, marker: Path) -> None:
    run = forged(plain, tmp_path / "forged", loss={"name": "strange.Mine", "options": {}})
    for trust in (["strang"], ["strange.more"], ["other"]):
        with pytest.raises(UntrustedError):
            lastlayer.load(run, trust=trust)
    assert not marker.exists()
    loaded = lastlayer.load(run, trust=["other", "strange"])
    assert type(loaded.loss).__name__ == "Mine"
    with pytest.raises(TypeError, match=r"trust must be a list of modules, got the text 'strange'"):
        lastlayer.load(run, trust="strange")


def test_what_the_users_own_command_names_needs_no_word(tmp_path: Path, marker: Path) -> None:
    own = Trial(**{**vars(IRIS), "model": ModelChoice("strange:Net")})
    finish_fit(fit(own, tmp_path / "own"))
    student = Trial(**{**vars(own), "loss": LossChoice("kd"), "teacher": str(tmp_path / "own")})
    finish_fit(fit(student, tmp_path / "student"))  # the teacher's code is the student's
    assert marker.exists()
    with pytest.raises(UntrustedError):
        lastlayer.load(tmp_path / "own")
    assert lastlayer.load(tmp_path / "own", trust=["strange"]).predict([[5.0, 3.4, 1.4, 0.2]])
