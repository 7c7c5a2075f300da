"""The vision transformer against the formula of attention."""

import pytest
import torch
import torch.nn.functional as F

from lastlayer import models


def test_vit_attention_matches_the_formula() -> None:
    torch.manual_seed(0)
    block = models.create("vit", (3, 8, 8), dim=8, heads=2, dropout=0.0, depth=1).blocks[0]
    x = torch.randn(2, 5, 8)
    query, key, value = block.qkv(F.layer_norm(x, (8,))).split(8, -1)
    out = torch.empty_like(x)
    for h in (slice(0, 4), slice(4, 8)):
        out[..., h] = (query[..., h] @ key[..., h].mT / 2.0).softmax(-1) @ value[..., h]
    after = x + block.out(out)
    expected = after + block.dense(F.layer_norm(after, (8,)))
    torch.testing.assert_close(block(x), expected)


def test_vit_refuses_sizes_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="patch=5 does not divide images of 32x32"):
        models.create("vit", (3, 32, 32), patch=5)
    with pytest.raises(ValueError, match="heads=3 does not divide dim=128"):
        models.create("vit", (3, 32, 32), heads=3)
