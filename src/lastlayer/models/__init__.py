"""Backbones: inputs to features. Heads (`lastlayer.heads`) turn features into logits.

Every backbone is an `nn.Module` with `num_features` and `forward(x) -> features (N, num_features)`.
"""

import sys
from typing import Any

from torch import nn

from lastlayer._core.registry import import_all

from .common import ModelInfo, available, build, describe, register
from .external import as_backbone, check_external, from_factory, from_timm, from_transformers

__all__ = ["ModelInfo", "as_backbone", "available", "check_external", "create", "describe", "register"]

import_all(sys.modules[__name__])  # each file registers its models


def create(name: str, in_shape: tuple[int, ...], **options: Any) -> nn.Module:
    """Build a backbone by name.

    Args:
        name: a registered name (`available()`); "package.module:factory" for your own model, whose features are
            found as `lastlayer.models.external` says; "timm:NAME" or "hf:NAME" if those are installed.
        in_shape: shape of one input: (channels, height, width), or (d,) for features.
        options: what the factory takes (`describe(name).options`); "timm:" and "hf:" take `pretrained=True`.

    Returns:
        A module with `num_features`; `forward(x)` gives features (N, num_features).

    Raises:
        ValueError: unknown name or option (the nearest is suggested), or inputs the model cannot take.
        ImportError: timm or transformers is asked for and missing.

    Example:
        >>> import torch
        >>> backbone = create("resnet20", (3, 32, 32))
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """
    in_shape = tuple(int(size) for size in in_shape)
    source, colon, rest = name.partition(":")
    if not colon:
        return build(name, in_shape, options)
    if source == "timm":
        return from_timm(rest, in_shape, options)
    if source == "hf":
        return from_transformers(rest, in_shape, options)
    return from_factory(name, in_shape, options)
