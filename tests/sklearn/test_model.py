import numpy as np
import pytest
import torch

from lastlayer import losses
from lastlayer.sklearn.inputs import Moments
from lastlayer.sklearn.model import Model


def test_objective_is_the_weighted_mean_and_the_penalty():
    model = Model(3, 4, hidden=(5,))
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,))
    weight = torch.rand(6, dtype=torch.float64)
    first, last = (p for name, p in model.named_parameters() if name.endswith("weight"))
    offset, bias = (p for name, p in model.named_parameters() if name.endswith("bias"))
    logits = (x @ first.T + offset).clamp(min=0) @ last.T + bias
    log_p = logits - logits.exp().sum(1, keepdim=True).log()
    penalty = 0.3 / 2 * (first.square().sum() + last.square().sum())
    expected = (-(weight * log_p[torch.arange(6), y]).sum() + penalty) / weight.sum()
    found = model.objective(x, y, weight, float(weight.mean()), float(weight.sum()), 0.3)
    torch.testing.assert_close(found, expected)


def test_a_normalized_head_has_a_constant_penalty():
    model = Model(3, 4, head="normalized", head_options={"scale": 2.0})
    x, y, weight = torch.randn(6, 3, dtype=torch.float64), torch.randint(4, (6,)), torch.ones(6, dtype=torch.float64)
    with_penalty, without = (model.objective(x, y, weight, 1.0, 6.0, alpha) for alpha in (1.0, 0.0))
    torch.testing.assert_close((with_penalty - without).item(), 4 * 2.0**2 / 12)


def test_which_models_are_one_layer():
    assert Model(3, 4).is_one_layer()
    assert Model(3, 4, loss="sln", head_options={"bias": False}).is_one_layer()
    assert not Model(3, 4, hidden=(5,)).is_one_layer()
    assert not Model(3, 4, head="normalized").is_one_layer()
    assert not Model(3, 4, loss=torch.nn.MultiMarginLoss()).is_one_layer()
    assert not Model(3, 4, loss="batch-ce").is_one_layer()


@pytest.mark.parametrize(("head", "changes"), [("linear", False), ("simplex", False), ("batch-norm", True)])
def test_which_heads_change_when_called(head, changes):
    model, X = Model(3, 4, head=head), np.random.randn(2, 3)
    before = model.tensors()
    assert model.changes_when_called(X, np.array([0, 1])) is changes
    assert all(torch.equal(before[name], value) for name, value in model.tensors().items())


def test_the_tensors_of_a_model_make_an_equal_one():
    X = np.random.randn(9, 3)
    model, other = Model(3, 4, head="batch-norm", hidden=(5,)), Model(3, 4, head="batch-norm", hidden=(5,))
    model.moments = Moments().merged(X, np.ones(9))
    other.take(model.tensors())
    assert torch.equal(model.logits(X), other.logits(X))


def test_a_loss_gets_the_head_it_needs():
    assert Model(3, 4, loss="arc-margin").head.scale == 1.0
    assert Model(3, 4, loss="large-margin", loss_options={"margin": 2}).head.margin == 2
    with pytest.raises(ValueError, match="needs head normalized"):
        Model(3, 4, loss="arc-margin", head="simplex")


def test_losses_of_ones_own_are_copied():
    own = losses.SoftLogitNormLoss()
    assert Model(3, 4, loss=own).loss.reduction == "none"
    assert own.reduction == "mean"
    assert not Model(3, 4, loss=lambda logits, target: logits.sum()).per_sample


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"loss": "kd"}, "teacher"),
        ({"loss": "logit-adjusted"}, "counts"),
        ({"loss": "sln", "loss_options": {"gama": 1}}, "gamma"),
        ({"loss": "ce", "loss_options": {"weight": [1, 2]}}, "no option 'weight'"),
        ({"loss": torch.nn.MultiMarginLoss(), "loss_options": {"margin": 1}}, "loss_options go with"),
        ({"loss": "cee"}, "unknown"),
        ({"head": "linea"}, "unknown"),
        ({"hidden": (0,)}, "positive width"),
    ],
)
def test_what_is_refused(options, why):
    with pytest.raises(ValueError, match=why):
        Model(3, 4, **options)
