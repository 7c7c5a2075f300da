"""Which algorithm computes a loss by chunks of rows or by tiles of classes, and what it does not take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lastlayer.linear_loss import _classes, _sampled, _spherical
from lastlayer.linear_loss._batch import BatchCrossEntropy
from lastlayer.linear_loss._binary import BinaryCrossEntropy
from lastlayer.linear_loss._function import Layer, fused
from lastlayer.linear_loss._large_margin import large_margin, takes_large_margin
from lastlayer.linear_loss._margins import Margins
from lastlayer.linear_loss._products import wide
from lastlayer.linear_loss._rows import RowChunks
from lastlayer.linear_loss._shards import Shard
from lastlayer.linear_loss._target import Batch, rows_of
from lastlayer.linear_loss.plan import AGAINST_OTHERS, BY_CLASSES, SPARSE
from lastlayer.losses import Loss
from lastlayer.losses.target import read_class_vector

LEARNABLE_BY_CLASSES = {"temperature", "tau", "gamma", "alpha"}  # the rest of the loss is ordinary code there


def _refuse_gradients(module: Loss, batch: Batch, path: str, learnable: set[str]) -> list[Tensor]:
    """The loss's own tensors that want a gradient and get one; ValueError for those that would not."""
    parts = batch.target if isinstance(batch.target, tuple) else (batch.target,)
    if torch.is_grad_enabled() and any(isinstance(part, Tensor) and part.requires_grad for part in parts):
        raise ValueError(f"the target wants a gradient, which path={path!r} does not give: detach it, or plan 'dense'")
    options: dict[str, Any] = module.hyperparameters()
    found = {k: v for k, v in options.items() if isinstance(v, Tensor) and v.requires_grad and torch.is_grad_enabled()}
    for name in found:
        if name not in learnable or name in ("weight", "class_weight"):
            raise ValueError(f"{name} of the loss wants a gradient, which path={path!r} does not give: plan 'dense'")
    if options.get("group") is not None:
        raise ValueError(f"the loss couples the batch over ranks by its group, path={path!r} does not: plan 'dense'")
    return list(found.values())


def _check_numbers(module: Loss, features: Tensor, K: int) -> None:
    """Let the loss check its own hyperparameters, on no samples."""
    module(features.new_empty(0, K), torch.empty(0, dtype=torch.long, device=features.device))


def by_rows(
    name: str, module: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """The loss, a chunk of samples at a time."""
    if name == "batch-ce":
        _refuse_gradients(module, batch, "rows", set())
        return fused(BatchCrossEntropy(batch, size), features, weight, bias)
    if name == "batch-max-margin" and (
        batch.probabilities is not None or any(isinstance(x.share, Tensor) and x.share.dim() for x in batch.labels)
    ):
        module(features.new_zeros(2, weight.shape[0]), rows_of(batch.target, 0, 2))  # says what is wrong
    if name in SPARSE and batch.probabilities is None:
        _refuse_gradients(module, batch, "rows", set())
        _check_numbers(module, features, weight.shape[0])
        return fused(Margins(module, batch, size), features, weight, bias)
    if "reduction" not in module.hyperparameters():
        raise ValueError(f"{name} gives no value for each sample, which path='rows' adds up: plan 'dense' takes it")
    more = _refuse_gradients(module, batch, "rows", set(module.hyperparameters()))
    if name == "large-margin" and takes_large_margin(batch.target, module, features, len(weight)):
        return large_margin(module, batch, size, features, weight)
    return fused(RowChunks(module, batch, size, more), features, weight, bias, *more)


def by_classes(
    name: str,
    module: Loss,
    batch: Batch,
    size: int,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    shard: Shard | None,
) -> Tensor:
    """The loss, a tile of classes at a time; of a shard, the classes held here."""
    if _sampled.is_sampled(module) and batch.probabilities is None:
        _refuse_gradients(module, batch, "classes", set())
        return batch.reduce_counted(_sampled.nce(module, batch, features, weight, bias))
    if name not in BY_CLASSES | AGAINST_OTHERS:
        raise ValueError(f"{name} has no form by tiles of classes: path 'rows' takes it, as does 'dense'")
    if name in AGAINST_OTHERS | {"mse"} and batch.probabilities is not None:
        raise ValueError(f"{name} of class probabilities has no form by tiles of classes: path 'rows' takes it")
    learnable = LEARNABLE_BY_CLASSES - ({"tau"} if name == "logit-adjusted" else set())
    _refuse_gradients(module, batch, "classes", set(module.hyperparameters()) if name in AGAINST_OTHERS else learnable)
    N, K, dtype = features.shape[0], weight.shape[0] if shard is None else shard.K, wide(features.dtype)
    if name != "large-margin":  # which takes no logits, and whose numbers are checked where they are used
        _check_numbers(module, features, K)
    if name in AGAINST_OTHERS:
        return batch.reduce_counted(_classes.against_others(module, batch, size, features, weight, bias))
    options: dict[str, Any] = module.hyperparameters()
    tiles = _classes.Tiles(batch, size, K, options.get("label_smoothing", 0.0), shard=shard)
    layer = (features, weight, bias)
    if name == "mse":
        algorithm = _spherical.SquaredError(batch, size, options["kappa"], options["beta"])
        return batch.reduce_counted(fused(algorithm, *layer))
    if name == "bce":
        pos_weight = options["pos_weight"]
        if pos_weight is not None:
            pos_weight = read_class_vector(pos_weight, "pos_weight", features.new_empty(0, K, dtype=dtype))
        per_sample = fused(BinaryCrossEntropy(tiles, pos_weight), *layer)
        per_sample = per_sample if shard is None else shard.total(per_sample)
        if batch.class_weight is not None:
            per_sample = per_sample * tiles.mass(N, dtype)
        return batch.reduce_counted(per_sample)
    factor = slope = None
    if name in ("sln", "ln"):
        gamma = options.get("gamma", 1.0)
        # where W^T W and its gradient would cost more than a pass for the norms
        if 2 * features.shape[1] * (N + K) > 3 * N * K:
            with torch.no_grad():
                norms2 = tiles.squared_norms(Layer(features, weight, bias))
            factor = _classes.soft_factor(norms2, gamma, options["tau"], K)
            slope = (-gamma / 2 * factor / torch.where(norms2 > 0, norms2, 1.0)).detach()
        else:
            norms2 = fused(_spherical.SquaredNorms(size), *layer)
            norms2 = norms2 if shard is None else shard.total(norms2)
            factor = _classes.soft_factor(norms2, gamma, options["tau"], K)
    elif name in ("ce", "ls") and (isinstance(options["temperature"], Tensor) or options["temperature"] != 1.0):
        factor = torch.ones(N, dtype=dtype, device=features.device) / options["temperature"]
    elif name == "logit-adjusted":
        counts = read_class_vector(options["counts"], "counts", features.new_empty(0, K, dtype=dtype))
        tiles = _classes.Tiles(batch, size, K, offset=options["tau"] * (counts / counts.sum()).log(), shard=shard)
    elif name == "batch-ce" and N == 0:
        return fused(BatchCrossEntropy(batch, 1), *layer)
    found = _classes.statistics(tiles, *layer, factor, slope)
    if name == "batch-ce":
        return _classes.batch_cross_entropy(found)
    if name == "self-norm":
        return batch.reduce_counted(_classes.self_norm(found, options["alpha"]))
    return batch.reduce_counted(_classes.cross_entropy(found))
