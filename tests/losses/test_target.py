"""A mistake that torch's cross_entropy refuses is refused here too, by an error that names argument and value."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lastlayer import losses

from .cases import BATCH, ONE_EACH, K, identity

every_loss = pytest.mark.parametrize("case", ONE_EACH, ids=identity)
y = torch.tensor([0, 1, 2])
ROW = torch.full((3, K), 1 / K, dtype=torch.float64)


def refused_by_torch(target, **options):
    with pytest.raises((RuntimeError, ValueError, TypeError, IndexError)):
        F.cross_entropy(torch.zeros(3, K, dtype=torch.float64), target, **options)


MISTAKES = {
    "too few labels": (torch.tensor([0, 1]), {}, ValueError, r"target.*\(3,\).*got shape \(2,\)"),
    "labels in a column": (y.unsqueeze(1), {}, ValueError, r"target.*got shape \(3, 1\)"),
    "too many classes": (torch.zeros(3, K + 1, dtype=torch.float64), {}, ValueError, rf"got shape \(3, {K + 1}\)"),
    "float labels": (y.double(), {}, TypeError, r"integers, got torch.float64.*target.long\(\)"),
    "bool labels": (y > 0, {}, TypeError, "integers, got torch.bool"),
    "integer probabilities": (torch.ones(3, K, dtype=torch.int64), {}, TypeError, r"int64.*target.float\(\)"),
    "label too large": (torch.tensor([0, K, 1]), {}, ValueError, f"label {K}, but there are {K} classes"),
    "label too small": (torch.tensor([0, -1, 1]), {}, ValueError, "label -1"),
    "reduction": (y, {"reduction": "average"}, ValueError, "reduction.*'average'"),
    "ignored class of probabilities": (ROW, {"ignore_index": 2}, ValueError, "ignore_index=2"),
    "ignored by name": (y, {"ignore_index": "no"}, TypeError, "ignore_index.*'no'"),
}


@every_loss
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_target_and_options(case, mistake):
    target, options, error, message = MISTAKES[mistake]
    refused_by_torch(target, **options)
    with pytest.raises(error, match=message):
        case.call(torch.zeros(3, K, dtype=torch.float64), target, **options)


@every_loss
@pytest.mark.parametrize("shape", [(K - 1,), (K + 1,), (1, K), ()], ids=str)
def test_class_weights_of_a_wrong_shape(case, shape):
    weight = torch.ones(shape, dtype=torch.float64)
    refused_by_torch(y, weight=weight)
    with pytest.raises(ValueError, match=r"weight must have shape \(5,\)"):
        case.call(torch.zeros(3, K, dtype=torch.float64), y, weight=weight)


@every_loss
def test_class_weights_must_be_real(case):
    with pytest.raises(TypeError, match="weight must be real"):
        case.call(torch.zeros(3, K, dtype=torch.float64), y, weight=torch.ones(K, dtype=torch.complex64))


@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.smoothing], ids=identity)
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_label_smoothing_out_of_range(case, value):
    with pytest.raises(ValueError, match=f"label_smoothing.*{value}"):
        case.call(torch.zeros(3, K), y, label_smoothing=value)
    with pytest.raises(TypeError, match="label_smoothing must be a number, got str"):
        case.call(torch.zeros(3, K), y, label_smoothing="0.1")


@pytest.mark.parametrize("case", [c for c in ONE_EACH if c.dense], ids=identity)
def test_mistakes_of_logits(case):
    name = "cosines" if case.cosines else "logits"
    with pytest.raises(TypeError, match=rf"{name} must be floating point, got torch.int64"):
        case.function(torch.zeros(3, K, dtype=torch.int64), *case.inputs(torch.zeros(3, K))[1:], y, **case.options)
    with pytest.raises(TypeError, match=f"{name} must be a tensor, got list"):
        case.function([[0.0] * K], *case.inputs(torch.zeros(1, K))[1:], y, **case.options)
    for shape in ((), (3, 0)):
        with pytest.raises(ValueError, match=f"{name} must have shape"):
            case.function(torch.zeros(shape), *case.inputs(torch.zeros(3, K))[1:], y, **case.options)


@every_loss
@pytest.mark.parametrize("target", [[0, 1, 2], None, 3], ids=str)
def test_a_target_that_is_no_tensor(case, target):
    with pytest.raises(TypeError, match=f"target must be a tensor.*got {type(target).__name__}"):
        case.call(torch.zeros(3, K), target)


@every_loss
def test_mistakes_of_a_mixed_pair(case):
    z = torch.zeros(3, K)
    with pytest.raises(ValueError, match="tuple of 2"):
        case.call(z, (y, y))
    with pytest.raises(TypeError, match="y_a and y_b"):
        case.call(z, (y, [0, 1, 2], 0.5))
    with pytest.raises(ValueError, match=r"lam must lie in.*1.5"):
        case.call(z, (y, y, 1.5))
    with pytest.raises(TypeError, match="lam must be a number"):
        case.call(z, (y, y, "half"))
    with pytest.raises(ValueError, match=r"lam must be a number or of shape \(3,\), got \(2,\)"):
        case.call(z, (y, y, torch.tensor([0.5, 0.5])))
    with pytest.raises(ValueError, match="label 9"):
        case.call(z, (y, torch.tensor([0, 9, 0]), 0.5))
    with pytest.raises(TypeError, match="integers"):
        case.call(z, (y.float(), y, 0.5))
    with pytest.raises(ValueError, match="target must be class indices"):
        case.call(z, (y[:2], y, 0.5))


@pytest.mark.parametrize("loss", BATCH, ids=identity)
class TestBatchLosses:
    def test_share_the_checks(self, loss):
        with pytest.raises(ValueError, match=f"label {K}"):
            loss(torch.zeros(3, K), torch.tensor([0, K, 1]))
        with pytest.raises(TypeError, match="integers"):
            loss(torch.zeros(3, K), y.float())

    def test_ignore_no_label(self, loss):
        """They take no ignore_index, so -100, torch's default, is a label out of range."""
        with pytest.raises(ValueError, match=r"label -100.*lie in 0\.\.4$"):
            loss(torch.zeros(3, K), torch.tensor([0, -100, 1]))

    def test_take_no_common_arguments(self, loss):
        for option in ({"weight": torch.ones(K)}, {"ignore_index": 0}, {"reduction": "sum"}):
            with pytest.raises(TypeError, match=next(iter(option))):
                loss(torch.zeros(3, K), y, **option)


