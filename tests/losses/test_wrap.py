"""Losses from elsewhere behave as the library's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lastlayer import losses

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, 3.0]], dtype=torch.float64)
TARGET = torch.tensor([0, 1])


def plain(logits, target, gamma=1.5):
    return ((1 - logits.softmax(1).gather(1, target[:, None])) ** gamma).mean()


class Table(dict):
    """A class that is no loss."""


number = 3


def test_a_function_has_its_further_arguments_as_hyperparameters():
    loss = losses.create(f"{__name__}:plain", 3, gamma=2.0)
    expected = ((1 - LOGITS.softmax(1)[[0, 1], TARGET]) ** 2).mean()
    torch.testing.assert_close(loss(LOGITS, TARGET), expected)
    assert loss.hyperparameters() == {"gamma": 2.0}
    assert losses.entry(f"{__name__}.plain").options == ["gamma"]


def test_a_class_of_torch_has_the_arguments_of_its_constructor():
    loss = losses.create("torch.nn.MultiMarginLoss", 3, margin=0.5, reduction="sum")
    torch.testing.assert_close(loss(LOGITS, TARGET), F.multi_margin_loss(LOGITS, TARGET, margin=0.5, reduction="sum"))
    weighted = losses.create("torch.nn.CrossEntropyLoss", 3, weight=[1.0, 2.0, 3.0])
    weight = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(weighted(LOGITS.float(), TARGET), F.cross_entropy(LOGITS.float(), TARGET, weight=weight))


def test_a_module_keeps_what_it_learns():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, logits, target):
            return F.cross_entropy(self.scale * logits, target)

    given = Scaled()
    loss = losses.as_loss(given)
    assert [name for name, _ in loss.named_parameters()] == ["module.scale"]
    loss(LOGITS, TARGET).backward()
    assert given.scale.grad is not None


def test_what_is_a_loss_already_stays_as_it_is():
    loss = losses.FocalLoss(3)
    assert losses.as_loss(loss) is loss


def test_wrapped_losses_have_the_name_of_what_they_are_made_from():
    assert losses.name_of(losses.as_loss(nn.MultiMarginLoss())).endswith("MultiMarginLoss")
    assert losses.name_of(losses.as_loss(plain)).endswith("plain")
    assert repr(losses.create(f"{__name__}:plain")) == "plain(gamma=1.5)"


def test_the_number_of_classes_is_checked():
    for name in (f"{__name__}:plain", "torch.nn.MultiMarginLoss"):
        with pytest.raises(ValueError, match="num_classes=5, but was given 3"):
            losses.create(name, 5)(LOGITS, TARGET)


def test_unknown_hyperparameters_are_refused_by_name():
    with pytest.raises(TypeError, match=r"gama.*gamma"):
        losses.create(f"{__name__}:plain", gama=1.0)


def test_what_is_no_loss_is_refused():
    with pytest.raises(ValueError, match=r"test_wrap:Table.*nn\.Module"):
        losses.create(f"{__name__}:Table")
    with pytest.raises(ValueError, match="number"):
        losses.create(f"{__name__}:number")
    with pytest.raises(TypeError, match="got 3"):
        losses.as_loss(3)
    with pytest.raises(TypeError, match="MultiMarginLoss"):
        losses.as_loss(nn.MultiMarginLoss)  # a class: is it meant with its defaults?
