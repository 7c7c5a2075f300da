"""The loop: every loss learns, the same seed gives the same bits, and nothing depends on company."""

import dataclasses
import functools
import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import lastlayer
from lastlayer import data, losses
from lastlayer.runs import RunFolder
from lastlayer.training import (
    Augmentation,
    DataChoice,
    DivergedError,
    HeadChoice,
    LossChoice,
    ModelChoice,
    Optimiser,
    Schedule,
    Trial,
)
from lastlayer.training.engine.step import step
from lastlayer.training.fit import begin, finish_fit, fit, train_epoch

SMALL = Trial(model=ModelChoice("mlp", {"width": 64}), schedule=Schedule(epochs=3), evaluations=2)
TRAINABLE = [name for name in losses.available() if name not in ("kd", "fn-kd")]


@pytest.mark.parametrize("name", TRAINABLE)
def test_every_loss_learns_digits(name: str) -> None:
    trial = dataclasses.replace(SMALL, loss=LossChoice(name), schedule=Schedule(epochs=10), evaluations=1)
    result = finish_fit(fit(trial))
    assert result["measures"]["test"]["accuracy"] > 0.85
    assert {"nc1", "nc2", "compactness", "auprc", "ece", "violation_rate"} <= set(result["measures"]["train"])


def test_an_ended_training_goes_with_its_data_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        for _ in range(2):  # the first one also imports what torch imports when it is used
            state, feed = begin(SMALL.resolved(), data.load("digits"))
            for _ in train_epoch(state, feed, functools.partial(step, state, feed)):
                pass
            ended = weakref.ref(state), weakref.ref(feed)
            del state, feed
        assert [one() for one in ended] == [None, None]
    finally:
        gc.enable()


def test_to_make_a_network_leaves_the_generators_of_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a GPU was seeded"))
    before = torch.get_rng_state()
    begin(SMALL.resolved(), data.load("digits"))
    assert torch.equal(torch.get_rng_state(), before)


def weights(result_folder: Path) -> dict[str, Tensor]:
    return RunFolder(result_folder).tensors("weights")


def test_the_same_seed_gives_the_same_bits_and_another_one_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(hash(name) % 1000)  # the global generator must not matter
        finish_fit(fit(dataclasses.replace(SMALL, seed=seed), tmp_path / name))
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not all(torch.equal(a[key], c[key]) for key in a)


def test_interleaved_trials_do_not_feel_each_other(tmp_path: Path) -> None:
    base = dataclasses.replace(
        SMALL,
        data=DataChoice("digits", train=128),
        model=ModelChoice("mlp", {"width": 16}),
        augmentation=Augmentation(crop=1, flip=True),
        schedule=Schedule(epochs=2),
    )
    trials = [dataclasses.replace(base, loss=LossChoice(name), seed=i) for i, name in enumerate(("ce", "sln", "mse"))]
    alone = [finish_fit(fit(trial, tmp_path / f"alone{i}")) for i, trial in enumerate(trials)]
    running = [fit(trial, tmp_path / f"packed{i}") for i, trial in enumerate(trials)]
    while running:
        for steps in list(running):
            try:
                next(steps)
            except StopIteration:
                running.remove(steps)
    for i in range(len(trials)):
        one, other = weights(tmp_path / f"alone{i}"), weights(tmp_path / f"packed{i}")
        assert all(torch.equal(one[key], other[key]) for key in one)
        assert RunFolder(tmp_path / f"packed{i}").result()["measures"] == alone[i]["measures"]


