"""A linear layer and its loss in one, without the N x K logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lastlayer._rows import unit
from lastlayer.linear_loss import _classes, _spherical
from lastlayer.linear_loss._function import fused
from lastlayer.linear_loss._products import in_full_precision, wide
from lastlayer.linear_loss._rows import BatchCrossEntropy, Margins, RowChunks
from lastlayer.linear_loss._target import Batch, read_batch
from lastlayer.linear_loss.plan import AGAINST_OTHERS, BY_CLASSES, NEVER, SPARSE, Plan, module_of, name_of
from lastlayer.linear_loss.plan import plan as choose
from lastlayer.losses import LargeMarginLoss, Loss, Target
from lastlayer.losses._ranks import Group
from lastlayer.losses._target import read_class_vector

LEARNABLE_BY_CLASSES = {"temperature", "tau", "gamma", "alpha"}  # the rest of the loss is ordinary code there


def linear_loss(
    features: Tensor,
    weight: Tensor,
    target: Target,
    loss: Loss | str,
    bias: Tensor | None = None,
    *,
    normalized: bool = False,
    scale: Tensor | float = 1.0,
    group: Group = None,
    plan: Plan | None = None,
) -> Tensor:
    """A loss on the logits of a linear layer, which are never held all at once.

        linear_loss(H, W, target, loss, b) = loss(H W^T + b, target)

    in value and in the gradients of features, weight and bias, for every reduction, target, class weight and ignored
    label the loss takes. With `normalized`, the logits are scale cos(w_k, h) - b_k, those of a `NormalizedHead`: the
    rows of features and weight are brought to unit length, and the bias is subtracted.

    Args:
        features: H, (N, d).
        weight: W, (K, d), in the dtype of the features.
        target: class indices (N,), class probabilities (N, K), or a mixed pair (y_a, y_b, lam).
        loss: a Module of `lastlayer.losses`, or a name for `create`.
        bias: b, (K,).
        normalized: whether features and weight enter by their directions.
        scale: factor on the cosines, a number or a tensor, which gets its gradient; only with `normalized`.
        group: for a weight sharded by class over a process group; not there yet, raises.
        plan: a `Plan`, which fixes the path; None takes `plan(N, d, K, loss)`. No other path is taken than the plan's.

    Returns:
        What the loss returns: a scalar, or (N,) for reduction "none"; float32 for half precision, else the input's
        dtype. Half precision is multiplied as the dense layer does, logits and their gradients are float32, and so is
        the sum over chunks that makes the weight's gradient. Under autocast the products run in its dtype.

    What each path takes:
        dense: every loss but kd and fn-kd, everything.
        rows: the same losses, a chunk of samples at a time. Computes the gradient of a scalar in the forward pass, for
            3 products of size N d K as the dense form; reduction "none" takes a fourth. `max-margin` and
            `batch-max-margin` with labels take 1 and little more: two logits a sample have a gradient.
        classes: ce, ls, self-norm, sln, ln, bce, logit-adjusted and batch-ce at 4 products; focal, soft-margin,
            arc-margin and large-margin of labels likewise, of a mixed pair at 8; mse of labels at none: its sum of
            squares comes from W^T W, in which a loss near 0 keeps about 1e-7 beta^2 of error in float32. SLN's norm
            comes from W^T W too: of a row whose logits nearly all cancel it keeps few digits. Not nce, max-margin and
            batch-max-margin, nor focal, the margins and mse of class probabilities.

    Not supported: second derivatives, forward-mode derivatives, `torch.func` and `torch.compile` of the chunked paths;
    gradients of the target and of class weights there; a batch loss coupled over ranks by its own `group` there; a bias
    with large-margin, which has none. kd and fn-kd, whose teacher has no place here.

    Degenerate cases: as in the loss. An empty or wholly ignored batch has a mean of NaN and gradients 0.

    Raises:
        ValueError: for shapes that do not fit, a loss its plan's path does not take (and which does), and the above.
        TypeError: for dtypes that differ.
        NotImplementedError: for `group`.

    Example:
        >>> import torch
        >>> from lastlayer import losses
        >>> H, W = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
        >>> y = torch.tensor([0, 1, 2, 3, 4, 0])
        >>> by_rows = Plan("rows", "two at a time", rows=2)
        >>> torch.allclose(linear_loss(H, W, y, "sln", plan=by_rows), losses.soft_logit_norm(H @ W.T, y), atol=1e-5)
        True
    """
    if group is not None:
        raise NotImplementedError(
            "group: a weight sharded by class over a process group is not implemented yet; gather the weight, or let "
            "each rank hold all of it and a part of the samples"
        )
    name, module = name_of(loss), module_of(loss)
    if name in NEVER:
        raise ValueError(f"linear_loss has no place for {NEVER[name]}: call {name!r} on the logits instead")
    features, weight, bias = _layer(features, weight, bias, normalized, scale)
    if bias is not None and isinstance(module, LargeMarginLoss):
        raise ValueError("large-margin has no bias: its margin is an angle between feature and weight; give bias=None")
    if isinstance(target, list):  # what a DataLoader makes of a pair
        target = tuple(target)  # type: ignore[unreachable]
    (N, d), K = features.shape, weight.shape[0]
    if module.num_classes is not None and module.num_classes != K:
        raise ValueError(f"{type(module).__name__} was made for num_classes={module.num_classes}, weight has {K} rows")
    probabilities = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 2
    chosen = choose(N, d, K, module, probabilities=probabilities) if plan is None else plan
    if not isinstance(chosen, Plan):
        raise TypeError(f"plan must be a Plan or None, got {type(chosen).__name__}")
    if chosen.path == "dense":
        if isinstance(module, LargeMarginLoss):
            return module(features, weight, target)  # type: ignore[no-any-return]
        return module(F.linear(features, weight, bias), target)  # type: ignore[no-any-return]
    with in_full_precision(features):
        batch = read_batch(module, target, N, K, features, wide(features.dtype))
        if chosen.path == "rows":
            assert chosen.rows is not None
            return _by_rows(name, module, batch, chosen.rows, features, weight, bias)
        assert chosen.classes is not None
        return _by_classes(name, module, batch, chosen.classes, features, weight, bias)


def _layer(
    features: Tensor, weight: Tensor, bias: Tensor | None, normalized: bool, scale: Tensor | float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The additive linear layer, checked, in the dtype its products run in."""
    for name, tensor, axes in (("features", features, "(N, d)"), ("weight", weight, "(K, d)")):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}: convert with {name}.float()")
        if tensor.dim() != 2:
            raise ValueError(f"{name} must have shape {axes}, got {tuple(tensor.shape)}: reshape it to two axes")
    if features.shape[1] != weight.shape[1] or weight.shape[0] == 0:
        raise ValueError(
            f"features (N, d) and weight (K, d) must agree in d with K >= 1, got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), one number a class, got {tuple(bias.shape)}")
    if features.device != weight.device or (bias is not None and bias.device != weight.device):
        raise ValueError(f"features are on {features.device}, the weight on {weight.device}: move one with .to(device)")
    if normalized:
        if not isinstance(scale, Tensor) and not scale > 0:
            raise ValueError(f"scale must be positive, got {scale!r}")
        features, weight = unit(features), scale * unit(weight)
        bias = None if bias is None else -bias
    elif isinstance(scale, Tensor) or scale != 1.0:
        raise ValueError("scale multiplies cosines: it goes with normalized=True; without it, multiply the weight")
    device = features.device.type
    if torch.is_autocast_enabled(device):
        lower = torch.get_autocast_dtype(device)
        features, weight = (t if t.dtype is torch.float64 else t.to(lower) for t in (features, weight))
    if features.dtype is not weight.dtype:
        raise TypeError(f"features are {features.dtype}, the weight is {weight.dtype}: convert one with .to(dtype)")
    return features, weight, None if bias is None else bias.to(weight.dtype)


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


