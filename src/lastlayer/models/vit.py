"""A small vision transformer for small images."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .common import image_shape, register


class _Block(nn.Module):
    """Self-attention, then two dense layers with GELU. Each has a layer norm before it and is added to its input."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.dense = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, dim // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (N, heads, T, dim / heads)
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(n, tokens, dim)))
        update: Tensor = self.dropout(self.dense(self.norm2(x)))
        return x + update


class ViT(nn.Module):
    """Patches, a class token, learned positions, transformer blocks. The features are the normalised class token."""

    def __init__(
        self, in_shape: tuple[int, int, int], patch: int, dim: int, depth: int, heads: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        channels, height, width = in_shape
        if height % patch or width % patch:
            raise ValueError(f"patch={patch} does not divide images of {height}x{width}")
        if dim % heads:
            raise ValueError(f"heads={heads} does not divide dim={dim}")
        tokens = (height // patch) * (width // patch)
        self.patches = nn.Conv2d(channels, dim, patch, stride=patch)
        self.token = nn.Parameter(torch.empty(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, tokens + 1, dim))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(_Block(dim, heads, hidden, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.num_features = dim
        for parameter in (self.token, self.positions):
            nn.init.trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # (N, T, dim)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.positions
        x = self.blocks(self.dropout(x))
        features: Tensor = self.norm(x[:, 0])  # (N, dim)
        return features


@register(
    "vit",
    summary="small vision transformer: patch 4, six blocks of width 128, four heads",
    paper="Dosovitskiy et al. 2021; the small form of the paper on normalized spaces",
    parameters=811146,
)
def vit(
    in_shape: tuple[int, ...],
    *,
    patch: int = 4,
    dim: int = 128,
    depth: int = 6,
    heads: int = 4,
    hidden: int = 0,
    dropout: float = 0.1,
) -> ViT:
    """Vision transformer whose features are the class token after the last layer norm, without activation.

    Args:
        in_shape: (channels, height, width), sides divisible by `patch`.
        patch: side of a patch in pixels.
        dim: width of a token, the number of features.
        depth: transformer blocks.
        heads: attention heads.
        hidden: width between the two dense layers of a block. 0 means 2 dim.
        dropout: drop-out on tokens and on both branches of a block.

    Example:
        >>> vit((3, 32, 32), dim=64).num_features
        64
    """
    shape = image_shape(in_shape, "vit", smallest=patch)
    return ViT(shape, patch, dim, depth, heads, hidden or 2 * dim, dropout)