class Dropping(torch.nn.Module):
    """A model with dropout, for the test below; found by its import path."""

    def __init__(self, in_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_features = 8
        self.layers = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(math.prod(in_shape), 8), torch.nn.Dropout()
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def test_dropout_draws_from_the_trials_own_generator() -> None:
    model = ModelChoice(f"{__name__}:Dropping")
    trial = dataclasses.replace(SMALL, model=model, schedule=Schedule(epochs=1)).resolved()
    dataset = data.load("digits")

    def train(disturb: bool) -> Tensor:
        state, feed = begin(trial, dataset)
        for _ in train_epoch(state, feed, functools.partial(step, state, feed)):
            if disturb:
                torch.rand(7)
        return state.network.head.weight.detach().clone()

    assert torch.equal(train(False), train(True))


def test_data_that_does_not_fit_on_the_device_trains_to_the_same_bits(
    tmp_path: Path, stream_data: Callable[[], None]
) -> None:
    trial = dataclasses.replace(
        SMALL, data=DataChoice(holdout=0.1, long_tail=10.0, unknown=2), augmentation=Augmentation(crop=1)
    )
    finish_fit(fit(trial, tmp_path / "resident"))
    stream_data()
    finish_fit(fit(trial, tmp_path / "streamed"))
    one, other = weights(tmp_path / "resident"), weights(tmp_path / "streamed")
    assert all(torch.equal(one[key], other[key]) for key in one)
    first, second = (RunFolder(tmp_path / name).result() for name in ("resident", "streamed"))
    assert first["measures"] == second["measures"]


def test_measuring_does_not_change_the_training() -> None:
    results = [finish_fit(fit(dataclasses.replace(SMALL, evaluations=n))) for n in (1, 3)]
    assert results[0]["measures"]["test"]["accuracy"] == results[1]["measures"]["test"]["accuracy"]
    assert [len(result["history"]) for result in results] == [2, 4]


class Watched(torch.nn.Module):
    """A model that counts the samples it is measured on, for the test below; found by its import path."""

    measured: ClassVar[list[int]] = []

    def __init__(self, in_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_features = math.prod(in_shape)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.measured.append(len(x))
        return x.flatten(1)


def test_every_evaluation_goes_over_each_split_once(tmp_path: Path) -> None:
    Watched.measured.clear()
    finish_fit(fit(dataclasses.replace(SMALL, model=ModelChoice(f"{__name__}:Watched")), tmp_path / "run"))
    digits = data.load("digits")
    _, *measured = Watched.measured  # the first call only asks what the model returns
    assert sum(measured) == 3 * (len(digits.train) + len(digits.test))
    loaded = lastlayer.load(tmp_path / "run", trust=[__name__]).network
    pictured = RunFolder(tmp_path / "run").tensors("snapshots")
    rows = torch.cat([(digits.test.target == k).nonzero()[:50, 0] for k in range(10)])
    with torch.no_grad():
        features = loaded.head.features(loaded.backbone(loaded.normalize(digits.test.inputs)))[rows]
    assert torch.equal(pictured["target"], digits.test.target[rows])
    assert pictured["features"].dtype == torch.float32
    assert torch.allclose(pictured["features"], features, atol=1e-5)


def test_pictures_do_not_grow_with_the_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastlayer.training.engine.evaluate.MOST_SNAPSHOTS", 4)
    trial = dataclasses.replace(SMALL, data=DataChoice("iris"), schedule=Schedule(epochs=10), evaluations=10)
    steps = fit(trial, tmp_path / "cut")
    while next(steps).epoch < 5:
        pass
    steps.close()
    for name in ("whole", "cut"):
        assert len(finish_fit(fit(trial, tmp_path / name))["history"]) == 11
    whole, cut = (RunFolder(tmp_path / name).tensors("snapshots") for name in ("whole", "cut"))
    assert whole["epochs"].tolist() == [0, 3, 7, 10]
    assert len(whole["points"]) == len(whole["range"]) == 4
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_diverging_trial_says_where_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    trial = dataclasses.replace(SMALL, loss=LossChoice("mse"), optimiser=Optimiser(lr=1e3, weight_decay=0.0))
    with pytest.raises(DivergedError, match="not finite at step"):
        finish_fit(fit(trial, tmp_path / "run"))
    run = RunFolder(tmp_path / "run")
    assert run.status == "failed"
    assert run.failure()["learning_rate"] > 100
    assert run.load_checkpoint() is not None


@pytest.mark.parametrize(
    "change",
    [
        {"head": HeadChoice("normalized", {"scale": 8.0})},
        {"head": HeadChoice("batch-norm")},
        {"head": HeadChoice("simplex")},
        {"optimiser": Optimiser("adam", lr=0.01)},
        {"optimiser": Optimiser("adamw", lr=0.01, clip=1.0)},
        {"optimiser": Optimiser(decay="head", nesterov=True)},
        {"schedule": Schedule("milestones", epochs=6, warmup=1)},
        {"schedule": Schedule("constant", epochs=6)},
        {"augmentation": Augmentation(crop=1, rotation=10.0)},
        {"augmentation": Augmentation(mixup=0.4, cutmix=1.0, mix_probability=0.5)},
        {"precision": "bfloat16"},
        {"data": DataChoice("wine"), "batch_size": 16},
    ],
)
def test_every_kind_of_setting_trains(change: dict[str, object]) -> None:
    trial = dataclasses.replace(SMALL, schedule=Schedule(epochs=6), evaluations=1)
    result = finish_fit(fit(dataclasses.replace(trial, **change)))  # type: ignore[arg-type]
    assert result["measures"]["test"]["accuracy"] > 0.8


def test_weight_decay_on_the_head_alone_leaves_the_backbone_to_the_gradient() -> None:
    trial = dataclasses.replace(SMALL, optimiser=Optimiser(decay="head", weight_decay=0.5)).resolved()
    state, _ = begin(trial, data.load("digits"))
    groups = {group["weight_decay"]: group["params"] for group in state.optimiser.param_groups}
    assert {id(p) for p in groups[0.5]} == {id(p) for p in state.network.head.parameters()}
    assert {id(p) for p in groups[0.0]} == {id(p) for p in state.network.backbone.parameters()}


def test_a_holdout_gives_last_and_best_results() -> None:
    trial = dataclasses.replace(SMALL, data=DataChoice(holdout=0.1), schedule=Schedule(epochs=5))
    result = finish_fit(fit(trial))
    assert result["data"]["samples"]["train"] < 1437
    assert 1 <= result["best"]["epoch"] <= 5
    assert result["best"]["validation_accuracy"] >= result["measures"]["validation"]["accuracy"]
    assert result["best"]["test"]["accuracy"] > 0.8


def test_sigmoids_tell_unknown_classes_as_the_logits_do() -> None:
    trial = dataclasses.replace(SMALL, data=DataChoice(unknown=4), loss=LossChoice("bce"))
    measured = finish_fit(fit(trial))["measures"]["test"]
    assert measured["probability_auroc"] == pytest.approx(measured["auroc"], abs=1e-12)
    assert measured["probability_oscr"] == pytest.approx(measured["oscr"], abs=1e-12)


def test_open_set_and_long_tail_have_their_measures() -> None:
    opened = finish_fit(fit(dataclasses.replace(SMALL, data=DataChoice(unknown=4))))
    assert len(opened["data"]["class_names"]) == 6
    assert 0.5 < opened["measures"]["test"]["auroc"] <= 1
    assert opened["measures"]["test"]["oscr"] <= opened["measures"]["test"]["auroc"]
    assert 0.5 < opened["measures"]["test"]["probability_auroc"] != opened["measures"]["test"]["auroc"]
    tailed = finish_fit(fit(dataclasses.replace(SMALL, data=DataChoice(long_tail=10.0), schedule=Schedule(epochs=12))))
    assert 0 < tailed["measures"]["test"]["few"] < 1
    assert "few" not in tailed["measures"]["train"]


def test_a_student_learns_from_a_finished_run(tmp_path: Path) -> None:
    finish_fit(fit(dataclasses.replace(SMALL, schedule=Schedule(epochs=8)), tmp_path / "teacher"))
    for name in ("kd", "fn-kd"):
        student = dataclasses.replace(SMALL, loss=LossChoice(name), teacher=str(tmp_path / "teacher"))
        assert finish_fit(fit(student))["measures"]["test"]["accuracy"] > 0.85


def test_a_finished_run_loads_ready_to_predict(tmp_path: Path) -> None:
    result = finish_fit(fit(dataclasses.replace(SMALL, loss=LossChoice("sln")), tmp_path / "run"))
    loaded = lastlayer.load(tmp_path / "run")
    test = data.load("digits").test
    predicted = torch.tensor([int(name) for name in loaded.predict(test.inputs)])
    assert float((predicted == test.target).double().mean()) == pytest.approx(result["measures"]["test"]["accuracy"])
    assert torch.allclose(loaded.probabilities(test.inputs).sum(1), torch.ones(len(test)), atol=1e-5)


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    state, _ = begin(dataclasses.replace(SMALL, batch_size=10**6).resolved(), data.load("wine"))
    assert state.steps_per_epoch == 1
