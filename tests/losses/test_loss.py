"""Losses as Modules and by name."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from lastlayer import heads, losses

from .cases import COUNTS, NOISE, PER_SAMPLE, K, identity

OF_THE_CONTRACT = [
    "ce", "ls", "focal", "mse", "bce", "sln", "ln", "max-margin", "self-norm", "nce", "batch-ce", "batch-max-margin",
    "soft-margin", "large-margin", "arc-margin", "logit-adjusted", "kd", "fn-kd",
]  # fmt: skip
NAMES = losses.available()
FUNCTIONS = {
    "ce": "cross_entropy", "ls": "cross_entropy", "bce": "binary_cross_entropy", "sln": "soft_logit_norm",
    "ln": "logit_norm", "batch-ce": "batch_cross_entropy", "kd": "distillation", "fn-kd": "feature_norm_distillation",
}  # fmt: skip
CONTRACT = {
    "ce": "temperature=1.0, label_smoothing=0.0",
    "focal": "gamma=3.0",
    "mse": "kappa=1.0, beta=15.0",
    "bce": "label_smoothing=0.0, pos_weight=None",
    "sln": "gamma=0.7, tau=None, label_smoothing=0.0",
    "ln": "tau=None",
    "max-margin": "margin=1.0",
    "self-norm": "alpha=0.1",
    "nce": "num_noise=25, noise=None, samples=None, include_target=True",
    "batch-ce": "group=None",
    "batch-max-margin": "margin=1.0, sample_term=True, group=None",
    "soft-margin": "margin=0.5",
    "large-margin": "margin=4, lam=0.0",
    "arc-margin": "margin=0.5, scale=64.0",
    "kd": "temperature=4.0, alpha=0.9",
}
y = torch.tensor([0, 3, 1])


def required(name):
    return {"counts": COUNTS} if name == "logit-adjusted" else {}


def test_the_names_of_the_contract_are_there():
    assert set(OF_THE_CONTRACT) <= set(losses.available())
    assert losses.available() == sorted(losses.available())


@pytest.mark.parametrize("name", NAMES)
def test_the_module_is_named_after_the_function(name):
    function_name = FUNCTIONS.get(name, name.replace("-", "_"))
    module = losses.create(name, **required(name))
    assert type(module).__name__ == "".join(part.capitalize() for part in function_name.split("_")) + "Loss"
    assert getattr(losses, type(module).__name__) is type(module)
    keywords = [
        p.name
        for p in inspect.signature(getattr(losses, function_name)).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    ]
    assert list(inspect.signature(type(module)).parameters) == ["num_classes", *keywords]


@pytest.mark.parametrize("name", CONTRACT)
def test_repr_shows_the_hyperparameters_and_their_defaults(name):
    assert repr(losses.create(name)).endswith(f"Loss({CONTRACT[name]})")


@pytest.mark.parametrize("name", NAMES)
def test_common_arguments_have_torchs_defaults(name):
    parameters = inspect.signature(type(losses.create(name, **required(name)))).parameters
    if name.startswith("batch"):
        assert not {"weight", "ignore_index", "reduction"} & set(parameters)
    else:
        weight = "class_weight" if name == "large-margin" else "weight"
        defaults = {p: parameters[p].default for p in (weight, "ignore_index", "reduction")}
        assert defaults == {weight: None, "ignore_index": -100, "reduction": "mean"}


def test_repr_shows_what_differs():
    loss = losses.CrossEntropyLoss(10, weight=torch.ones(10), ignore_index=255, reduction="sum")
    shown = "num_classes=10, temperature=1.0, label_smoothing=0.0, weight=tensor(10,), ignore_index=255, reduction=sum"
    assert repr(loss) == f"CrossEntropyLoss({shown})"
    assert "counts=tensor(5,)" in repr(losses.create("logit-adjusted", counts=COUNTS))


def test_ls_is_smoothed_and_can_be_told_otherwise():
    assert losses.create("ls").label_smoothing == 0.1
    assert losses.create("ls", label_smoothing=0.3).label_smoothing == 0.3
    assert losses.create("ce").label_smoothing == 0.0


@pytest.mark.parametrize("case", PER_SAMPLE, ids=identity)
def test_a_module_computes_what_its_function_does(case):
    z = case.logits(3, K)
    module = case.module(num_classes=K, reduction="none").double()
    torch.testing.assert_close(module(*case.inputs(z), y), case.call(z, y, reduction="none"), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["batch-ce", "batch-max-margin"])
def test_batch_modules(name):
    z = torch.randn(3, K, dtype=torch.float64)
    function = getattr(losses, FUNCTIONS.get(name, name.replace("-", "_")))
    assert losses.create(name, K)(z, y) == function(z, y)


class TestMistakes:
    def test_unknown_name(self):
        with pytest.raises(ValueError, match=r"'focl' is unknown \(did you mean 'focal'\?\); available: arc-margin"):
            losses.create("focl")

    def test_unknown_hyperparameter(self):
        with pytest.raises(TypeError, match=r"SoftLogitNormLoss has no argument 'gama' \(did you mean 'gamma'\?\)"):
            losses.create("sln", gama=0.5)
        with pytest.raises(
            TypeError, match=r"CrossEntropyLoss has no argument 'lable_smoothing' \(did you mean 'label_smoothing'\?\)"
        ):
            losses.CrossEntropyLoss(lable_smoothing=0.1)
        with pytest.raises(TypeError, match=r"no argument 'zzz'$"):
            losses.create("ce", zzz=1)

    def test_missing_counts(self):
        with pytest.raises(TypeError, match="LogitAdjustedLoss needs counts="):
            losses.create("logit-adjusted", 5)

    def test_num_classes(self):
        for wrong in (0, -1, 2.5, "10"):
            with pytest.raises(ValueError, match="num_classes must be a positive integer"):
                losses.FocalLoss(wrong)
        with pytest.raises(ValueError, match=r"FocalLoss was made for num_classes=7.*given 5 classes.*\(3, 5\)"):
            losses.FocalLoss(7)(torch.zeros(3, 5), y)
        with pytest.raises(ValueError, match=r"num_classes=7.*given 5"):
            losses.FocalLoss(7)(torch.zeros(5), torch.tensor(1))
        with pytest.raises(ValueError, match=r"num_classes=7.*given 4 classes"):
            losses.LargeMarginLoss(7)(torch.zeros(3, 2), torch.zeros(4, 2), y)
        losses.FocalLoss(5)(torch.zeros(3, 5, 2), torch.zeros(3, 2, dtype=torch.long))

    @pytest.mark.parametrize("num_classes", [None, K])
    def test_wrong_inputs_are_named_whether_or_not_the_classes_are_counted(self, num_classes):
        loss = losses.FocalLoss(num_classes)
        with pytest.raises(TypeError, match="logits must be a tensor, got list"):
            loss([[0.0] * K] * 3, y)
        with pytest.raises(ValueError, match=r"logits must have shape \(N, K, ...\)"):
            loss(torch.tensor(0.0), torch.tensor(0))
        with pytest.raises(TypeError, match="missing 2 required positional arguments: 'logits' and 'target'"):
            loss()
        with pytest.raises(TypeError, match="missing 2 required positional arguments: 'weight' and 'target'"):
            losses.LargeMarginLoss(num_classes)(torch.zeros(3, 2))

    def test_a_name_twice(self):
        from lastlayer.losses.loss import register

        with pytest.raises(ValueError, match="loss 'ce' is registered twice"):
            register("ce")(losses.CrossEntropyLoss)
        assert losses.entry("ce").module is losses.CrossEntropyLoss


@pytest.mark.parametrize("name", OF_THE_CONTRACT)
def test_a_setting_changed_later_takes_effect(name):
    loss = losses.create(name, **required(name))
    changed = {"ce": "temperature", "ls": "label_smoothing", "fn-kd": "beta", "bce": "label_smoothing", "ln": "tau"}
    changed |= {"batch-max-margin": "margin", "large-margin": "lam", "logit-adjusted": "tau", "kd": "alpha"}
    changed |= {"focal": "gamma", "mse": "beta", "sln": "gamma", "max-margin": "margin", "self-norm": "alpha"}
    changed |= {"nce": "num_noise", "soft-margin": "margin", "arc-margin": "margin"}
    if name == "batch-ce":
        return
    z = 0.5 * torch.randn(3, K, generator=torch.Generator().manual_seed(1))
    h = torch.randn(3, K, generator=torch.Generator().manual_seed(2))
    inputs = {"kd": (z, h, y), "fn-kd": (z, h, h, z, y), "large-margin": (z, h, torch.tensor([0, 2, 1]))}.get(
        name, (z, y)
    )
    before = loss(*inputs)
    setattr(loss, changed[name], 3 if name == "nce" else 0.35)
    assert (loss(*inputs) - before).abs() > 1e-4


def test_numpy_numbers_are_numbers():
    z = torch.randn(3, K)
    loss = losses.FocalLoss(np.int64(K), gamma=np.float32(2.0), ignore_index=np.int64(1))
    assert torch.equal(loss(z, y), losses.focal(z, y, gamma=2.0, ignore_index=1))
    assert type(loss.num_classes) is int


class TestState:
    def test_tensors_are_buffers(self):
        loss = losses.create("logit-adjusted", counts=COUNTS, weight=[1.0, 2.0, 3.0, 4.0, 5.0])
        assert dict(loss.named_buffers()).keys() == {"counts", "weight"}
        assert list(loss.parameters()) == []
        assert loss.double().weight.dtype is torch.float64
        assert loss.to("meta").counts.device.type == "meta"

    def test_numpy_arrays_are_buffers_too(self):
        loss = losses.CrossEntropyLoss(weight=np.ones(K))
        assert isinstance(loss.weight, torch.Tensor)
        assert "weight" in loss.state_dict()

    def test_state_dict_round_trip(self):
        loss = losses.CrossEntropyLoss(weight=torch.rand(K))
        other = losses.CrossEntropyLoss(weight=torch.zeros(K))
        buffer = io.BytesIO()
        torch.save(loss.state_dict(), buffer)
        buffer.seek(0)
        other.load_state_dict(torch.load(buffer))
        z = torch.randn(3, K)
        assert torch.equal(loss(z, y), other(z, y))

    def test_nothing_to_save_without_tensors(self):
        for name in NAMES:
            if name != "logit-adjusted":
                assert losses.create(name).state_dict() == {}

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("clone", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))])
    def test_copies(self, name, clone):
        loss = losses.create(name, K, **required(name))
        again = clone(loss)
        assert type(again) is type(loss)
        assert repr(again) == repr(loss)
        if name not in ("kd", "fn-kd", "large-margin"):
            z = 0.3 * torch.randn(3, K)
            assert torch.equal(again(z, y), loss(z, y))

    def test_a_learnable_hyperparameter(self):
        loss = losses.CrossEntropyLoss(temperature=nn.Parameter(torch.tensor(2.0)))
        assert [name for name, _ in loss.named_parameters()] == ["temperature"]
        loss(torch.randn(3, K), y).backward()
        assert loss.temperature.grad.abs() > 0


class TestProbabilities:
    z = torch.randn(4, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def check(self, loss, expected):
        """(N, K), (K,) and (N, K, ...), with classes on axis 1."""
        expected = torch.stack([expected(row) for row in self.z])
        torch.testing.assert_close(loss.probabilities(self.z), expected, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(loss.probabilities(self.z[0]), expected[0], rtol=1e-6, atol=1e-12)
        dense = self.z.reshape(2, 2, K).permute(0, 2, 1)
        expected = expected.reshape(2, 2, K).permute(0, 2, 1)
        torch.testing.assert_close(loss.probabilities(dense), expected, rtol=1e-6, atol=1e-12)

    @pytest.mark.parametrize(
        "name", ["ce", "ls", "focal", "mse", "max-margin", "self-norm", "batch-ce", "batch-max-margin", "soft-margin",
                 "large-margin", "logit-adjusted", "kd", "fn-kd"]
    )  # fmt: skip
    def test_softmax(self, name):
        self.check(losses.create(name, **required(name)), lambda row: row.exp() / row.exp().sum())

    def test_softmax_of_what_the_loss_sees(self):
        self.check(losses.create("ce", temperature=2.0), lambda row: torch.softmax(row / 2, 0))
        self.check(losses.create("arc-margin", scale=3.0), lambda row: torch.softmax(3 * row, 0))
        tau = 0.2 * (K / 10) ** -0.35
        self.check(losses.create("sln"), lambda row: torch.softmax(row / (tau * row.norm() ** 0.7), 0))
        self.check(
            losses.create("sln", gamma=0.2, tau=0.5), lambda row: torch.softmax(row / (0.5 * row.norm() ** 0.2), 0)
        )
        self.check(losses.create("ln", tau=0.5), lambda row: torch.softmax(row / (0.5 * row.norm()), 0))

    def test_sigmoid(self):
        self.check(losses.create("bce"), lambda row: 1 / (1 + (-row).exp()))

    def test_g(self):
        self.check(losses.create("nce", num_noise=7), lambda row: torch.sigmoid(row - np.log(7 / K)))
        q = torch.tensor(NOISE, dtype=torch.float64)
        self.check(losses.create("nce", num_noise=7, noise=q), lambda row: torch.sigmoid(row - (7 * q).log()))

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_answers_in_float32(self, name, dtype):
        found = losses.create(name, **required(name)).probabilities(
            torch.tensor([[1e4, 0.0, -1e4, 1.0, 0.0]], dtype=dtype)
        )
        assert found.dtype is torch.float32
        assert found.isfinite().all()
        assert ((found >= 0) & (found <= 1)).all()

    @pytest.mark.parametrize("name", ["sln", "ln"])
    def test_zero_logits_say_nothing(self, name):
        torch.testing.assert_close(losses.create(name).probabilities(torch.zeros(2, K)), torch.full((2, K), 1 / K))


@pytest.mark.parametrize("name", losses.available())
@pytest.mark.parametrize("shape", [(5, K), (K,), (2, K, 3)])
def test_a_posterior_sums_to_one_and_is_the_probabilities_if_they_do(name, shape):
    loss = losses.create(name, K, **required(name))
    logits = torch.randn(shape)
    dim = min(1, len(shape) - 1)
    probabilities, posterior, single = loss.probabilities(logits), loss.posterior(logits), loss.single(logits)
    torch.testing.assert_close(posterior.sum(dim), torch.ones_like(posterior.sum(dim)))
    assert torch.allclose(probabilities.sum(dim), torch.ones(())) == loss.sums_to_one
    assert not loss.sums_to_one or torch.equal(probabilities, posterior)
    assert single is None or bool(((single >= 0) & (single <= 1)).all())
    assert single is None or single.shape == logits.shape


def test_default_tau():
    assert losses.default_tau(10) == pytest.approx(0.2)
    assert losses.default_tau(100) == pytest.approx(0.08934, abs=1e-5)
    assert losses.default_tau(1000) == pytest.approx(0.03991, abs=1e-5)
    assert losses.default_tau(100, 1.0) == pytest.approx(0.2 / 10**0.5)
    assert losses.default_tau(100, 0.0) == 0.2
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        losses.default_tau(0)


def test_import_brings_torch_and_numpy_alone():
    """All parts for which CONTRIBUTING.md promises it, in one process: none of them may bring more."""
    code = (
        "import torch, numpy, sys; before = set(sys.modules)\n"
        "import lastlayer, lastlayer.losses, lastlayer.heads, lastlayer.geometry, lastlayer.tasks\n"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    new = set(eval(answer))
    heavy = {"sklearn", "torchmetrics", "scipy", "plotly", "typer", "rich", "matplotlib", "safetensors", "pandas"}
    assert not new & heavy
    assert new - set(sys.stdlib_module_names) <= {"lastlayer"}


def test_inputs_and_hyperparameters_may_be_named_in_a_call() -> None:
    z, y = torch.randn(3, 5), torch.tensor([0, 1, 4])
    loss = losses.FocalLoss(num_classes=5)
    assert torch.equal(loss(z, target=y), losses.focal(z, y))
    assert torch.equal(loss(logits=z, target=y), losses.focal(z, y))
    assert torch.equal(loss(z, y, gamma=1.0), losses.focal(z, y, gamma=1.0))
    assert loss.gamma == 3.0
    drawn = torch.tensor([0, 2])
    assert torch.equal(losses.NceLoss()(z, y, samples=drawn), losses.nce(z, y, samples=drawn))
    with pytest.raises(ValueError, match="num_classes=5"):
        loss(logits=torch.randn(3, 4), target=y)


def test_a_forward_of_ones_own_is_told_from_the_common_one():
    class Renamed(losses.FocalLoss):
        pass

    class Own(losses.FocalLoss):
        def forward(self, *inputs, **named):
            return 2 * super().forward(*inputs, **named)

    class Doubled:
        def forward(self, *inputs, **named):
            return 2 * super().forward(*inputs, **named)

    class Mixed(Doubled, losses.FocalLoss):
        pass

    logits, target = torch.randn(3, 4), torch.tensor([0, 1, 3])
    for made, plain in ((losses.FocalLoss, True), (Renamed, True), (Own, False), (Mixed, False)):
        assert made.only_calls_function() is plain
        once = losses.focal(logits, target)
        torch.testing.assert_close(made()(logits, target), once if plain else 2 * once)


def test_forward_of_a_loss_is_named_annotated_and_pickled_as_its_own():
    forward = losses.FocalLoss.forward
    assert (forward.__module__, forward.__qualname__) == ("lastlayer.losses.focal", "FocalLoss.forward")
    assert inspect.signature(forward) == inspect.signature(losses.Loss.forward)
    assert forward.__doc__ == losses.Loss.forward.__doc__
    assert pickle.loads(pickle.dumps(forward)) is forward
    assert not hasattr(forward, "__wrapped__")


def test_from_features_gives_each_loss_the_inputs_that_it_takes():
    generator = torch.Generator().manual_seed(0)
    h, taught_z, taught_h = (torch.randn(3, K, generator=generator, dtype=torch.float64) for _ in range(3))
    head = heads.LinearHead(K, K, bias=False).double()
    z, teacher = head(h), (taught_z, taught_h)
    for loss, expected in (
        (losses.FocalLoss(), losses.focal(z, y)),
        (losses.ArcMarginLoss(), losses.arc_margin(z, y)),
        (losses.LargeMarginLoss(lam=2.0), losses.large_margin(h, head.weight, y, lam=2.0)),
        (losses.DistillationLoss(), losses.distillation(z, taught_z, y)),
        (losses.FeatureNormDistillationLoss(), losses.feature_norm_distillation(z, h, *teacher, y)),
    ):
        found, logits = loss.from_features(head, h, y, teacher if loss.needs_teacher else None)
        assert torch.equal(found, expected)
        assert torch.equal(logits, z)
    with pytest.raises(ValueError, match="needs a teacher: give its logits and features"):
        losses.DistillationLoss().from_features(head, h, y)


def test_inputs_are_the_arguments_before_the_target():
    """A further argument with a default is no input, whatever its name."""

    class Own(losses.Loss):
        @staticmethod
        def function(logits, features, target, weight=None, *, scale=1.0):
            assert weight is None
            return scale * (logits.gather(1, target[:, None]) + features.sum(1, keepdim=True)).sum()

    assert Own.takes == ("logits", "features")
    head, h = heads.LinearHead(4, K), torch.ones(3, 4)
    found, logits = Own(scale=2.0).from_features(head, h, y)
    assert found.item() == pytest.approx(2 * (logits[torch.arange(3), y].sum().item() + 12))
