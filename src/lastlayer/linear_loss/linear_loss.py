"""A linear layer and its loss in one, without the N x K logits."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from lastlayer._core.precision import wide
from lastlayer._core.ranks import Group
from lastlayer._core.unit import unit
from lastlayer.linear_loss.batch import read_batch
from lastlayer.linear_loss.classes import by_classes
from lastlayer.linear_loss.kernels.large_margin import takes_angles
from lastlayer.linear_loss.layer import has_unit_rows, unit_rows, with_unchanged
from lastlayer.linear_loss.plan import SMALL, Plan, called, class_of, refuse_teachers, tile
from lastlayer.linear_loss.plan import plan as choose
from lastlayer.linear_loss.products import autocast_dtype, in_full_precision
from lastlayer.linear_loss.rows import by_kernels, by_rows, takes
from lastlayer.linear_loss.sharded import Shard, read_shard
from lastlayer.losses import Loss, Target, available, create, entry
from lastlayer.losses.target import pair_from_list


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
    """A loss on the logits of a linear layer, of which no more are held at once than the plan says.

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
        group: a process group over which the weight is sharded by class, `torch.distributed.group.WORLD` for all ranks.
            Each rank gives its own rows of the weight and of the bias, in the order of the ranks and as many as it
            likes; all else is given alike on every rank and speaks of all K classes: features, target, the loss with
            its class weights and `num_classes`. Every rank gets the loss, and the gradients one process would have:
            those of its own rows, and the whole one of the features. Not for DDP to average.
        plan: a `Plan`, which fixes the path; None takes `plan(N, d, K, loss, device=...)`, and up to 2^24 logits the
            dense path where that counts on kernels that do not take the target, the dtype or a learnable number of the
            loss. No other path is taken.

    Returns:
        What the loss returns: a scalar, or (N,) for reduction "none"; float32 for half precision, else the input's
        dtype. Half precision is multiplied as the dense layer does, the loss is computed in float32, and so is the sum
        over chunks that makes the weight's gradient. Under autocast the products run in its dtype.

    What each path takes:
        dense: every loss but kd and fn-kd, everything.
        rows: the same losses, a chunk of samples at a time. Computes the gradient of a scalar in the forward pass, for
            3 products of size N d K as the dense form; reduction "none" takes a fourth. `max-margin` and
            `batch-max-margin` with labels take 1 and little more: two logits a sample have a gradient.
        classes: ce, ls, self-norm, sln, ln, bce, logit-adjusted and batch-ce at 4 products; focal, soft-margin,
            arc-margin and large-margin of labels likewise, of a mixed pair at 8; mse of labels at none: its sum of
            squares comes from W^T W, in which a loss near 0 keeps about 1e-7 beta^2 of error in float32. The norm of
            sln and ln comes from W^T W too where d is below about 1.5 N, and keeps few digits of a row whose logits
            nearly all cancel; elsewhere it takes a fifth product. nce with `samples` and labels computes the logits of
            the label and of the t drawn classes alone. Not nce without, max-margin and batch-max-margin, nor focal, the
            margins and mse of class probabilities.

    On a GPU a chunk of rows is computed in place and in the layer's dtype, by Triton kernels for one label a sample and
    by torch.compile for other targets and losses:
        - The first call of a loss takes seconds. Where compiling fails, eager code goes on and a warning says so.
        - If one chunk has all samples, its logits wait for the backward pass and become the gradient there, so that
          reduction "none" takes no fourth product.
        - `max-margin` takes three products up to N d K = 2^39, and so does `batch-max-margin` in one chunk of up to
          2^18 samples; `large-margin` has float32 logits and takes four in several chunks.
        - The gradient of a bfloat16 weight is summed in float32, in its own memory and half as much again; one chunk
          needs no sum.
        - Values without a gradient, and losses whose own numbers are learnt, are left to eager code, in chunks of 2^26
          logits.

    With `group`: ce, ls, sln, ln, self-norm, logit-adjusted, bce and batch-ce, by tiles of classes. At most five
    numbers a sample are reduced over ranks, and in the backward pass the features' gradient.

    `torch.compile` around the chunked paths leaves them as they are, and its graph breaks there. Not supported: second
    derivatives, forward-mode derivatives and `torch.func` of the chunked paths; gradients of the target and of class
    weights there; a batch loss coupled over ranks by its own `group`, or of your own making, there; a bias with
    large-margin, which has none. kd and fn-kd, whose teacher has no place here.

    Degenerate cases: as in the loss. An empty or wholly ignored batch has a mean of NaN and gradients 0.

    Raises:
        ValueError: for shapes that do not fit, a loss its plan's path does not take (and which does), and the above.
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
    module = _module_of(loss, bias, plan)
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
    """The loss with the numbers it has now, even if they change before the backward pass, which may read them.

    A loss that does more than call its function may remember something in its call, and stays itself.
    """
    if not module.only_calls_function():
        return module
    found = copy.copy(module)
    found._buffers, found._parameters = dict(module._buffers), dict(module._parameters)
    return found


