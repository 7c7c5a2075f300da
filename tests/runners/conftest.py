"""Losses of a user's own, which show what a runner does to trials beside each other."""

from pathlib import Path

import pytest

LOSSES_OF_ONES_OWN = """
import weakref
import torch
import torch.nn.functional as F
from lastlayer.losses import CrossEntropyLoss, Loss

class Noisy(CrossEntropyLoss):
    def forward(self, logits, target):
        return super().forward(logits + 0.1 * torch.randn_like(logits), target)

class Averaged(CrossEntropyLoss):
    def __init__(self, num_classes=None, **options):
        super().__init__(num_classes, **options)
        self.register_buffer("average", torch.ones(()))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, logits, target):
        value = super().forward(logits, target)
        self.average.lerp_(value.detach(), 0.1)
        self.calls += 1
        return value / self.average

class Broken(CrossEntropyLoss):
    def forward(self, logits, target):
        raise RuntimeError("the device is gone")

def heavy(logits, target, *, size: float = 0.0):
    return F.cross_entropy(logits, target)

class Heavy(Loss):
    function = staticmethod(heavy)
    learning_rate, weight_decay = 0.1, 5e-4

    def forward(self, logits, target):
        held[self] = self.hyperparameters()["size"]
        if sum(held.values()) > 100:
            del held[self]
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(logits, target)

held = weakref.WeakKeyDictionary()  # the parts of a GPU of size 100 that trials hold

class Late(CrossEntropyLoss):
    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        pass

    def forward(self, logits, target):
        value = super().forward(logits, target)
        if not hasattr(self, "first"):
            self.register_buffer("first", value.detach().clone())
        return value / self.first
"""


@pytest.fixture
def own_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module losses_in_a_pack."""
    (tmp_path / "losses_in_a_pack.py").write_text(LOSSES_OF_ONES_OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
