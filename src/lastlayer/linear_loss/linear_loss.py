"""A linear layer and its loss in one function, without all N x K logits at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from lastlayer._core.precision import check_floating, wide
from lastlayer._core.ranks import Group
from lastlayer._core.unit import unit
from lastlayer.linear_loss.batch import Shard, read_batch, read_shard
from lastlayer.linear_loss.classes import by_classes
from lastlayer.linear_loss.kernels.large_margin import takes_angles
from lastlayer.linear_loss.layer import has_unit_rows, unit_rows, with_unchanged
from lastlayer.linear_loss.plan import SMALL, Plan, called, class_of, refuse_teachers, tile
from lastlayer.linear_loss.plan import plan as choose
from lastlayer.linear_loss.products import autocast_dtype, in_full_precision
from lastlayer.linear_loss.rows import by_kernels, by_rows, takes
from lastlayer.losses import Loss, Target, as_loss, available, create, entry
from lastlayer.losses.target import pair_from_list


def linear_loss(
    features: Tensor,
    weight: Tensor,
    target: Target,
    loss: Loss | str | Callable[..., Tensor],
    bias: Tensor | None = None,
    *,
    normalized: bool = False,
    scale: Tensor | float = 1.0,
    group: Group = None,
    plan: Plan | None = None,
) -> Tensor:
    """A loss on the logits of a linear layer. It holds at most as many logits at once as the plan says.

        linear_loss(H, W, target, loss, b) = loss(H W^T + b, target)

    in value and in the gradients of features, weight and bias. This is true for every reduction, target, class weight
    and ignored label that the loss takes. With `normalized`, the logits are scale cos(w_k, h) - b_k, those of a
    `NormalizedHead`: features and weight are brought to unit length, and the bias is subtracted.

    Args:
        features: H, (N, d).
        weight: W, (K, d), in the dtype of the features.
        target: class indices (N,), class probabilities (N, K), or a mixed pair (y_a, y_b, lam).
        loss: a loss, a name for `create`, or any callable of (logits, target), such as a Module of `torch.nn`.
        bias: b, (K,).
        normalized: whether features and weight enter by their directions.
        scale: factor of the cosines, a number or a tensor, which gets its gradient. Only with `normalized`.
        group: a process group, if the weight is split over it by class; `torch.distributed.group.WORLD` for all ranks.
            Each rank gives its own rows of weight and bias, any number of them, in the order of the ranks. Everything
            else is the same on every rank and describes all K classes: features, target, the loss with its class
            weights and `num_classes`. Every rank gets the whole loss, the gradients of its own rows and the whole
            gradient of the features. DDP must not average them.
        plan: a `Plan`, which fixes the path. None means `plan(N, d, K, loss, device=...)`. This may count on kernels
            that do not take the target, the dtype or a learnable hyperparameter. Up to 2^24 logits are then dense.

    Returns:
        What the loss returns: a scalar, or (N,) for reduction "none". Half precision is multiplied as in the dense
        layer; the loss and the sum over chunks that gives the weight's gradient are in float32. Under autocast the
        products run in its dtype.

    "dense" and "rows" take every loss except kd and fn-kd. docs/linear_loss.md says which losses "classes" takes, which
    ranks of a `group` take, what each path costs, and what changes on a GPU.

    "rows" and "classes" have no second derivatives, no forward-mode derivatives, no `torch.func`, and no gradients of
    the target and of class weights. They do not take a batch loss of your own, or one that its own `group` couples
    over ranks. `torch.compile` breaks its graph at them. large-margin takes no bias.

    Degenerate cases: as in the loss. If the batch is empty or wholly ignored, the mean is NaN and all gradients are 0.

    Raises:
        ValueError: for shapes that do not fit, for what is not supported, and if the plan's path does not take the loss
            (the message says which path does).
        TypeError: for dtypes that differ.

    Example:
        >>> import torch
        >>> from lastlayer import losses
        >>> H, W = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
        >>> y = torch.tensor([0, 1, 2, 3, 4, 0])
        >>> by_rows = Plan("rows", "two at a time", rows=2)
        >>> torch.allclose(linear_loss(H, W, y, "sln", plan=by_rows), losses.soft_logit_norm(H @ W.T, y), atol=1e-5)
        True
    """
    module = create(loss) if isinstance(loss, str) else as_loss(loss)
    loss = loss if isinstance(loss, str) else module
    refuse_teachers(loss)
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan or None, got {type(plan).__name__}")
    if bias is not None and module.takes_layer:
        raise ValueError(f"{called(loss)} has no bias, because it takes features and weight: give bias=None")
    _check_layer(features, weight, bias, normalized, scale)
    shard = None
    if group is not None:
        shard = _read_group(group, loss, plan, features, weight)
        features = shard.shared(features)
        scale = shard.shared(scale) if isinstance(scale, Tensor) else scale
    target = pair_from_list(target)
    K = weight.shape[0] if shard is None else shard.K
    if module.num_classes is not None and module.num_classes != K:
        raise ValueError(
            f"{type(module).__name__} was made for num_classes={module.num_classes}, there are {K} classes"
        )
    chosen = _plan_of(module, features, weight, bias, target, shard) if plan is None else plan
    if chosen.path != "dense" and _are_transformed(features, weight, bias, scale):
        raise RuntimeError(
            "neither torch.func (grad, vmap, jvp) nor a forward-mode derivative goes through "
            f"path={chosen.path!r} of linear_loss: plan 'dense' has it"
        )
    if chosen.path == "dense":
        features, weight, bias = _additive(features, weight, bias, normalized, scale, in_parts=False)
        inputs = (features, weight) if module.takes_layer else (F.linear(features, weight, bias),)
        return module(*inputs, target)  # type: ignore[no-any-return]
    how = _untraced_parts if torch.compiler.is_compiling() else _in_parts
    return how(module, chosen, shard, features, weight, bias, target, normalized, scale)


def _in_parts(
    module: Loss,
    chosen: Plan,
    shard: Shard | None,
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Target,
    normalized: bool,
    scale: Tensor | float,
) -> Tensor:
    """The loss by rows or by classes."""
    N, K = features.shape[0], weight.shape[0] if shard is None else shard.K
    features, weight, bias = _additive(features, weight, bias, normalized, scale, in_parts=True)
    with in_full_precision(features):
        if chosen.rows is not None and takes(target, module, features, K, chosen.rows):
            return by_kernels(target, module, features, weight, bias, chosen.rows)
        module = _as_it_stands(module)
        batch = read_batch(module, target, N, K, features, wide(features.dtype))
        if chosen.rows is not None:
            value = by_rows(module, batch, chosen.rows, features, weight, bias)
        else:
            assert chosen.classes is not None
            value = by_classes(module, batch, chosen.classes, features, weight, bias, shard)
    parts = target if isinstance(target, tuple) else (target,)
    read = [part for part in (*parts, *module.hyperparameters().values()) if isinstance(part, Tensor)]
    return with_unchanged(value, *read)


def _as_it_stands(module: Loss) -> Loss:
    """A copy of the loss, whose numbers stay as they are now. The backward pass may read them after they changed.

    A loss that does more than call its function is not copied, because a call may change it.
    """
    if not module.only_calls_function():
        return module
    found = type(module).__new__(type(module))
    state = {**vars(module), "_buffers": {**module._buffers}, "_parameters": {**module._parameters}}
    found.__setstate__(state)  # type: ignore[no-untyped-call]
    return found


# torch.compile cannot trace launches of kernels and choices by values, so it leaves this function alone. Unlike
# torch.compiler.disable, this imports the compiler when it is called, not here.
_untraced_parts = torch._disable_dynamo(_in_parts)  # type: ignore[attr-defined]


def _are_transformed(*given: Tensor | float | None) -> bool:
    """Whether torch.func is active or a tensor carries a forward-mode derivative, which chunks would lose."""
    if torch._C._are_functorch_transforms_active():
        return True
    tensors = [one for one in given if isinstance(one, Tensor)]
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors)  # type: ignore[no-untyped-call]


def _plan_of(
    module: Loss, features: Tensor, weight: Tensor, bias: Tensor | None, target: Target, shard: Shard | None
) -> Plan:
    """The plan if none is given. If the weight is sharded: tiles of the classes of this rank."""
    (N, d), held, device = features.shape, weight.shape[0], features.device.type
    if shard is not None:
        return Plan("classes", f"{held} of {shard.K} classes are here", classes=tile(N, held, device))
    few = N * held <= SMALL
    if few and (torch.compiler.is_compiling() or _are_transformed(features, weight, bias)):
        return Plan("dense", "few logits, and only ordinary code can be transformed")
    probabilities = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 2
    found = choose(N, d, held, module, probabilities=probabilities, device=device)
    if not few or found.rows is None:
        return found
    if takes_angles(target, module, features, held) or takes(target, module, features, held, found.rows):
        return found
    return Plan("dense", "few logits, and the kernels that the plan counts on do not take them")


def _read_group(group: Group, loss: Loss | str, plan: Plan | None, features: Tensor, weight: Tensor) -> Shard:
    """The classes of this rank. Raises if the loss or the plan does not take a sharded weight."""
    form = class_of(loss).class_form
    if form is None or not form.shards:
        forms = {name: entry(name).module.class_form for name in available()}
        sharded = [name for name, form in forms.items() if form is not None and form.shards]
        raise ValueError(
            f"{called(loss)} takes no weight sharded over a group: {', '.join(sharded)} do. Gather the weight, or let "
            "each rank hold all of it and a part of the samples"
        )
    if plan is not None and plan.path != "classes":
        raise ValueError(f"with group the path is 'classes', the plan says {plan.path!r}: give plan=None")
    return read_shard(group, features, weight)


def _check_layer(
    features: Tensor, weight: Tensor, bias: Tensor | None, normalized: bool, scale: Tensor | float
) -> None:
    """Raise unless these make a linear layer."""
    for name, tensor, axes in (("features", features, "(N, d)"), ("weight", weight, "(K, d)")):
        check_floating(tensor, name)
        if tensor.dim() != 2:
            raise ValueError(f"{name} must have shape {axes}, got {tuple(tensor.shape)}: reshape it to two axes")
    if features.shape[1] != weight.shape[1] or weight.shape[0] == 0:
        raise ValueError(
            f"features (N, d) and weight (K, d) must agree in d with K >= 1, got {tuple(features.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if bias is not None:
        check_floating(bias, "bias")
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape ({weight.shape[0]},), one per class, got {tuple(bias.shape)}")
    if features.device != weight.device or (bias is not None and bias.device != weight.device):
        raise ValueError(f"features are on {features.device}, the weight on {weight.device}: move one with .to(device)")
    if isinstance(scale, Tensor) and scale.numel() != 1:
        raise ValueError(f"scale must be one number, got a tensor of shape {tuple(scale.shape)}")
    if normalized and not isinstance(scale, Tensor) and not scale > 0:
        raise ValueError(f"scale must be positive, got {scale!r}")
    if not normalized and (isinstance(scale, Tensor) or scale != 1.0):
        raise ValueError("scale multiplies cosines: it goes with normalized=True; without it, multiply the weight")


def _additive(
    features: Tensor, weight: Tensor, bias: Tensor | None, normalized: bool, scale: Tensor | float, in_parts: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The layer as a plain linear one: features, weight and bias to add, in the dtype in which the products run."""
    lower = autocast_dtype(features)
    if normalized:
        bias = None if bias is None else -bias
        if in_parts and not isinstance(scale, Tensor) and has_unit_rows(features, weight):
            features, weight = unit_rows(features, 1.0, lower), unit_rows(weight, scale, lower)
        else:
            scale = scale.squeeze() if isinstance(scale, Tensor) else scale  # without axes it leaves the dtype alone
            features, weight = unit(features), scale * unit(weight)
    if lower is not None:
        features, weight = (t if t.dtype is torch.float64 else t.to(lower) for t in (features, weight))
    if features.dtype is not weight.dtype:
        raise TypeError(f"features are {features.dtype}, the weight is {weight.dtype}: convert one with .to(dtype)")
    return features, weight, None if bias is None else bias.to(weight.dtype)