HYPERPARAMETERS = [
    (losses.cross_entropy, "temperature", [0.0, -1.0]),
    (losses.focal, "gamma", [-0.1]),
    (losses.mse, "kappa", [0.0, -1.0]),
    (losses.soft_logit_norm, "gamma", [-0.1, 1.1]),
    (losses.soft_logit_norm, "tau", [0.0, -0.2]),
    (losses.logit_norm, "tau", [0.0, -0.2]),
    (losses.max_margin, "margin", [0.0, -1.0]),
    (losses.self_norm, "alpha", [-0.1]),
    (losses.nce, "num_noise", [0, -3]),
    (losses.batch_max_margin, "margin", [0.0]),
    (losses.soft_margin, "margin", [-0.5]),
    (losses.arc_margin, "margin", [-0.1, 3.2]),
    (losses.arc_margin, "scale", [0.0]),
]


@pytest.mark.parametrize(("loss", "name", "values"), HYPERPARAMETERS, ids=lambda v: getattr(v, "__name__", None))
def test_hyperparameters_out_of_range(loss, name, values):
    for value in [*values, float("nan")] if name != "num_noise" else values:
        with pytest.raises(ValueError, match=f"{name} must lie in .*got {value}"):
            loss(torch.zeros(3, K), y, **{name: value})
    with pytest.raises(TypeError, match=f"{name} must be"):
        loss(torch.zeros(3, K), y, **{name: "1"})


@pytest.mark.parametrize("target", [y, ROW, (y, y, 0.5)], ids=["index", "probabilities", "pair"])
def test_a_learnable_number_is_not_read(target):
    """A tensor as hyperparameter gets a gradient, and its value is not read."""
    temperature = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    z = torch.randn(3, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    losses.cross_entropy(z, target, temperature=temperature).backward()
    step = 1e-6
    numeric = [losses.cross_entropy(z, target, temperature=2.0 + s * step).item() for s in (1, -1)]
    assert temperature.grad.item() == pytest.approx((numeric[0] - numeric[1]) / (2 * step), rel=1e-6)


class TestCheckLabels:
    """On a GPU labels are read only inside the context. The meta device stands in for a GPU."""

    def test_outside_nothing_is_read(self):
        loss = losses.cross_entropy(torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.long, device="meta"))
        assert loss.device.type == "meta"

    def test_inside_every_device_is_read(self):
        """That the label is then refused is tested on the CPU below, and on a GPU in test_gpu.py."""

        class Asked(TorchDispatchMode):
            """Counts how often the smallest and the largest label are computed."""

            count = 0

            def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
                self.count += operation is torch.ops.aten.aminmax.default
                return operation(*args, **(kwargs or {}))

        logits, target = torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.long, device="meta")
        with Asked() as asked:
            losses.mse(logits, target)
            assert asked.count == 0
            with losses.check_labels():
                losses.mse(logits, target)
            assert asked.count == 1
            losses.mse(logits, target)
            assert asked.count == 1

    def test_the_setting_outlives_nesting_and_errors(self):
        with losses.check_labels():
            with pytest.raises(KeyError), losses.check_labels():
                raise KeyError
            with losses.check_labels():
                pass
            with pytest.raises(ValueError, match="label 3"):
                losses.focal(torch.zeros(2, 3), torch.tensor([0, 3]))


def test_a_mixed_pair_may_be_a_list():
    """A data loader that pins memory turns the tuple into one."""
    z = torch.randn(3, K)
    assert torch.equal(losses.focal(z, [y, y.flip(0), 0.3]), losses.focal(z, (y, y.flip(0), 0.3)))
    assert torch.equal(losses.focal(z[0], [y[0], y[1], 0.3]), losses.focal(z[0], (y[0], y[1], 0.3)))
    with pytest.raises(ValueError, match=r"\(y_a, y_b, lam\), got a tuple of 2"):
        losses.focal(z, [y, y])


def test_a_tensor_on_another_device_is_named():
    z = torch.zeros(3, K, device="meta")
    with pytest.raises(ValueError, match="lam is on cpu, the logits on meta"):
        losses.focal(z, (y.to("meta"), y.to("meta"), torch.rand(3)))
    with pytest.raises(ValueError, match="target is on cpu, the logits on meta"):
        losses.focal(z, y)
    with pytest.raises(ValueError, match="weight is on cpu, the logits on meta"):
        losses.focal(z, y.to("meta"), weight=torch.ones(K))
