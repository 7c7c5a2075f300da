"""Backbones: inputs to features. Heads (`lastlayer.heads`) turn features into logits.

Every backbone is an `nn.Module` with `num_features` and `forward(x) -> features (N, num_features)`.
"""

import sys
from typing import Any

from torch import nn

from lastlayer._core.registry import check_options, import_all

from .common import ModelInfo, available, describe, register
from .external import as_backbone, check_external, from_factory, from_timm, from_transformers

__all__ = ["ModelInfo", "as_backbone", "available", "check_external", "create", "describe", "register"]

import_all(sys.modules[__name__])  # each file registers its models


def create(name: str, in_shape: tuple[int, ...], **options: Any) -> nn.Module:
    """Build a backbone by name.

    Args:
        name: a registered name (`available()`); "package.module:factory" for your own model; "timm:NAME" or "hf:NAME"
            if timm or transformers is installed. `lastlayer.models.external` says how the features are found.
        in_shape: shape of one input: (channels, height, width), or (d,) for features.
        options: those of the factory (`describe(name).options`). "timm:" and "hf:" take `pretrained=True`.

    Returns:
        A module with `num_features`; `forward(x)` gives features (N, num_features).

    Raises:
        ValueError: for an unknown name or option (the nearest is suggested), or an input that the model cannot take.
        ImportError: if timm or transformers is needed and missing.

    Example:
        >>> import torch
        >>> backbone = create("resnet20", (3, 32, 32))
        >>> backbone(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """
    in_shape = tuple(int(size) for size in in_shape)
    source, colon, rest = name.partition(":")
    if not colon:
        info = describe(name)
        check_options(f"model {name!r}", options, info.options)
        return info.factory(in_shape, **options)
    if source == "timm":
        return from_timm(rest, in_shape, options)
    if source == "hf":
        return from_transformers(rest, options)
    return from_factory(name, in_shape, options)
