"""The plain linear head."""

from __future__ import annotations

import torch
from torch import nn

from lastlayer.heads.head import Head, initial_weight, register


@register("linear")
class LinearHead(Head):
    """A linear layer, with the same starting weights as `torch.nn.Linear`.

        logits = W h + b

    Paper: none, the standard layer.
    Tests: tests/heads/test_head.py::test_logits

    Example:
        >>> import torch
        >>> head = LinearHead(4, 3)
        >>> x = torch.randn(2, 4)
        >>> torch.equal(head.logit(x, [2, 0]), head(x)[:, [2, 0]])
        True
    """

    def __init__(self, in_features: int, num_classes: int, bias: bool = True) -> None:
        super().__init__(in_features, num_classes)
        self.weight = initial_weight(num_classes, in_features)
        bound = in_features**-0.5
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-bound, bound)) if bias else None
