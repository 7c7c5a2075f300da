"""A linear layer and any loss of the library, without ever holding the whole N x K logits matrix."""

from lastlayer.linear_loss.linear_loss import linear_loss
from lastlayer.linear_loss.plan import Plan, plan

__all__ = ["Plan", "linear_loss", "plan"]
