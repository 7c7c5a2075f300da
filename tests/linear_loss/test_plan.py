"""Which path is chosen, and that it is the one taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lastlayer import losses
from lastlayer.linear_loss import Plan, linear_loss, plan


@pytest.mark.parametrize(
    ("sizes", "loss", "path"),
    [
        ((8192, 512, 1000), "ce", "dense"),
        ((8192, 2048, 32768), "ce", "rows"),
        ((8192, 4096, 131072), "sln", "rows"),
        ((256, 512, 1_000_000), "sln", "classes"),
        ((256, 512, 1_000_000), "batch-ce", "classes"),
        ((256, 512, 1_000_000), "focal", "classes"),
        ((256, 512, 1_000_000), "nce", "rows"),
        ((256, 512, 1_000_000), "max-margin", "rows"),
        ((8192, 2048, 32768), "mse", "classes"),
        ((64, 128, 300_000), "mse", "classes"),
        ((128, 1024, 140_000), "mse", "rows"),  # W^T W would cost eight times the logits
        ((10**6, 64, 10**6), "ce", "classes"),
        ((0, 4, 10), "ce", "dense"),
    ],
)
def test_paths(sizes: tuple[int, int, int], loss: str, path: str) -> None:
    chosen = plan(*sizes, loss)
    assert chosen.path == path
    assert chosen.why
    assert chosen.rows is None or chosen.rows * sizes[2] <= 2**26
    assert chosen.classes is None or chosen.classes * sizes[0] <= 2**26  # however many samples there are


@pytest.mark.parametrize("sizes", [(256, 512, 100_000), (2049, 64, 8192), (3, 8, 2**23), (4095, 8, 8192)])
def test_a_chunk_of_rows_is_at_most_half_of_them_on_a_cpu(sizes: tuple[int, int, int]) -> None:
    for loss in ("ce", "nce", "max-margin", "batch-max-margin"):
        chosen = plan(*sizes, loss)
        assert chosen.path == "classes" or chosen.rows is not None
        assert chosen.rows is None or 1 <= chosen.rows <= (sizes[0] + 1) // 2


@pytest.mark.parametrize(
    ("sizes", "loss", "path", "rows"),
    [
        ((1024, 512, 1000), "ce", "dense", None),
        ((8192, 512, 1000), "ce", "rows", 8192),  # by kernels
        ((8192, 512, 1000), "mse", "rows", 8192),
        ((2**18, 64, 9), "ce", "dense", None),
        ((2**18, 64, 10), "ce", "rows", 2**18),
        ((2**20, 64, 19), "ce", "rows", 2**20),
        ((8192, 512, 1000), "batch-ce", "rows", 8192),
        ((8192, 512, 1000), "batch-max-margin", "rows", 8192),
        ((8192, 512, 1000), "large-margin", "dense", None),
        ((2**19, 256, 64), "ce", "rows", 2**19),
        ((2**19, 256, 64), "batch-ce", "dense", None),  # more rows than one program couples
        ((2**19, 256, 64), "batch-max-margin", "dense", None),
        ((2**19, 256, 16), "batch-ce", "dense", None),
        ((2**18, 256, 128), "batch-ce", "rows", 2**18),
        ((2**19, 256, 256), "batch-ce", "rows", 2**19),  # too many logits to hold
        ((2**19, 256, 64), "large-margin", "dense", None),
        ((2**19, 255, 64), "large-margin", "rows", 2**19),
        ((2**19, 1024, 64), "large-margin", "dense", None),
        ((2**20, 1024, 128), "large-margin", "rows", 2**18),  # the features of a chunk are bounded too
        ((2**18, 1024, 256), "large-margin", "dense", None),
        ((2**19, 512, 128), "large-margin", "dense", None),
        ((8192, 2048, 32768), "ce", "rows", 8192),
        ((8192, 4096, 131072), "sln", "rows", 2048),
        ((256, 512, 1_000_000), "sln", "rows", 256),
        ((2048, 512, 1_000_000), "sln", "classes", None),
        ((8192, 4096, 131072), "mse", "classes", None),
        ((256, 512, 1_000_000), "mse", "rows", 256),
        ((8192, 4096, 131072), "large-margin", "rows", 2048),
        ((256, 512, 1_000_000), "large-margin", "rows", 256),
    ],
)
def test_paths_on_a_gpu(sizes: tuple[int, int, int], loss: str, path: str, rows: int | None) -> None:
    chosen = plan(*sizes, loss, device="cuda")
    assert (chosen.path, chosen.rows) == (path, rows)


def test_a_device_by_any_of_its_names_and_sizes_by_any_integer() -> None:
    sizes = tuple(torch.tensor([8192, 2048, 32768]).numpy())
    for device in ("cuda", "cuda:1", torch.device("cuda", 0)):
        assert plan(*sizes, "ce", device=device).rows == 8192
    with pytest.raises(RuntimeError, match="device"):
        plan(8192, 2048, 32768, "ce", device="gpu")


def test_nce_with_drawn_labels_looks_at_those() -> None:
    assert plan(256, 512, 1_000_000, losses.NceLoss(samples=torch.arange(25))).classes == 25


def test_probabilities_of_mse_go_by_rows() -> None:
    assert plan(8192, 64, 32768, "mse", probabilities=True).path == "rows"
    assert plan(256, 64, 1_000_000, "focal", probabilities=True).path == "rows"


def test_a_module_is_known_by_its_class() -> None:
    assert plan(256, 512, 1_000_000, losses.SoftLogitNormLoss(gamma=0.5)).path == "classes"


def test_a_row_longer_than_a_chunk_is_one_chunk() -> None:
    assert plan(10, 2, 2**27, "nce").rows == 1


@pytest.mark.parametrize("arguments", [(-1, 2, 3, "ce"), (1, 0, 3, "ce"), (1, 2, 0, "ce"), (1, 2, 3.0, "ce"),
                                       (1, 2, 3, "kd"), (1, 2, 3, "no such loss")])  # fmt: skip
def test_wrong_sizes_and_losses(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be an integer|no place|'no such loss' is unknown"):
        plan(*arguments)


@pytest.mark.parametrize("arguments", [{"path": "row"}, {"path": "rows"}, {"path": "rows", "rows": 0},
                                       {"path": "dense", "rows": 3}, {"path": "classes", "rows": 3}])  # fmt: skip
def test_a_plan_that_is_none(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"path|rows|classes"):
        Plan(why="test", **arguments)


class _Widths(losses.Loss):
    """Cross-entropy that writes down the shape of the logits it is given."""

    in_pieces = True
    function = staticmethod(losses.cross_entropy)

    def forward(self, *inputs: Any, **named: Any) -> torch.Tensor:
        self.__dict__.setdefault("seen", []).append(tuple(inputs[0].shape))
        return super().forward(*inputs, **named)


def test_the_plan_is_followed() -> None:
    H, W, y = torch.randn(10, 3), torch.randn(6, 3), torch.zeros(10, dtype=torch.long)
    for given, shapes in (
        (Plan("rows", "test", rows=4), [(4, 6), (4, 6), (2, 6)]),
        (Plan("dense", "test"), [(10, 6)]),
        (None, [(10, 6)]),
    ):
        module = _Widths()
        linear_loss(H, W, y, module, plan=given)
        assert module.seen == shapes


def test_what_is_to_be_transformed_is_dense_on_a_gpu_too(planned: Callable[[Plan], list[Any]]) -> None:
    """Where kernels would take 2^23 logits, torch.func and torch.compile get ordinary code."""
    asked = planned(Plan("rows", "", rows=2))
    w, y = torch.randn(5, 3), torch.tensor([1, 4])
    found = torch.func.grad(lambda h: linear_loss(h, w, y, "ce"))(h := torch.randn(2, 3))
    wanted = torch.func.grad(lambda h: losses.cross_entropy(h @ w.T, y))(h)
    torch.testing.assert_close(found, wanted)
    torch.compile(lambda h: linear_loss(h, w, y, "ce"), backend="eager", fullgraph=True)(h)
    assert not asked
    linear_loss(h, w, y, "ce")
    assert asked


@pytest.mark.parametrize(
    "loss",
    [
        losses.NceLoss(samples=torch.zeros(8192, 5, dtype=torch.long)),
        losses.CrossEntropyLoss(weight=torch.ones(1000), label_smoothing=0.1),
        losses.BinaryCrossEntropyLoss(label_smoothing=0.1),
    ],
)
def test_a_module_that_kernels_do_not_take_is_dense(loss: losses.Loss) -> None:
    assert plan(8192, 512, 1000, loss, device="cuda").path == "dense"
    assert plan(8192, 512, 1000, type(loss)(), device="cuda").path == "rows"


def test_margins_by_single_entries_are_said_of_labels_alone() -> None:
    assert "few entries" in plan(256, 16, 10**6, "max-margin").why
    assert "has no form by classes" in plan(256, 16, 10**6, "max-margin", probabilities=True).why