def _check_numbers(module: Loss, features: Tensor, weight: Tensor) -> None:
    """Let the loss check its own hyperparameters, on no samples."""
    module(features.new_empty(0, weight.shape[0]), torch.empty(0, dtype=torch.long, device=features.device))


def _by_rows(
    name: str, module: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    if name == "batch-ce":
        _refuse_gradients(module, batch, "rows", set())
        return fused(BatchCrossEntropy(batch, size), features, weight, bias)
    if name == "batch-max-margin" and (
        batch.probabilities is not None or any(isinstance(x.share, Tensor) and x.share.dim() for x in batch.labels)
    ):
        module(features.new_zeros(2, weight.shape[0]), batch.rows(0, 2))  # says what is wrong
    if name in SPARSE and batch.probabilities is None:
        _refuse_gradients(module, batch, "rows", set())
        _check_numbers(module, features, weight)
        return fused(Margins(module, batch, size), features, weight, bias)
    more = _refuse_gradients(module, batch, "rows", set(module.hyperparameters()))
    return fused(RowChunks(module, batch, size, more), features, weight, bias, *more)


def _by_classes(
    name: str, module: Loss, batch: Batch, size: int, features: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    if name not in BY_CLASSES | AGAINST_OTHERS:
        raise ValueError(f"{name} has no form by tiles of classes: path 'rows' takes it, as does 'dense'")
    if name in AGAINST_OTHERS | {"mse"} and batch.probabilities is not None:
        raise ValueError(f"{name} of class probabilities has no form by tiles of classes: path 'rows' takes it")
    learnable = LEARNABLE_BY_CLASSES - ({"tau"} if name == "logit-adjusted" else set())
    _refuse_gradients(module, batch, "classes", set(module.hyperparameters()) if name in AGAINST_OTHERS else learnable)
    if name in AGAINST_OTHERS:
        return batch.reduce_counted(_classes.against_others(module, batch, size, features, weight, bias))
    _check_numbers(module, features, weight)
    options: dict[str, Any] = module.hyperparameters()
    N, K, dtype = features.shape[0], weight.shape[0], wide(features.dtype)
    tiles = _classes.Tiles(batch, size, K, options.get("label_smoothing", 0.0))
    layer = (features, weight, bias)
    if name == "mse":
        return batch.reduce_counted(_spherical.squared_error(batch, size, *layer, options["kappa"], options["beta"]))
    if name == "bce":
        pos_weight = options["pos_weight"]
        if pos_weight is not None:
            pos_weight = read_class_vector(pos_weight, "pos_weight", features.new_empty(0, K, dtype=dtype))
        per_sample = fused(_classes.BinaryCrossEntropy(tiles, pos_weight), *layer)
        if batch.class_weight is not None:
            per_sample = per_sample * tiles.mass(N, dtype)
        return batch.reduce_counted(per_sample)
    factor = None
    if name in ("sln", "ln"):
        norms2 = fused(_spherical.SquaredNorms(size), *layer)
        factor = _classes.soft_factor(norms2, options.get("gamma", 1.0), options["tau"], K)
    elif name in ("ce", "ls") and (isinstance(options["temperature"], Tensor) or options["temperature"] != 1.0):
        factor = torch.ones(N, dtype=dtype, device=features.device) / options["temperature"]
    elif name == "logit-adjusted":
        counts = read_class_vector(options["counts"], "counts", features.new_empty(0, K, dtype=dtype))
        tiles = _classes.Tiles(batch, size, K, offset=options["tau"] * (counts / counts.sum()).log())
    elif name == "batch-ce" and N == 0:
        return fused(BatchCrossEntropy(batch, 1), *layer)
    found = _classes.statistics(tiles, *layer, factor)
    if name == "batch-ce":
        return _classes.batch_cross_entropy(found)
    if name == "self-norm":
        return batch.reduce_counted(_classes.self_norm(found, options["alpha"]))
    return batch.reduce_counted(_classes.cross_entropy(found))
