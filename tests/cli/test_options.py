"""What the options of `compare` and `train` become, and one line for each mistake in them."""

import json
from pathlib import Path

import pytest

from lastlayer.runs import RunFolder
from tests.cli.commands import QUICK, lastlayer

pytestmark = pytest.mark.usefixtures("folder_of_its_own")


def test_a_loss_may_carry_a_list() -> None:
    weighted = "ce:weight=[1,2.5,1]:label_smoothing=0.1"
    code, said = lastlayer("compare", "--data", "iris", "--losses", f"sln,{weighted},ce", "--seeds", "1", *QUICK[2:])
    assert code == 0, said
    options = [RunFolder(path.parent).trial()["loss"]["options"] for path in Path("runs").glob("*/result.json")]
    assert [one["weight"] for one in options if "weight" in one] == [[1, 2.5, 1]]
    assert len(options) == 3


def test_what_is_said_of_one_loss_counts_before_what_is_said_of_all() -> None:
    given = ("--losses", "ls:label_smoothing=0.3,bce", "--label-smoothing", "0.2", "--seeds", "1")
    code, said = lastlayer("compare", "--data", "iris", *given, *QUICK[2:])
    assert code == 0, said
    chosen = [RunFolder(path.parent).trial()["loss"] for path in Path("runs").glob("*/result.json")]
    assert {one["name"]: one["options"]["label_smoothing"] for one in chosen} == {"ls": 0.3, "bce": 0.2}


def test_options_reach_the_trial() -> None:
    options = (
        "--head normalized --scale 8 --optimiser adamw --lr 0.01 --weight-decay 0.1 --schedule milestones --warmup 0.5 "
        "--clip 1 --mixup 0.2 --crop 1 --flip --rotation 5 --precision bfloat16 --label-smoothing 0.1 --holdout 0.2 "
        "--batch-size 32 --decay head"
    )
    code, said = lastlayer("train", "--loss", "bce", "--seed", "3", *QUICK[:-3], *options.split())
    assert code == 0, said
    (folder,) = (path.parent for path in Path("runs").glob("*/result.json"))
    trial = RunFolder(folder).trial()
    assert trial["head"] == {"name": "normalized", "options": {"scale": 8.0}}
    assert trial["loss"] == {"name": "bce", "options": {"label_smoothing": 0.1}}
    assert trial["optimiser"] | {"momentum": 0, "nesterov": 0} == {
        "name": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip": 1.0, "decay": "head", "momentum": 0, "nesterov": 0,
    }  # fmt: skip
    assert trial["augmentation"]["flip"] is True
    assert trial["augmentation"]["mixup"] == 0.2
    assert (trial["precision"], trial["batch_size"], trial["seed"]) == ("bfloat16", 32, 3)
    assert trial["data"]["holdout"] == 0.2
    assert str(folder) in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--losses", "snl"], ["snl", "'sln'"]),
        (["--losses", "CrossEntropyLoss"], ["CrossEntropyLoss", "'ce'"]),
        (["--losses", "SLN"], ["'SLN' is unknown (did you mean 'sln'?)"]),
        (["--losses", "focal_loss"], ["'focal_loss' is unknown (did you mean 'focal'?)"]),
        (["--losses", ","], ["--losses"]),
        (["--losses", "sln:gama=1"], ["gama", "'gamma'"]),
        (["--losses", "sln:gamma"], ["NAME=VALUE"]),
        (["--data", "nowhere"], ["nowhere"]),
        (["--data", "./nowhere.npz"], ["./nowhere.npz", "no such file"]),
        (["--data", "./nowhere"], ["./nowhere", "no such file or folder"]),
        (["--out", "/dev/null/runs"], ["--out /dev/null/runs", "no folder can be made there"]),
        (["--epochs", "0"], ["schedule.epochs", "0"]),
        (["--set", "evaluations=0"], ["--set evaluations=0", "give 1 or more"]),
        (["--set", "schedul.epochs=3"], ["schedul", "'schedule'"]),
        (["--head", "cosine"], ["cosine", "normalized"]),
        (["--head", ""], ["head '' is unknown", "normalized"]),
        (["--data", ""], ["data set '' is unknown"]),
        (["--unknown-from", ""], ["data set '' is unknown"]),
        (["--model", "resnet999"], ["resnet999"]),
        (["--long-tail", "0.5"], ["long_tail", "0.5"]),
        (["--losses", "kd"], ["needs a teacher", "--set teacher=RUN"]),
        (["--losses", "kd", "--teacher", "nowhere"], ["teacher nowhere", "no finished run"]),
        (["--losses", "sln:gamma=5"], ["loss sln gamma=5", "[0.0, 1.0]"]),
        (["--losses", "sln:gamma=much"], ["gamma must be a number"]),
        (["--losses", "ce,sln,ce"], ["ce is there twice"]),
        (["--losses", "sln:gamma=0.2,sln:gamma=0.4", "--set", "loss.gamma=0.5"], ["sln gamma=0.5 is there twice"]),
        (["--head", "batch-norm", "--batch-size", "1"], ["head batch-norm", "batch_size must be >= 2, got 1"]),
        (["--model", "cnn6", "--batch-size", "1"], ["model cnn6", "batch_size must be >= 2, got 1"]),
        (["--head", "simplex", "--scale", "-1"], ["head simplex", "scale must be positive"]),
        (["--head", "simplex", "--set", "model.width=4"], ["10 classes needs dim >= 9"]),
        (["--head", "simplex", "--model", "identity"], ["head simplex on model identity has nothing to learn"]),
        (["--set", "model.width=0"], ["model mlp width=0"]),
        (["--set", "seed=7"], ["--seeds"]),
        (["--set", "data.unknown=10"], ["unknown=10"]),
        (["--pretrained"], ["--model timm:NAME"]),
        (["--device", "gpu"], ["'gpu'", "cuda"]),
        (["--device", "mps"], ["'mps'", "cuda"]),
        (["--device", "cuda:99"], ["cuda:99", "this machine has"]),
    ],
)
def test_mistakes_end_in_one_line_before_anything_is_trained(arguments: list[str], words: list[str]) -> None:
    code, said = lastlayer("compare", *arguments)
    assert code == 2
    assert said.startswith("lastlayer compare: ")
    assert said.count("\n") == 1
    assert all(word in said for word in words)
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", [["compare"], ["linear-probe", "--features", "a.npz"]])
def test_a_seed_given_for_their_number_makes_no_million_trials(command: list[str]) -> None:
    code, said = lastlayer(*command, "--seeds", "20260101")
    assert code == 2
    assert "--seeds" in said
    assert "10000" in said


def test_samples_asked_for_by_set_are_those_of_the_trial() -> None:
    assert lastlayer("train", "--set", "data.train=100", "--epochs", "1")[0] == 0
    (result,) = Path("runs").glob("*/result.json")
    assert json.loads(result.read_text())["data"]["samples"]["train"] == 100