# torch.compile around a step leaves this alone: neither launches of kernels nor choices by values are for tracing.
# Unlike torch.compiler.disable this imports the compiler when it is called, not here.
_untraced_parts = torch._disable_dynamo(_in_parts)  # type: ignore[attr-defined]


def _module_of(loss: Loss | str, bias: Tensor | None, plan: Plan | None) -> Loss:
    """The loss as a Module. Raises if it has no place here, or not with this bias, and for what is no plan."""
    module = create(loss) if isinstance(loss, str) else loss
    if not isinstance(module, Loss):
        raise TypeError(f"loss must be a Module of lastlayer.losses or a name for create, got {type(loss).__name__}")
    if module.needs_teacher:
        refuse_teachers(loss)
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan or None, got {type(plan).__name__}")
    if bias is not None and module.takes_layer:
        raise ValueError(f"{called(loss)} has no bias, because it takes features and weight: give bias=None")
    return module


def _are_transformed(*given: Tensor | float | None) -> bool:
    """Whether torch.func is at work, or a tensor carries a forward-mode derivative: chunks would lose it."""
    if torch._C._are_functorch_transforms_active():
        return True
    tensors = [one for one in given if isinstance(one, Tensor)]
    return any(unpack_dual(tensor).tangent is not None for tensor in tensors)  # type: ignore[no-untyped-call]


def _plan_of(
    module: Loss, features: Tensor, weight: Tensor, bias: Tensor | None, target: Target, shard: Shard | None
) -> Plan:
    """The plan if none is given; of a sharded weight, tiles of the classes held here."""
    (N, d), held, device = features.shape, weight.shape[0], features.device.type
    if shard is not None:
        return Plan("classes", f"{held} of {shard.K} classes are here", classes=tile(N, held, device))
    few = N * held <= SMALL
    if few and (torch.compiler.is_compiling() or _are_transformed(features, weight, bias)):
        return Plan("dense", "few logits, and ordinary code to be transformed")
    probabilities = isinstance(target, Tensor) and target.is_floating_point() and target.dim() == 2
    found = choose(N, d, held, module, probabilities=probabilities, device=device)
    if not few or found.rows is None:
        return found
    if takes_angles(target, module, features, held) or takes(target, module, features, held, found.rows):
        return found
    return Plan("dense", "few logits, and the kernels that the plan counts on do not take them")


def _read_group(group: Group, loss: Loss | str, plan: Plan | None, features: Tensor, weight: Tensor) -> Shard:
    """The classes held here, if the loss can be made from parts."""
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
    """Raise unless it is a linear layer."""
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
    if bias is not None and not (isinstance(bias, Tensor) and bias.is_floating_point()):
        raise TypeError(f"bias must be a floating-point tensor, got {getattr(bias, 'dtype', type(bias).__name__)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({weight.shape[0]},), one number per class, got {tuple(bias.shape)}")
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
    """The additive linear layer, in the dtype its products run in."""
    lower = autocast_dtype(features)
    if normalized:
        bias = None if bias is None else -bias
        if in_parts and not isinstance(scale, Tensor) and has_unit_rows(features, weight):
            features, weight = unit_rows(features, 1.0, lower), unit_rows(weight, scale, lower)
        else:
            scale = scale.squeeze() if isinstance(scale, Tensor) else scale  # of no axes, it leaves the dtype alone
            features, weight = unit(features), scale * unit(weight)
    if lower is not None:
        features, weight = (t if t.dtype is torch.float64 else t.to(lower) for t in (features, weight))
    if features.dtype is not weight.dtype:
        raise TypeError(f"features are {features.dtype}, the weight is {weight.dtype}: convert one with .to(dtype)")
    return features, weight, None if bias is None else bias.to(weight.dtype)
