"""What an estimator learns: hidden layers, a head and a loss, on standardised inputs.

Tests: tests/sklearn/test_model.py.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from scipy.sparse import issparse
from torch import Tensor, nn

from lastlayer import heads, losses
from lastlayer._core.registry import check_options
from lastlayer.models.mlp import perceptron
from lastlayer.sklearn.inputs import Array, Moments
from lastlayer.training import HeadChoice, LossChoice, Trial
from lastlayer.training.engine.step import loss_of

BLOCK = 1 << 22  # entries of inputs or logits held at once when predicting
MOMENTS = "moments."  # before the names of the inputs' moments among the tensors


class Model(nn.Module):
    """Features as given to logits, and their loss. In float64.

    Args:
        in_features, num_classes: d and K.
        loss: a name, or any callable of (logits, target), which is copied.
        loss_options, head_options: by name.
        head: a name. A loss that needs another head than the linear one gets it.
        hidden: widths of hidden layers.
        counts: training samples per class, if they are known.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        loss: Any = "ce",
        loss_options: Mapping[str, Any] | None = None,
        head: str = "linear",
        head_options: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (),
        counts: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.loss = _make_loss(loss, dict(loss_options or {}), num_classes, counts)
        chosen = _choose_head(self.loss, loss_options or {}, HeadChoice(head, dict(head_options or {})))
        widths = tuple(hidden)
        self.backbone: nn.Module = perceptron((in_features,), widths) if widths else nn.Identity()
        self.head = heads.create(chosen.name, widths[-1] if widths else in_features, num_classes, **chosen.options)
        self.moments: Moments | None = None
        # one value per sample, which a weight can multiply
        self.per_sample = "reduction" in self.loss.hyperparameters() and not self.loss.couples_batch
        if self.per_sample:
            self.loss.reduction = "none"  # type: ignore[assignment]  # an argument of its function, not a module
        self.double().eval()

    def inputs(self, X: Any) -> Tensor:
        """Rows of X as a dense tensor, standardised."""
        dense = X.toarray() if issparse(X) else X
        if self.moments is None:
            return torch.tensor(dense, dtype=torch.float64)
        return torch.from_numpy(self.moments.standardized(dense))

    @torch.no_grad()
    def logits(self, X: Any) -> Tensor:
        """Logits (N, K) of the rows of X, a block of rows after the other."""
        rows = max(1, BLOCK // max(X.shape[1], self.head.num_classes))
        blocks = (self.inputs(X[i : i + rows]) for i in range(0, X.shape[0], rows))
        return torch.cat([self.head(self.backbone(block)) for block in blocks])

    def objective(
        self, inputs: Tensor, target: Tensor, weight: Tensor, mean: float, total: float, alpha: float
    ) -> Tensor:
        """The mean of the losses times their weights, plus alpha / 2 times the squared weights of matrices.

        The first is divided by the mean weight of all rows, the second by their total weight. Of the head, the matrix
        is that of `head.linear()`, so a normalized head has a constant penalty.
        """
        values = loss_of(self.head, self.loss, self.backbone(inputs), target, None)[0]
        value = values if values.dim() == 0 else (values * weight).mean() / mean
        if alpha:
            matrices = [p for p in self.backbone.parameters() if p.dim() > 1]
            for matrix in (*matrices, self.head.linear()[0]):
                value = value + alpha / (2 * total) * matrix.square().sum()
        return value

    def is_one_layer(self) -> bool:
        """Whether logits are X W^T + b with all numbers that are learnt in W and b, and a loss of this library.

        Then the loss takes logits of shape (1, K, N).
        """
        weight, bias = self.head.linear()
        learnt = [self.head.weight] if self.head.bias is None else [self.head.weight, self.head.bias]
        probe = torch.zeros(1, self.head.in_features, dtype=torch.float64)
        return (
            isinstance(self.backbone, nn.Identity)
            and self.head.features(probe) is probe
            and weight is self.head.weight
            and bias is self.head.bias
            and [id(p) for p in self.parameters() if p.requires_grad] == [id(p) for p in learnt]
            and self.loss.takes == ("logits",)
            and self.loss.in_pieces
            and self.per_sample
        )

    def changes_when_called(self, X: Any, labels: Array) -> bool:
        """Whether a training step changes more than what the gradient reaches, such as running means."""
        before = {name: buffer.clone() for name, buffer in self.head.named_buffers()}
        if not before:
            return False
        self.train()
        with torch.no_grad():
            loss_of(self.head, self.loss, self.backbone(self.inputs(X)), torch.from_numpy(labels), None)
        changed = any(not torch.equal(before[name], buffer) for name, buffer in self.head.named_buffers())
        self.head.load_state_dict(before, strict=False)
        self.eval()
        return changed

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was learnt: parameters, buffers, and the moments of the inputs."""
        state = {name: value.clone() for name, value in self.state_dict().items() if isinstance(value, Tensor)}
        if self.moments is not None:
            state |= {f"{MOMENTS}{name}": torch.tensor(value) for name, value in vars(self.moments).items()}
        return state

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        moments = {
            name.removeprefix(MOMENTS): tensors[name].clone().numpy() for name in tensors if name.startswith(MOMENTS)
        }
        self.moments = Moments(**moments) if moments else None
        self.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(MOMENTS)})


def _make_loss(given: Any, options: dict[str, Any], num_classes: int, counts: Sequence[int] | None) -> losses.Loss:
    if not isinstance(given, str):
        if options:
            raise ValueError("loss_options go with a loss given by name: give the loss object its options itself")
        return copy.deepcopy(losses.as_loss(given, num_classes))
    entry = losses.entry(given)
    if options:
        check_options(f"loss {given}", options, [name for name in entry.options if name != "weight"])
    if entry.module.needs_teacher:
        raise ValueError(f"loss {given!r} needs a teacher, which a scikit-learn estimator does not have")
    if entry.module.needs_counts and counts is None and "counts" not in options:
        raise ValueError(
            f"loss {given!r} needs the samples per class, which partial_fit does not know: "
            "give loss_options={'counts': [...]}"
        )
    return losses.create_for(counts or [1] * num_classes, given, **options)


def _choose_head(loss: losses.Loss, options: Mapping[str, Any], head: HeadChoice) -> HeadChoice:
    """The head, or the one that the loss needs in its place."""
    name = losses.name_of(loss)
    if name not in losses.available() or (loss.needed_head is None and head == HeadChoice()):
        return head
    numbers = {key: value for key, value in options.items() if isinstance(value, bool | int | float)}
    return Trial(loss=LossChoice(name, numbers), head=head).resolved().head
